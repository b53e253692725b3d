"""Counts what keeps the house in order, and what it takes to extend it: `python -P tools/gates.py`.

Every function counts one thing in a repository; tests/unit/tools/test_gates.py holds what each may
be at most.
"""

from __future__ import annotations

import ast
import json
import re
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
#: How many equal statements in a row are a repetition. Statements and not lines, since a statement
#: has as many lines as the formatter gives it.
EQUAL_STATEMENTS = 8
#: How many equal arguments and elements in a row are one, in statements that list many, as a schema
#: does.
EQUAL_ELEMENTS = 18
#: How many equal lines of JavaScript are one.
EQUAL_LINES = 12
#: The most values that a call may give by position.
MOST_POSITIONS = 4
#: The most words of a study's details.
MOST_DETAILS = 1500
#: Characters of a line, as the formatter's in pyproject.toml.
LINE_LENGTH = 100
#: Functions of others that are called as they are documented: by position.
_BY_POSITION = re.compile(
    r"(comfy|ctypes|library|nn|np|tl)\..*|executor|zip|io\.NodeOutput"
    r"|(kind|adapter_maps\[.*\])\.load"
)
#: Dataclasses whose fields are options that a caller gives.
_SETTINGS = re.compile(r"(Settings|Options|Config|Request|Plan|Inputs)$")
_STYLED = ("benchmarks", "kernels", "nodes", "studies", "tests", "tools")
#: Characters of an expression that is never taken apart.
_SHORT = 60
_INSIDERS = ("host", "demo")
_INTERNALS = re.compile(
    r"^(comfy|comfy_extras|comfy_execution|folder_paths|node_helpers|server)(\.|$)"
)
#: Pages whose length is their purpose: lists, tables that a command makes, and what is looked up
#: and not read.
_REFERENCE = {
    "api",
    "architecture",
    "citations",
    "models",
    "nodes",
    "performance",
    "real_checkpoints",
    "troubleshooting",
}
_GENERATED = re.compile(r"<!-- (numbers|nodes|plot)\b.*?<!-- end -->", re.DOTALL)
#: What a command writes into any page: tables, numbers, inputs and links.
_BY_COMMAND = re.compile(r"<!-- (?!end )\w[^>]*-->.*?<!-- end -->", re.DOTALL)
#: Remarks for a command, which no reader sees.
_REMARK = re.compile(r"<!--.*?-->", re.DOTALL)
#: A page that `run.py models` writes as a whole.
_MATRIX = "docs/models.md"
#: Pages that a person reads, as paths from the root.
_PAGES = ("README.md", "docs/*.md", "web/docs/*.md", "studies/**/*.md")
#: Nodes whose code is followed: by name, the file and the class.
_FOLLOWED = {
    "W2W Edit": ("nodes/weights/nodes_points.py", "W2WEdit"),
    "Edit by Words": ("nodes/activations/nodes_steering.py", "EditByWords"),
    "W2W Train Space": ("nodes/weights/nodes_train_space.py", "W2WTrainSpace"),
    "NeMo Localize": ("nodes/neurons/nodes_nemo.py", "NemoLocalize"),
}


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
    """Files of nodes/ that import ComfyUI's internals and are neither host, demo, nor the ComfyUI
    half of a method.
    """
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


def document_words(root: Path = ROOT) -> int:
    """Words of the written pages of docs/, without generated tables and what is looked up."""
    pages = [path for path in (root / "docs").glob("*.md") if path.stem not in _REFERENCE]
    return sum(len(_GENERATED.sub("", path.read_text("utf-8")).split()) for path in pages)


def page_words(root: Path = ROOT, generated: bool = True) -> int:
    """Words of README, docs, help pages and studies, but for the matrix of networks; without those
    that a command writes where not ``generated``.
    """
    paths = [path for pages in _PAGES for path in root.glob(pages)]
    written = [path for path in paths if path != root / _MATRIX]
    texts = [path.read_text("utf-8") for path in written]
    if not generated:
        texts = [_BY_COMMAND.sub("", text) for text in texts]
    return sum(map(_shown_words, texts))


def longest_details(root: Path = ROOT) -> list[str]:
    """Details of studies with more than MOST_DETAILS words, with those that a command writes."""
    counts = {
        path.relative_to(root).as_posix(): _shown_words(path.read_text("utf-8"))
        for path in sorted(root.glob("studies/*/details.md"))
    }
    return [f"{name}: {words} words" for name, words in counts.items() if words > MOST_DETAILS]


