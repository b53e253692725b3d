"""`run.py study NAME` and `run.py bench NAME`: run what lies in studies/, or tell what is there.

A study is `studies/NAME.py` or a folder `studies/NAME/` with a `__main__.py`, with a function `main(argv)` that returns
None or an exit code. A benchmark is the same under `bench_NAME`.
"""

from __future__ import annotations

import ast
import importlib
import sys
import types
from collections.abc import Sequence
from pathlib import Path

from . import paths
from .errors import LaunchError

_BENCH = "bench_"
_PLURAL = {"study": "studies", "bench": "benchmarks"}


def run(command: str, arguments: Sequence[str], folder: Path = paths.STUDIES) -> int:
    """Run the study or benchmark that the first argument names with the rest; without a name, list them."""
    known = available(command, folder)
    name, *rest = arguments or [""]
    if name and not name.startswith("-") and name not in known:
        raise LaunchError(f"There is no {command} named {name}: {_listing(command, known)}.")
    if name not in known:
        print(f"Usage: run.py {command} NAME [--quick]; {_listing(command, known)}.")
        return 2
    module = _load(known[name], folder)
    return module.main(list(rest)) or 0


def _listing(command: str, known: dict[str, str]) -> str:
    return f"there are {', '.join(known)}" if known else f"there are no {_PLURAL[command]} yet"


def available(command: str, folder: Path = paths.STUDIES) -> dict[str, str]:
    """Names of all studies or of all benchmarks, each with its module inside the folder."""
    found = {path.stem: path.stem for path in folder.glob("*.py") if _has_main(path)}
    found |= {
        path.parent.name: f"{path.parent.name}.__main__" for path in folder.glob("*/__main__.py") if _has_main(path)
    }
    benchmarks = command == "bench"
    return {
        name.removeprefix(_BENCH): module
        for name, module in sorted(found.items())
        if name.startswith(_BENCH) == benchmarks
    }


def _has_main(path: Path) -> bool:
    """Whether a module defines main(), read without running it."""
    tree = ast.parse(path.read_text("utf-8"), str(path))
    return any(isinstance(node, ast.FunctionDef) and node.name == "main" for node in tree.body)


def _load(module: str, folder: Path) -> types.ModuleType:
    """Import a module of the folder as `studies.MODULE`, so that studies can import each other relatively."""
    for loaded in [name for name in sys.modules if name.split(".")[0] == "studies"]:
        del sys.modules[loaded]  # of another folder, or of an earlier run
    package = types.ModuleType("studies")
    package.__path__ = [str(folder)]
    sys.modules["studies"] = package
    return importlib.import_module(f"studies.{module}")
