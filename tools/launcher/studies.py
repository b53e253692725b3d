"""`run.py study NAME` and `run.py bench NAME`: run a study or benchmark, or list them.

A study is `studies/NAME.py` or a folder `studies/NAME/` with a `__main__.py`, with a function
`main(argv)` that returns None or an exit code; a benchmark is the same in benchmarks/. `run.py
study report` rewrites the documents' tables, `run.py study show NAME` prints the numbers of a
result, `run.py study stale` lists the results whose study's code is another one now, and `run.py
study stale NAME` runs their quick part again: where no number differs, they hold.
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

_FOLDERS = {"study": paths.STUDIES, "bench": paths.BENCHMARKS}
_PLURAL = {"study": "studies", "bench": "benchmarks"}
_REPORT, _SHOW, _STALE = "report", "show", "stale"


def run(command: str, arguments: Sequence[str], folder: Path | None = None) -> int:
    """Run the study or benchmark that the first argument names with the rest; without a name, list
    them.
    """
    if command == "study" and arguments[:1] == [_REPORT]:
        from .. import docs_numbers

        load_module("common.host", "studies")
        return docs_numbers.main(arguments[1:])
    if command == "study" and arguments[:1] == [_SHOW]:
        from .. import docs_numbers

        return docs_numbers.show(arguments[1:])
    if command == "study" and arguments[:1] == [_STALE]:
        return _stale(arguments[1:])
    folder = folder or _FOLDERS[command]
    known = available(folder)
    name, *rest = arguments or [""]
    if name and not name.startswith("-") and name not in known:
        raise LaunchError(f"There is no {command} named {name}: {_listing(command, known)}.")
    if name not in known:
        print(f"Usage: run.py {command} NAME [--quick]; {_listing(command, known)}.")
        return 2
    module = load_module(known[name], _PLURAL[command], folder)
    return module.main(list(rest)) or 0


def _stale(names: Sequence[str]) -> int:
    """Print which results are older than their study's code, after those named were looked at
    again.
    """
    freshness = load_module("common.freshness", "studies")
    folder = paths.STUDIES / "results"
    for name in names:
        if not (folder / f"{name}_quick.json").is_file():
            raise LaunchError(f"{name} has no quick part with a result: run it again as a whole.")
        differing = freshness.same(folder, name, lambda arguments: run(arguments[0], arguments[1:]))
        print(f"{name} differs in {', '.join(differing[:3])}." if differing else f"{name} holds.")
    freshness = load_module("common.freshness", "studies")
    found = freshness.stale(folder)
    print("\n".join(found) or "Every result is as new as its study's code.")
    return int(bool(found))


def _listing(command: str, known: dict[str, str]) -> str:
    return f"there are {', '.join(known)}" if known else f"there are no {_PLURAL[command]} yet"


def available(folder: Path) -> dict[str, str]:
    """Names of all studies or benchmarks of a folder, each with its module inside the folder."""
    found = {path.stem: path.stem for path in folder.glob("*.py") if _has_main(path)}
    found |= {
        path.parent.name: f"{path.parent.name}.__main__"
        for path in folder.glob("*/__main__.py")
        if _has_main(path)
    }
    return dict(sorted(found.items()))


def _has_main(path: Path) -> bool:
    """Whether a module defines main(), read without running it."""
    tree = ast.parse(path.read_text("utf-8"), str(path))
    return any(isinstance(node, ast.FunctionDef) and node.name == "main" for node in tree.body)


def load_module(module: str, package: str, folder: Path | None = None) -> types.ModuleType:
    """Import a module of studies/, benchmarks/ or a folder as `PACKAGE.MODULE`; all may import from
    studies/.
    """
    places = {"studies": paths.STUDIES, "benchmarks": paths.BENCHMARKS}
    for name, place in {**places, **({package: folder} if folder else {})}.items():
        for loaded in [loaded for loaded in sys.modules if loaded.split(".")[0] == name]:
            del sys.modules[loaded]  # of another folder, or of an earlier run
        sys.modules[name] = types.ModuleType(name)
        sys.modules[name].__path__ = [str(place)]
    return importlib.import_module(f"{package}.{module}")
