"""The one exception that ends a command with a sentence instead of a traceback."""

from __future__ import annotations

import errno

_DISK_TROUBLE = {
    errno.EROFS: "the disk is read-only",
    errno.EACCES: "permission is denied",
    errno.EPERM: "permission is denied",
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk quota is used up",
    errno.ENOTDIR: "a file is in the way of a folder",
    errno.EEXIST: "a file is in the way of a folder",
}


class LaunchError(Exception):
    """A foreseeable failure; its text is one sentence that says what is wrong and what to do."""


def disk_sentence(error: OSError) -> str | None:
    """The sentence for an operating system error of the disk, or None if the disk is not to
    blame.
    """
    trouble = _DISK_TROUBLE.get(error.errno)
    if trouble is None:
        return None
    place = error.filename or "a file"
    return (
        f"Cannot write {place}: {trouble}; make room or move this folder to a disk that you can "
        "write to."
    )


def missing_package(user: str, package: str, error: ImportError, install: str) -> str:
    """What ``user`` ("--ray") needs, and the command ``install`` where it is ``package`` that is
    missing.

    Of a package that is there and fails by itself, or for want of another one, the reason is given:
    installing it again would change nothing.
    """
    name = package.partition(".")[0]
    if isinstance(error, ModuleNotFoundError) and error.name in (name, package):
        return f"{user} needs {name}, which is not installed: {install}"
    reason = " ".join(str(error).split())[:200] or type(error).__name__
    return f"{user} needs {name}, which is installed but cannot be imported here: {reason}"
