"""Counts what keeps the house in order, and what it takes to extend it: `python -P tools/gates.py`.

Every function counts one thing in a repository; tests/unit/tools/test_gates.py holds what each may be at most.
"""

from __future__ import annotations

import ast
import re
import runpy
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LONGEST_BODY = 25  # lines of an `execute`
EQUAL_LINES = 12
_INSIDERS = ("host", "demo")
_INTERNALS = re.compile(r"^(comfy|comfy_extras|comfy_execution|folder_paths|node_helpers|server)(\.|$)")
#: Pages whose length is their purpose: lists, tables that a command makes, and what is looked up and not read.
_REFERENCE = {"api", "architecture", "citations", "nodes", "performance", "real_checkpoints", "troubleshooting"}
_GENERATED = re.compile(r"<!-- (numbers|nodes|plot)\b.*?<!-- end -->", re.DOTALL)


def host_lines(root: Path = ROOT) -> int:
    """Lines of nodes/host."""
    return sum(map(_lines, (root / "nodes" / "host").rglob("*.py")))


def pack_lines(root: Path = ROOT) -> int:
    """Lines of nodes/."""
    return sum(map(_lines, (root / "nodes").rglob("*.py")))


def docstring_fraction(root: Path = ROOT) -> float:
    """Fraction of the lines of nodes/ that are docstrings and comments."""
    return sum(map(_explaining, (root / "nodes").rglob("*.py"))) / max(pack_lines(root), 1)


def comfy_imports(root: Path = ROOT) -> list[str]:
    """Files of nodes/ that import ComfyUI's internals and are neither host, demo, nor the ComfyUI half of a method."""
    return [
        f"{path.relative_to(root).as_posix()} imports {name}"
        for path in sorted((root / "nodes").rglob("*.py"))
        if path.relative_to(root).parts[1] not in _INSIDERS and not path.stem.endswith("_comfy")
        for name in _imported(path)
        if _INTERNALS.match(name)
    ]


def sideways_imports(root: Path = ROOT) -> list[str]:
    """Files of nodes that import another file of nodes; nodes/menu.py lists them all."""
    return [
        f"{path.relative_to(root).as_posix()} imports {name}"
        for path in sorted((root / "nodes").rglob("nodes_*.py"))
        for name in _imported(path)
        if re.search(r"(^|\.)nodes_", name)
    ]


def long_bodies(root: Path = ROOT) -> list[str]:
    """Bodies of `execute` of more than LONGEST_BODY lines, as "file: lines"."""
    return [
        f"{path.relative_to(root).as_posix()}: {lines}"
        for path in sorted((root / "nodes").rglob("nodes_*.py"))
        for lines in _bodies(path)
        if lines > LONGEST_BODY
    ]


def document_words(root: Path = ROOT) -> int:
    """Words of the written pages of docs/, without generated tables and what is looked up."""
    pages = [path for path in (root / "docs").glob("*.md") if path.stem not in _REFERENCE]
    return sum(len(_GENERATED.sub("", path.read_text("utf-8")).split()) for path in pages)


def equal_runs(root: Path = ROOT) -> list[str]:
    """Runs of EQUAL_LINES and more equal lines in nodes/, tools/ and web/: where each stands first and again.

    Blank lines do not count, nor does indentation, nor signatures: those of `execute` follow from the inputs.
    """
    seen: dict[tuple[str, ...], tuple[Path, int]] = {}
    found: dict[tuple[Path, Path], list[int]] = defaultdict(list)
    for path in sorted(path for folder in ("nodes", "tools", "web") for path in _sources(root / folder)):
        lines = _compared(path)
        for first in range(len(lines) - EQUAL_LINES + 1):
            run = tuple(line for _, line in lines[first : first + EQUAL_LINES])
            place = seen.setdefault(run, (path, lines[first][0]))
            if place != (path, lines[first][0]):
                found[place[0], path].append(lines[first][0])
    return [
        f"{again.relative_to(root).as_posix()}:{numbers[0]} repeats {first.relative_to(root).as_posix()}"
        for (first, again), numbers in sorted(found.items())
    ]


def counts(root: Path = ROOT) -> dict[str, float | list[str]]:
    """Everything by name."""
    return {
        "lines of nodes/host": host_lines(root),
        "lines of nodes/": pack_lines(root),
        "fraction of lines in nodes/ that explain": docstring_fraction(root),
        "imports of ComfyUI outside of host, demo and *_comfy.py": comfy_imports(root),
        "imports of a file of nodes by another": sideways_imports(root),
        f"bodies of execute of more than {LONGEST_BODY} lines": long_bodies(root),
        "words of the written documents": document_words(root),
        f"runs of {EQUAL_LINES} equal lines": equal_runs(root),
    } | {f"files to touch for {name}, texts apart": trial.files for name, trial in _trials().items()}


def _trials() -> dict:
    """The additions of tools/trials.py, which lies beside this file."""
    if "tools.trials" not in sys.modules:  # started as a program
        runpy.run_path(str(ROOT / "run.py"))["load_package"]("tools")
    from tools.trials import TRIALS

    return TRIALS


def _sources(folder: Path) -> Iterator[Path]:
    yield from (path for path in folder.rglob("*") if path.suffix in (".py", ".js", ".mjs"))


def _compared(path: Path) -> list[tuple[int, str]]:
    """Number and text of the lines of a file that count for `equal_runs`."""
    text = path.read_text("utf-8")
    functions = ast.walk(ast.parse(text)) if path.suffix == ".py" else ()
    signatures = {
        number
        for node in functions
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        for number in range(node.lineno, node.body[0].lineno)
    }
    lines = enumerate(text.splitlines(), 1)
    return [(number, line.strip()) for number, line in lines if line.strip() and number not in signatures]


def _lines(path: Path) -> int:
    return len(path.read_text("utf-8").splitlines())


def _explaining(path: Path) -> int:
    """Lines of docstrings and of comments that stand alone."""
    text = path.read_text("utf-8")
    strings = [
        node.body[0]
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and ast.get_docstring(node) is not None
    ]
    comments = sum(line.strip().startswith("#") for line in text.splitlines())
    return comments + sum((string.end_lineno or 0) - string.lineno + 1 for string in strings)


def _imported(path: Path) -> Iterator[str]:
    """Every imported name with its module; of `from . import a` the name alone."""
    for found in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(found, ast.Import):
            yield from (alias.name for alias in found.names)
        elif isinstance(found, ast.ImportFrom) and found.level:
            module = found.module or ""
            yield from [f".{module}"] if module.rpartition(".")[2].startswith("nodes_") else []
            yield from (f".{alias.name}" for alias in found.names)
        elif isinstance(found, ast.ImportFrom):
            yield found.module or ""


def _bodies(path: Path) -> Iterator[int]:
    """Lines of the body of every `execute`, without its docstring."""
    for found in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(found, ast.FunctionDef) and found.name == "execute":
            body = found.body[ast.get_docstring(found) is not None :]
            yield (body[-1].end_lineno or 0) - body[0].lineno + 1 if body else 0


def main() -> int:
    """Print every count, and what a list of them names."""
    for name, value in counts().items():
        number = len(value) if isinstance(value, list) else value
        print(f"{number:10.3f}  {name}" if isinstance(value, float) else f"{number:10,}  {name}")
        for line in value if isinstance(value, list) else ():
            print(f"{'':12}{line}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