def _shown_words(page: str) -> int:
    """Words of a page as a reader sees it."""
    return len(_REMARK.sub("", page).split())


def input_count(root: Path = ROOT) -> int:
    """Inputs of all nodes, sockets and widgets."""
    contract = json.loads((root / "tests" / "node_contract.json").read_text("utf-8"))
    return sum(len(node["inputs"]) for node in contract.values())


def modules_followed(root: Path = ROOT) -> dict[str, list[str]]:
    """The modules with a definition that each of _FOLLOWED reaches."""
    _load_tools()
    from tools import reach

    return {
        name: reach.modules_reached(root, file, class_)
        for name, (file, class_) in _FOLLOWED.items()
    }


def equal_runs(root: Path = ROOT) -> list[str]:
    """Runs of EQUAL_STATEMENTS equal statements, or EQUAL_ELEMENTS equal elements of statements, in
    Python of nodes/ and tools/, and of EQUAL_LINES equal lines in web/: where each stands first and
    again.

    Layout and comments do not count, nor do signatures: those of `execute` follow from the inputs.
    """
    sources = sorted(
        path for folder in ("nodes", "tools", "web") for path in _sources(root / folder)
    )
    python = [path for path in sources if path.suffix == ".py"]
    bodies = {path: ast.parse(path.read_text("utf-8")).body for path in python}
    repeated: dict[tuple[Path, Path], int] = {}
    for pieces, length in (
        ({path: list(_statements(body)) for path, body in bodies.items()}, EQUAL_STATEMENTS),
        ({path: list(_elements(body)) for path, body in bodies.items()}, EQUAL_ELEMENTS),
        ({path: _lines_of(path) for path in sources if path.suffix != ".py"}, EQUAL_LINES),
    ):
        for places, line in _repetitions(pieces, length):
            repeated.setdefault(places, line)
    return [
        f"{again.relative_to(root).as_posix()}:{line} repeats {first.relative_to(root).as_posix()}"
        for (first, again), line in sorted(repeated.items())
    ]


def _repetitions(
    pieces: dict[Path, list[tuple[int, str]]], length: int
) -> Iterator[tuple[tuple[Path, Path], int]]:
    """The file where a run of equal pieces stands first, the one where it stands again, and its
    line there.
    """
    seen: dict[tuple[str, ...], tuple[Path, int]] = {}
    for path, numbered in pieces.items():
        for start in range(len(numbered) - length + 1):
            run = tuple(text for _, text in numbered[start : start + length])
            line = numbered[start][0]
            first = seen.setdefault(run, (path, line))
            if first != (path, line):
                yield (first[0], path), line


def positional_calls(root: Path = ROOT) -> list[str]:
    """Calls in nodes/ and kernels/ with more than MOST_POSITIONS values by position: whoever puts
    a parameter in between shifts them without an error.

    Values in a tuple that is unpacked in the call count each. Launches of Triton kernels and
    functions of others, which take positions, do not count.
    """
    found = []
    for path, tree in _trees(root, "nodes", "kernels"):
        for function in ast.walk(tree):
            if isinstance(function, ast.Module | ast.FunctionDef | ast.AsyncFunctionDef):
                tuples = _tuples(function)
                found += [
                    _place(root, path, call)
                    for call in _own_calls(function)
                    if _positions(call, tuples) > MOST_POSITIONS
                ]
    return found


def packed_assignments(root: Path = ROOT) -> list[str]:
    """Assignments of several values to several names at once, `a, b = x, y`, in nodes/ and
    kernels/: a line with more than one fact. A swap, `a, b = b, a`, is one.
    """
    return [
        _place(root, path, node)
        for path, tree in _trees(root, "nodes", "kernels")
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign)
        and isinstance(node.value, ast.Tuple)
        and any(isinstance(target, ast.Tuple) for target in node.targets)
    ]


def nested_conditionals(root: Path = ROOT) -> list[str]:
    """Conditional expressions within conditional expressions in nodes/ and kernels/."""
    return [
        _place(root, path, outer)
        for path, tree in _trees(root, "nodes", "kernels")
        for outer in ast.walk(tree)
        if isinstance(outer, ast.IfExp)
        and any(isinstance(inner, ast.IfExp) for inner in ast.walk(outer) if inner is not outer)
    ]


