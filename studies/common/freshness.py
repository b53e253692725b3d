"""Which results are older than the code that measured them: `python run.py study stale`.

A result keeps a hash of its study's code: of every function, class and constant in studies/ and
benchmarks/ that its part reaches, without comments, docstrings, imports, and the places of the
pack's modules. The pack's own code is not in it: tests hold that. What carries numbers without
making them (files, processes, turns) is left out too.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath

import numpy as np

from . import host

_FOLDERS = ("studies", "benchmarks")
_CARRIERS = {
    f"studies/common/{name}.py" for name in ("results", "freshness", "host", "parts", "turns")
}


#: The learned space, and the demo's folders, before their captions named eyes: hashes by asset.
FORMER_ASSETS = {
    "avatars-v2-w2w.safetensors": (
        "e6c33d490b4d1a41d989ee12a5dafaf05312b264fad1e6700846a8a390631057"
    ),
    "avatars-v2-people": "1e3f9bcbf051fa5c579499f61ada57878516961b6d95636a14212370fb4f2af8",
}
#: Results that are still of these: to be measured again, and then to be taken out here.
OF_FORMER_ASSETS = {
    "bench_weights",
    "bench_weights_desk",
    "bench_weights_guidance",
    "weights_factors",
    "weights_images",
    "weights_sampling",
    "weights_twins",
}


class _Bare(ast.NodeTransformer):
    """Code without what does not change a number."""

    def visit(self, node: ast.AST) -> ast.AST | None:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            return None
        if isinstance(node, ast.Constant) and re.fullmatch(r"nodes(\.\w+)+", str(node.value)):
            return ast.Constant("")  # where a module of the pack lies
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr == "pack"
        ):
            node.args = []
        elif (
            isinstance(node, (ast.FunctionDef, ast.ClassDef))
            and ast.get_docstring(node) is not None
        ):
            node.body = node.body[1:] or [ast.Pass()]
        return self.generic_visit(node)


class _Module:
    """A source file's top-level definitions, and what its imports name."""

    def __init__(self, path: str, text: str):
        tree, self.path = ast.parse(text, path), path
        self.definitions: dict[str, ast.stmt] = {}
        self.imports: dict[str, tuple[str, ...]] = {}
        for node in tree.body:
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                self.definitions[node.name] = node
            elif isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign)):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                for name in (
                    each
                    for target in targets
                    for each in ast.walk(target)
                    if isinstance(each, ast.Name)
                ):
                    self.definitions[name.id] = node
        folder = PurePosixPath(path).parent.parts
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom):
                base = folder[: len(folder) - node.level + 1] if node.level else ()
                base += tuple(node.module.split(".")) if node.module else ()
                self.imports |= {
                    alias.asname or alias.name: (*base, alias.name) for alias in node.names
                }
            elif isinstance(node, ast.Import):
                self.imports |= {
                    alias.asname: tuple(alias.name.split("."))
                    for alias in node.names
                    if alias.asname
                }


def code_hash(path: str, name: str, read: Callable[[str], str | None] | None = None) -> str:
    """SHA-256 over the code that the definition ``name`` of the file ``path`` reaches.

    ``read`` gives the text of a file by its path in the repository, or None where there is none.
    """
    parsed = functools.cache(lambda file: _parsed(file, read or _text))
    found: dict[tuple[str, str], str] = {}
    waiting = [(path, name)]
    while waiting:
        file, wanted = waiting.pop()
        module = parsed(file)
        if (file, wanted) in found or module is None or wanted not in module.definitions:
            continue
        node = module.definitions[wanted]
        waiting += _reached(module, node, parsed)
        found[file, wanted] = ast.dump(_Bare().visit(ast.parse(ast.unparse(node))))
    return hashlib.sha256(
        json.dumps(sorted((*key, code) for key, code in found.items())).encode()
    ).hexdigest()


def _text(path: str) -> str | None:
    file = host.ROOT / path
    return file.read_text("utf-8") if file.is_file() else None


def _parsed(path: str, read: Callable[[str], str | None]) -> _Module | None:
    text = None if path in _CARRIERS or not path.startswith(_FOLDERS) else read(path)
    return None if text is None else _Module(path, text)


def _reached(
    module: _Module, node: ast.stmt, parsed: Callable[[str], _Module | None]
) -> Iterator[tuple[str, str]]:
    """Definitions whose names a definition uses: of its file, imported ones, and those of imported
    files.
    """
    for each in ast.walk(node):
        if isinstance(each, ast.Name) and each.id in module.definitions:
            yield module.path, each.id
        elif isinstance(each, ast.Name) and each.id in module.imports:
            *where, name = module.imports[each.id]
            yield f"{'/'.join(where)}.py", name
        elif (
            isinstance(each, ast.Attribute)
            and isinstance(each.value, ast.Name)
            and each.value.id in module.imports
        ):
            yield f"{'/'.join(module.imports[each.value.id])}.py", each.attr


def entry(command: str) -> tuple[str, str] | None:
    """File and function of the study or benchmark that a result's command names; None for other
    commands.
    """
    words = re.match(r"python run\.py (study|bench) (\w+)(?: (?!--quick)([\w-]+))?", command)
    if words is None:
        return None
    folder = f"{'studies' if words[1] == 'study' else 'benchmarks'}/{words[2]}"
    if not (host.ROOT / folder / "__main__.py").is_file():
        return None
    parts = getattr(importlib.import_module(f"{folder.replace('/', '.')}.__main__"), "PARTS", {})
    module, function = parts.get(words[3] or "", "__main__:main").split(":")
    return f"{folder}/{module}.py", function


def code_of(command: str) -> str | None:
    """The present hash of the code that a command runs; None where it is no study and no
    benchmark.
    """
    found = entry(command)
    return None if found is None else code_hash(*found)


def stale(folder: Path) -> list[str]:
    """Names of the results in ``folder`` whose study's code is another one now, or that are of
    former assets.
    """
    results = {
        path.stem: json.loads(path.read_text("utf-8")) for path in sorted(folder.glob("*.json"))
    }
    return [
        name
        for name, result in results.items()
        if name in OF_FORMER_ASSETS or result["code"] != code_of(result["command"])
    ]


def same(folder: Path, name: str, run: Callable[[list[str]], object]) -> list[str]:
    """Run the quick part of a result again, and take the present code as the result's where no
    number differs.

    ``run`` gets the arguments of `run.py` as a list. Returns the names of numbers that differ by
    more than another processor's rounding: 0.2 %, or a tenth of half their interval.
    """
    path, quick = folder / f"{name}.json", folder / f"{name}_quick.json"
    before, result = json.loads(quick.read_text("utf-8")), json.loads(path.read_text("utf-8"))
    run(before["command"].split()[2:])
    now = json.loads(quick.read_text("utf-8"))["numbers"]
    differing = [
        each
        for each, number in before["numbers"].items()
        if each not in now or not _same_number(number, now[each]["value"])
    ]
    if not differing:
        result["code"] = code_of(result["command"])
        path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return differing


def _same_number(before: dict, now: float) -> bool:
    """Whether a number is the one of before, but for rounding that sampling has carried on."""
    half_interval = (before.get("high", 0) - before.get("low", 0)) / 2
    close = max(half_interval / 10, 1e-9)
    return bool(np.isclose(now, before["value"], rtol=2e-3, atol=close, equal_nan=True))
