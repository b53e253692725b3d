"""Faults that can be put into the pack, and which of them a seed draws.

A fault is one small change within one function: a comparison, an operation, a number, a condition,
a statement or a `finally` left out, another function of the same signature, a strength handed on
doubled (which belongs to no draw: all of them are tried). Changes that merely crash are none:
arguments exchanged, a result that is None, a body that does nothing are noticed by whatever test
comes by.
"""

from __future__ import annotations

import ast
import builtins
import copy
import random
import re
import subprocess
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

FAMILIES = ("weights", "activations", "conditioning", "noise", "neurons")
REST = "host, common, kernels"
DOUBLED = "doubled"
_HUNK = re.compile(r"^@@ -\S+ \+(\d+)(?:,(\d+))? @@", re.M)

_COMPARISONS = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
_OPERATIONS = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.Mod: ast.Mult,
    ast.Pow: ast.Mult,
    ast.FloorDiv: ast.Mult,
}  # fmt: skip
_NAMES = dict(
    pair
    for first, second in (
        ("min", "max"), ("any", "all"), ("amin", "amax"), ("argmin", "argmax"), ("floor", "ceil"),
        ("mean", "sum"),
        ("minimum", "maximum"), ("zeros_like", "ones_like"), ("zeros", "ones"),
        ("startswith", "endswith"),
    )
    for pair in ((first, second), (second, first))
)  # fmt: skip


@dataclass(frozen=True)
class Fault:
    """One change in one function: ``before`` and ``after`` are the source of the expression or
    statement.
    """

    family: str
    file: str
    function: str
    kind: str
    before: str
    after: str
    place: int  # among equal changes of the function, from 0
    start: int  # bytes of the file
    end: int

    @property
    def identity(self) -> tuple[str, str, str, str, str, int]:
        """What a fault is known by when lines above it change, or its file moves."""
        stem = Path(self.file).stem.removesuffix("_comfy")
        return (stem, self.function, self.kind, short(self.before), short(self.after), self.place)

    def applied(self, source: bytes) -> bytes:
        """The file with the fault in it."""
        return source[: self.start] + self.after.encode() + source[self.end :]


def faults_in(file: str, source: bytes) -> dict[str, list[Fault]]:
    """Every fault that can be put into a file, by the qualified name of its function; nested ones
    are part of it.
    """
    found: dict[str, list[Fault]] = {}
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    parts = Path(file).parts
    family = parts[1] if parts[0] == "nodes" and parts[1] in FAMILIES else REST
    for name, function in _functions(ast.parse(source), ""):
        made = found.setdefault(name, [])  # a getter and a setter share a name
        for kind, node, changed in _changes(function):
            place = [starts[line - 1] + column for line, column in _ends(node)]
            before, after = source[slice(*place)].decode(), ast.unparse(changed)
            if isinstance(node, ast.expr) and not isinstance(changed, ast.Constant | ast.Name):
                after = f"({after})"
            elif isinstance(node, ast.stmt):
                after = after.replace("\n", "\n" + " " * node.col_offset)
            equal = sum((kind, before, after) == (one.kind, one.before, one.after) for one in made)
            made.append(Fault(family, file, name, kind, before, after, equal, *place))
    return {name: faults for name, faults in found.items() if faults}


def _functions(tree: ast.AST, prefix: str) -> Iterator[tuple[str, ast.FunctionDef]]:
    for node in getattr(tree, "body", ()):
        if isinstance(node, ast.FunctionDef):
            yield prefix + node.name, node
        elif isinstance(node, ast.ClassDef):
            yield from _functions(node, f"{prefix}{node.name}.")


def _ends(node) -> tuple[tuple[int, int], tuple[int, int]]:
    return (node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset)


def _changes(function: ast.FunctionDef) -> Iterator[tuple[str, ast.AST, ast.AST]]:
    """Kind, node of the source, and what stands in its place."""
    body = function.body[1:] if ast.get_docstring(function) is not None else function.body
    for node in [
        *(inner for part in body for inner in _code(part)),
        *(
            default
            for default in (*function.args.defaults, *function.args.kw_defaults)
            if default is not None
        ),
    ]:
        yield from ((kind, node, changed) for kind, changed in _of_node(node))
        if isinstance(node, ast.If | ast.IfExp):
            yield "condition", node.test, ast.UnaryOp(ast.Not(), node.test)
        if isinstance(node, ast.Call):
            for value in [*node.args, *(keyword.value for keyword in node.keywords)]:
                if _is_strength(value):
                    yield DOUBLED, value, ast.BinOp(ast.Constant(2), ast.Mult(), value)


def _is_strength(value: ast.expr) -> bool:
    """Whether a value is a variable or attribute that is named as a strength."""
    match value:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name.lstrip("_").endswith("strength")
    return False