def untyped_arguments(root: Path = ROOT) -> list[str]:
    """Arguments without a type in nodes/ and kernels/, those of functions within functions and of
    `*args` included.

    Triton's functions have none: it takes types from the call, and reads annotations as its own.
    """
    return [
        f"{_place(root, path, argument)} {argument.arg}"
        for path, tree in _trees(root, "nodes", "kernels")
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        and not any("jit" in ast.unparse(line) for line in function.decorator_list)
        for argument in _arguments(function)
        if argument.annotation is None and argument.arg not in ("self", "cls")
    ]


def long_lines(root: Path = ROOT) -> list[str]:
    """Lines of Python over LINE_LENGTH characters in the whole repository, but for single words
    such as addresses, and for what a linter's remark adds to a line.
    """
    return [
        f"{path.relative_to(root).as_posix()}:{number}"
        for folder in _STYLED
        for path in sorted((root / folder).rglob("*.py"))
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1)
        if len(line.partition("  # noqa")[0]) > LINE_LENGTH and len(line.split()) > 1
    ]


def positional_settings(root: Path = ROOT) -> list[str]:
    """Dataclasses of settings in nodes/ and kernels/ that can be made by position."""
    return [
        f"{_place(root, path, node)} {node.name}"
        for path, tree in _trees(root, "nodes", "kernels")
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef) and _SETTINGS.search(node.name)
        for line in map(ast.unparse, node.decorator_list)
        if line.startswith("dataclass") and "kw_only=True" not in line
    ]


def counts(root: Path = ROOT) -> dict[str, float | list[str]]:
    """Everything by name."""
    return (
        {
            "lines of nodes/host": host_lines(root),
            "lines of nodes/": pack_lines(root),
            "fraction of lines in nodes/ that explain": docstring_fraction(root),
            "imports of ComfyUI outside of host, demo and *_comfy.py": comfy_imports(root),
            "imports of a file of nodes by another": sideways_imports(root),
            "words of the written documents": document_words(root),
            "words of README, docs, help pages and studies": page_words(root),
            "of these, words that no command writes": page_words(root, generated=False),
            f"studies' details over {MOST_DETAILS} words": longest_details(root),
            "inputs of all nodes": input_count(root),
            f"calls with more than {MOST_POSITIONS} values by position": positional_calls(root),
            "packed assignments a thousand lines": (
                1000 * len(packed_assignments(root)) / max(pack_lines(root), 1)
            ),
            "nested conditional expressions": nested_conditionals(root),
            "arguments without a type": untyped_arguments(root),
            f"lines over {LINE_LENGTH} characters": long_lines(root),
            "dataclasses of settings that can be made by position": positional_settings(root),
            "nodes without a card": nodes_without_card(root),
            "dead links in the registry archive": dead_archive_links(root),
            f"runs of {EQUAL_STATEMENTS} equal statements, {EQUAL_ELEMENTS} equal elements or "
            f"{EQUAL_LINES} equal lines": equal_runs(root),
        }
        | {
            f"modules with a definition that {name} reaches": len(modules)
            for name, modules in modules_followed(root).items()
        }
        | {
            f"files to touch for {name}, texts apart": trial.files
            for name, trial in _trials().items()
        }
    )


def nodes_without_card(root: Path = ROOT) -> list[str]:
    """Nodes, experimental ones too, that no workflow or blueprint shows that ships."""
    _load_tools()
    from tools import cards

    return cards.without_card(root)


def dead_archive_links(root: Path = ROOT) -> list[str]:
    """Links of pages in the registry's archive to files that are not in it."""
    _load_tools()
    from tools import archive

    return archive.dead_links(root, archive.names(root))


def _trials() -> dict:
    """The additions of tools/trials.py, which lies beside this file."""
    _load_tools()
    from tools.trials import TRIALS

    return TRIALS


def _trees(root: Path, *folders: str) -> Iterator[tuple[Path, ast.Module]]:
    for folder in folders:
        for path in sorted((root / folder).rglob("*.py")):
            yield path, ast.parse(path.read_text("utf-8"))


def _place(root: Path, path: Path, node: ast.expr | ast.stmt | ast.arg) -> str:
    return f"{path.relative_to(root).as_posix()}:{node.lineno}"


def _own_calls(function: ast.AST) -> Iterator[ast.Call]:
    """The calls of a function or a module, without those of functions within."""
    for child in ast.iter_child_nodes(function):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if isinstance(child, ast.Call):
            yield child
        yield from _own_calls(child)


