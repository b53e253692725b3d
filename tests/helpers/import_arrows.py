"""Reads the imports of the pack's files and lists which of them run against the arrows of the
design.

nodes_<topic>.py -> <topic>_comfy.py -> <topic>.py -> kernels, all in nodes/<family>. ComfyUI's
internals are known to `<topic>_comfy.py`, the ComfyUI half of one method, to nodes/host, what
several families need, and to nodes/demo.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

_INTERNALS = {
    "alembic_db",
    "api_server",
    "app",
    "comfy",
    "comfy_api",
    "comfy_api_nodes",
    "comfy_config",
    "comfy_execution",
    "comfy_extras",
    "cuda_malloc",
    "execution",
    "folder_paths",
    "latent_preview",
    "node_helpers",
    "nodes",
    "protocol",
    "server",
    "utils",
}
_SHARED = ("common", "host")
_INSIDERS = ("demo", "host")  # may import ComfyUI's internals, as every <topic>_comfy.py


def wrong_imports(file: str, source: str) -> list[str]:
    """The imports of one file of the pack that the design forbids; `file` is its path in the
    repository.
    """
    where = PurePosixPath(file).parts
    problems = []
    for module, top_level in _imports(where, source):
        reason = _reason(where, module, top_level)
        if reason:
            problems.append(f"{file} imports {'.'.join(module)}: {reason}")
    return problems


def pack_files(root: Path) -> Iterator[tuple[str, str]]:
    """Path in the repository and text of every Python file of the pack itself."""
    for path in [
        root / "__init__.py",
        *sorted((root / "nodes").rglob("*.py")),
        *sorted((root / "kernels").rglob("*.py")),
    ]:
        yield path.relative_to(root).as_posix(), path.read_text("utf-8")


def _imports(where: tuple[str, ...], source: str) -> Iterator[tuple[tuple[str, ...], bool]]:
    """Every imported module, with those of the pack as (".", "nodes", ...), and whether loading the
    file imports it.
    """
    tree = ast.parse(source)
    deferred = {
        id(inner)
        for outer in ast.walk(tree)
        if isinstance(outer, ast.FunctionDef | ast.AsyncFunctionDef)
        or (isinstance(outer, ast.If) and ast.unparse(outer.test) == "TYPE_CHECKING")
        for inner in ast.walk(outer)
    }
    for found in ast.walk(tree):
        at_once = id(found) not in deferred
        if isinstance(found, ast.Import):
            yield from ((tuple(alias.name.split(".")), at_once) for alias in found.names)
        elif isinstance(found, ast.ImportFrom):
            base = _base(where, found)
            # Each name may be a module of its own: `from . import space`.
            names = [(*base, alias.name) for alias in found.names] if base[0] == "." else [base]
            yield from ((name, at_once) for name in names)


def _base(where: tuple[str, ...], found: ast.ImportFrom) -> tuple[str, ...]:
    named = tuple(found.module.split(".")) if found.module else ()
    if not found.level:
        return named
    return (".", *where[: len(where) - found.level], *named)


def _reason(where: tuple[str, ...], module: tuple[str, ...], at_once: bool) -> str | None:
    """Why a file may not import a module, or None."""
    if module[0] == ".":
        return _inside_reason(where, module[1:], at_once)
    if module[0] in _INTERNALS:
        return _comfy_reason(where, module)
    if module[0] in ("benchmarks", "glassbox", "kernels", "studies", "tests", "tools"):
        return (
            "imports inside the pack are relative, and the pack needs nothing of the repository's "
            "tools"
        )
    if (
        where in (("__init__.py",), ("nodes", "__init__.py"), ("kernels", "__init__.py"))
        and at_once
    ):
        return None if module[0] in sys.stdlib_module_names else "this file stays light"
    return None


def _comfy_reason(where: tuple[str, ...], module: tuple[str, ...]) -> str | None:
    if (
        where[0] == "nodes"
        and len(where) > 2
        and (where[1] in _INSIDERS or _is_comfy_half(where[-1]))
    ):
        return None
    if module[:2] == ("comfy_api", "latest") and (
        _is_node_file(where) or where == ("nodes", "menu.py")
    ):
        return None
    return (
        "only *_comfy.py, nodes/host and nodes/demo know ComfyUI (a family's nodes_*.py may use "
        "comfy_api.latest)"
    )


def _inside_reason(where: tuple[str, ...], module: tuple[str, ...], at_once: bool) -> str | None:
    if where == ("__init__.py",) or where == ("nodes", "__init__.py"):
        return "this file stays light: import inside the function" if at_once else None
    if where[0] == "kernels":
        return (
            None if module[:1] == ("kernels",) else "kernels know nothing of the rest of the pack"
        )
    if module[:1] == ("kernels",):
        return (
            None
            if len(module) <= 2
            else "use what kernels/__init__.py offers; its backends are its own"
        )
    return _family_reason(where, module)


def _family_reason(where: tuple[str, ...], module: tuple[str, ...]) -> str | None:
    """The arrows among the folders of nodes/."""
    if where == ("nodes", "menu.py"):
        return None
    family, target = where[1], module[1] if len(module) > 1 else ""
    if family == "common":
        return None if target == "common" else "nodes/common knows only kernels"
    if target in (family, "common"):
        return _own_family_reason(where, module[2:])
    if target == "host" and (
        _is_node_file(where) or _is_comfy_half(where[-1]) or family in _INSIDERS
    ):
        return None
    if target == "host":
        return "a method takes callables; only nodes_*.py and *_comfy.py go through nodes/host"
    return "families know nothing of each other"


def _own_family_reason(where: tuple[str, ...], module: tuple[str, ...]) -> str | None:
    """The arrows among the files of one family."""
    if any(name.startswith("nodes_") for name in module):
        return (
            "nobody but nodes/menu.py knows a file of nodes: what two share belongs into a file "
            "of its own"
        )
    if any(map(_is_comfy_half, module)) and not (_is_node_file(where) or _is_comfy_half(where[-1])):
        return "a method knows nothing of its ComfyUI half"
    return None


def _is_node_file(where: tuple[str, ...]) -> bool:
    """Whether a file of a family holds nodes."""
    return where[-1].startswith("nodes_")


def _is_comfy_half(name: str) -> bool:
    """Whether a file or module holds what a method needs of ComfyUI."""
    return name.removesuffix(".py").endswith("_comfy")


def open_wildcards(source: str) -> bool:
    """Whether a file imports everything of a module, which hides what it needs."""
    return any(
        isinstance(found, ast.ImportFrom) and any(alias.name == "*" for alias in found.names)
        for found in ast.walk(ast.parse(source))
    )
