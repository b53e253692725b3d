"""How many modules a reader may have to open to follow a node: those with a definition that it
reaches by name, through functions, classes, constants and annotations.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

#: A module of a repository by the parts of its path, without the ending.
Name = tuple[str, ...]
_DEFINED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
#: Kernels are called by the name of an operation, whichever backend has it: nobody follows them.
_ROOM = "nodes"


@dataclass
class _Module:
    """What a module defines at its top, and where its names come from."""

    definitions: dict[str, ast.stmt] = field(default_factory=dict)
    imports: dict[str, tuple[Name, str]] = field(default_factory=dict)


def modules_reached(root: Path, file: str, name: str) -> list[str]:
    """The modules of nodes/ with a definition that ``name`` in ``file`` reaches, sorted."""
    modules: dict[Name, _Module | None] = {}

    def module(parts: Name) -> _Module | None:
        if parts not in modules:
            modules[parts] = _read(root, parts)
        return modules[parts]

    start = Path(file).with_suffix("").parts
    seen: set[tuple[Name, str]] = set()
    waiting = [(start, name)]
    while waiting:
        place = waiting.pop()
        parts, symbol = place
        source = module(parts)
        if source is None or place in seen:
            continue
        if symbol in source.definitions:
            seen.add(place)
            for used in _used(source.definitions[symbol], source):
                waiting.append((parts, used) if isinstance(used, str) else used)
        elif symbol in source.imports:
            origin, original = source.imports[symbol]
            if module((*origin, original)) is None:
                waiting.append((origin, original))
    return sorted({"/".join(parts) for parts, _ in seen if parts[0] == _ROOM})


def _read(root: Path, parts: Name) -> _Module | None:
    path = root.joinpath(*parts).with_suffix(".py")
    if not path.is_file():
        return None
    tree = ast.parse(path.read_text("utf-8"))
    read = _Module()
    for statement in tree.body:
        for name in _bound(statement):
            read.definitions[name] = statement
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = parts[: len(parts) - node.level]
            origin = (*base, *node.module.split(".")) if node.module else base
            for alias in node.names:
                read.imports[alias.asname or alias.name] = (origin, alias.name)
    return read


def _bound(statement: ast.stmt) -> Iterator[str]:
    """The names that a statement at the top of a module defines."""
    if isinstance(statement, _DEFINED):
        yield statement.name
    targets = getattr(statement, "targets", [getattr(statement, "target", None)])
    if isinstance(statement, ast.Assign | ast.AnnAssign):
        for target in targets:
            yield from (name.id for name in ast.walk(target) if isinstance(name, ast.Name))


def _used(definition: ast.stmt, source: _Module) -> Iterator[str | tuple[Name, str]]:
    """The names within a definition: of its own module, or an attribute of an imported one."""
    for node in ast.walk(definition):
        if isinstance(node, ast.Name):
            yield node.id
        elif (
            isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and node.value.id in source.imports
        ):
            origin, name = source.imports[node.value.id]
            yield (*origin, name), node.attr
