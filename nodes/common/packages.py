"""Packages that a part of the pack needs: the sentence where one cannot be imported."""

from __future__ import annotations


def missing_package(user: str, package: str, error: ImportError, install: str = "") -> str:
    """What ``user`` ("Drawing figures") needs, and how to get it.

    Of a package that is installed and fails by itself, or for want of another one, the reason is
    given: installing it again would change nothing. ``package``: its name on import; ``install``:
    pip's name.
    """
    if isinstance(error, ModuleNotFoundError) and error.name == package:
        return f"{user} needs {install or package}: pip install {install or package}"
    reason = " ".join(str(error).split())[:200] or type(error).__name__
    return (
        f"{user} needs {install or package}, which is installed but cannot be imported here: "
        f"{reason}"
    )