def _code(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes below one, without annotations, messages, docstrings and the inside of
    f-strings.
    """
    if isinstance(node, ast.Raise | ast.JoinedStr | ast.Assert | ast.Import | ast.ImportFrom):
        return
    yield node
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from _code(child)


def _of_node(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    match node:
        case ast.Compare(ops=[operator]) if type(operator) in _COMPARISONS:
            yield "comparison", _with(node, ops=[_COMPARISONS[type(operator)]()])
        case ast.BinOp(op=operator) if type(operator) in _OPERATIONS and not _is_sequence(node):
            yield "operation", _with(node, op=_OPERATIONS[type(operator)]())
        case ast.BoolOp(op=operator):
            yield (
                "boolean",
                _with(node, op=ast.Or() if isinstance(operator, ast.And) else ast.And()),
            )
        case ast.UnaryOp(op=ast.Not()):
            yield "boolean", node.operand
        case ast.UnaryOp(op=ast.USub()) if not isinstance(node.operand, ast.Constant):
            yield "operation", node.operand
        case ast.Constant(value=bool(value)):
            yield "number", ast.Constant(not value)
        case ast.Constant(value=int(value)):
            yield "number", ast.Constant(value + 1)
        case ast.Constant(value=float(value)):
            yield "number", ast.Constant(value * 2 if value else 1.0)
        case ast.Expr(value=ast.Call()) | ast.AugAssign():
            yield "statement", ast.Pass()
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            yield "statement", ast.Pass()
        case ast.Try(finalbody=[_, *_]):
            yield "finally", _with(node, finalbody=[ast.Pass()])
    match node:
        case ast.Call(func=ast.Name(id=name)) if name in _NAMES and hasattr(builtins, _NAMES[name]):
            yield "name", _with(node, func=ast.Name(_NAMES[name]))
        case ast.Call(func=ast.Attribute(value=value, attr=name)) if name in _NAMES:
            yield "name", _with(node, func=ast.Attribute(value, _NAMES[name]))


def _with(node: ast.AST, **changed) -> ast.AST:
    made = copy.copy(node)
    for name, value in changed.items():
        setattr(made, name, value)
    return made


def _is_sequence(node: ast.BinOp) -> bool:
    """Whether texts, lists or tuples are joined, which know no other operation."""
    sequences = ast.JoinedStr | ast.List | ast.ListComp | ast.Tuple
    return any(
        isinstance(side, sequences)
        or (isinstance(side, ast.Constant) and isinstance(side.value, str))
        for side in (node.left, node.right)
    )


def every_fault(root: Path) -> Iterator[Fault]:
    """Every fault of nodes/ and kernels/, file by file."""
    for path in sorted([*(root / "nodes").rglob("*.py"), *(root / "kernels").rglob("*.py")]):
        file = path.relative_to(root).as_posix()
        if file != "nodes/menu.py":
            for faults in faults_in(file, path.read_bytes()).values():
                yield from faults


def changed_since(root: Path, commit: str) -> set[tuple[str, str]]:
    """File and name of the functions of which a line is another one than at a commit, or gone."""
    command = ["git", "diff", "--unified=0", "-M", "--no-prefix", commit, "--", "nodes", "kernels"]
    listed = subprocess.run(command, cwd=root, capture_output=True, check=True).stdout.decode()
    changed = set()
    for section in listed.split("\ndiff --git ")[0:]:
        named = re.search(r"^\+\+\+ (\S+\.py)$", section, re.M)
        if named is None or not (root / named[1]).is_file():
            continue
        lines: set[int] = set()
        for start, count in _HUNK.findall(section):
            length = int(count or 1)
            # Where lines are only gone, git names the line before them.
            lines |= (
                {int(start), int(start) + 1}
                if not length
                else set(range(int(start), int(start) + length))
            )
        for name, function in _functions(ast.parse((root / named[1]).read_bytes()), ""):
            first = min(
                [function.lineno, *(decorator.lineno for decorator in function.decorator_list)]
            )
            if any(first <= line <= function.end_lineno for line in lines):
                changed.add((named[1], name))
    return changed


def draw(
    root: Path,
    seed: int,
    *,
    count: int = 60,
    functions: Collection[tuple[str, str]] | None = None,
    without: Collection[tuple] = (),
) -> list[Fault]:
    """Faults of as many functions, the families in turn; of ``functions`` alone, if they are given.

    ``without``: identities of faults that no test could notice; the next one of the family is drawn
    for each.
    """
    generator = random.Random(seed)
    choices: dict[tuple[str, str], list[Fault]] = {}
    for fault in every_fault(root):
        if fault.kind == DOUBLED:
            continue
        if functions is None or (fault.file, fault.function) in functions:
            choices.setdefault((fault.file, fault.function), []).append(fault)
    queues: dict[str, list[Fault]] = {family: [] for family in (*FAMILIES, REST)}
    for place in generator.sample(sorted(choices), len(choices)):
        kind = generator.choice(sorted({fault.kind for fault in choices[place]}))
        fault = generator.choice([fault for fault in choices[place] if fault.kind == kind])
        if fault.identity not in without:
            queues[fault.family].append(fault)
    drawn: list[Fault] = []
    while len(drawn) < count and any(queues.values()):
        for queue in queues.values():
            if queue and len(drawn) < count:
                drawn.append(queue.pop(0))
    return drawn


def short(text: str) -> str:
    """A source as a line of the table holds it."""
    text = " ".join(text.split())
    return text if len(text) <= 160 else f"{text[:157]}..."
