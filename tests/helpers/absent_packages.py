"""Packages that cannot be imported, because they are missing or broken."""

from __future__ import annotations

import importlib.abc
import sys

import pytest


class _Refusal(importlib.abc.MetaPathFinder):
    def __init__(self, package: str, cause: str):
        self._package = package
        self._cause = cause

    def find_spec(self, fullname: str, path: object, target: object = None) -> None:
        if fullname.split(".")[0] != self._package:
            return
        if self._cause:
            raise ImportError(self._cause)
        raise ModuleNotFoundError(f"No module named {self._package!r}", name=self._package)


def make_absent(package: str, monkeypatch: pytest.MonkeyPatch, cause: str = "") -> None:
    """Imports of the package fail for the length of a test: it is missing, or broken by a
    ``cause``.
    """
    for name in list(sys.modules):
        if name.split(".")[0] == package:
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [_Refusal(package, cause), *sys.meta_path])