def _tuples(function: ast.AST) -> dict[str, int]:
    """How many values the names have that a function gives a tuple to."""
    return {
        node.targets[0].id: len(node.value.elts)
        for node in ast.walk(function)
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and isinstance(node.value, ast.Tuple | ast.List)
    }


def _positions(call: ast.Call, tuples: dict[str, int]) -> int:
    """How many values a call gives by position; 0 where the function called takes them so."""
    name = ast.unparse(call.func)
    if isinstance(call.func, ast.Subscript) or _BY_POSITION.fullmatch(name):
        return 0
    count = 0
    for argument in call.args:
        value = argument.value if isinstance(argument, ast.Starred) else None
        if isinstance(value, ast.Tuple | ast.List):
            count += len(value.elts)
        elif isinstance(value, ast.Name):
            count += tuples.get(value.id, 0)  # what a caller handed in is passed on
        else:
            count += 1
    return count - (name.rpartition(".")[2] == "partial")


def _arguments(function: ast.FunctionDef | ast.AsyncFunctionDef) -> list[ast.arg]:
    listed = function.args
    return [
        *listed.posonlyargs,
        *listed.args,
        *listed.kwonlyargs,
        *filter(None, (listed.vararg, listed.kwarg)),
    ]


def _load_tools() -> None:
    """Make `tools` a package, where this file was started as a program."""
    if "tools" not in sys.modules:
        runpy.run_path(str(ROOT / "run.py"))["load_package"]("tools")


def _sources(folder: Path) -> Iterator[Path]:
    yield from (path for path in folder.rglob("*") if path.suffix in (".py", ".js", ".mjs"))


def _lines_of(path: Path) -> list[tuple[int, str]]:
    """Number and text of the lines of a file that are not blank."""
    lines = enumerate(path.read_text("utf-8").splitlines(), 1)
    return [(number, line.strip()) for number, line in lines if line.strip()]


def _statements(body: list[ast.stmt]) -> Iterator[tuple[int, str]]:
    """Line and text of each statement; of a compound one its head, without signatures."""
    for statement in body:
        yield from _head(statement)
        for block in _blocks(statement):
            yield from _statements(block)


def _head(statement: ast.stmt) -> Iterator[tuple[int, str]]:
    """The line and text of a simple statement, or of what a compound one has before its colon."""
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
        return
    if list(_blocks(statement)):
        heads = [
            ast.unparse(child)
            for child in ast.iter_child_nodes(statement)
            if isinstance(child, ast.expr | ast.withitem)
        ]
        yield statement.lineno, f"{type(statement).__name__} {', '.join(heads)}"
    else:
        yield statement.lineno, ast.unparse(statement)


def _blocks(statement: ast.stmt) -> Iterator[list[ast.stmt]]:
    """The blocks of a compound statement."""
    holders = [
        statement,
        *getattr(statement, "handlers", ()),
        *getattr(statement, "cases", ()),
    ]
    for holder in holders:
        for name in ("body", "orelse", "finalbody"):
            block = getattr(holder, name, None)
            if isinstance(block, list) and block:
                yield block


def _elements(body: list[ast.stmt]) -> Iterator[tuple[int, str]]:
    """Line and text of statements, those that list much as their arguments and elements."""
    for statement in body:
        value = getattr(statement, "value", None)
        if isinstance(value, ast.expr):
            yield from _element(value, type(statement).__name__)
        else:
            yield from _head(statement)
        for block in _blocks(statement):
            yield from _elements(block)


def _element(value: ast.expr, name: str) -> Iterator[tuple[int, str]]:
    """An expression as one piece where it is short or lists nothing, else as its elements."""
    text = f"{name}={ast.unparse(value)}"
    if len(text) <= _SHORT or not isinstance(value, ast.Call | ast.List | ast.Tuple | ast.Dict):
        yield value.lineno, text
    elif isinstance(value, ast.Call):
        yield value.lineno, f"{name}={ast.unparse(value.func)}"
        for argument in value.args:
            yield from _element(argument, "")
        for keyword in value.keywords:
            yield from _element(keyword.value, keyword.arg or "**")
    elif isinstance(value, ast.Dict):
        for key, entry in zip(value.keys, value.values, strict=True):
            yield from _element(entry, ast.unparse(key) if key else "**")
    else:
        for element in value.elts:
            yield from _element(element, "")


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
