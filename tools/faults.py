"""Would the suite notice? Puts faults into a copy of the pack, one at a time, and runs the tests that concern each.

    python -P tools/faults.py --seed 1 [--limit 60]    draw sixty faults, ten a family, and try each
    python -P tools/faults.py --seed 1 --again         try again what was not noticed, with the tests of today

A fault is one small change within one function: a comparison, an operation, a number, a condition, a statement left
out, a `finally` left out, two arguments exchanged, a result that is None. Functions are drawn first, then a kind of
fault, then its place. The tests that concern a file are those that import it, by however many steps, nearest first:
unit tests, then those inside a ComfyUI. Noticed: one of them fails, and passes without the fault. The table is
studies/results/faults.csv; its column `equivalent` is written by hand: why no test could notice the fault.
"""

from __future__ import annotations

import argparse
import ast
import asyncio
import contextlib
import copy
import csv
import os
import random
import re
import runpy
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TABLE = ROOT / "studies" / "results" / "faults.csv"
FAMILIES = ("weights", "activations", "conditioning", "noise", "neurons")
REST = "host, common, kernels"
EACH = 10
_FILES = {"unit": 8, "comfy": 3}  # test files of a kind that are run for a fault
#: These look at files as they are, of which a copy has no history.
_STRUCTURE = ("test_arrows", "test_import_cost", "test_pack_rules", "test_registry_archive", "test_repository")
_SCHEMA_TESTS = (
    "tests/comfy/test_node_contract.py",
    "tests/comfy/test_every_workflow.py::test_the_file_is_what_its_description_makes",  # which holds the defaults
)
_PATIENCE = 8.0  # seconds to wait for a second of computing
_LISTED = re.compile(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", re.M)

_COMPARISONS = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
_OPERATIONS = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.Mod: ast.Mult, ast.Pow: ast.Mult,
    ast.FloorDiv: ast.Mult,
}  # fmt: skip
_NAMES = dict(
    pair
    for first, second in (
        ("min", "max"), ("any", "all"), ("amin", "amax"), ("argmin", "argmax"), ("floor", "ceil"), ("mean", "sum"),
        ("minimum", "maximum"), ("zeros_like", "ones_like"), ("zeros", "ones"), ("startswith", "endswith"),
    )
    for pair in ((first, second), (second, first))
)  # fmt: skip


@dataclass(frozen=True)
class Fault:
    """One change in one function: ``before`` and ``after`` are the source of the expression or statement."""

    family: str
    file: str
    function: str
    kind: str
    before: str
    after: str
    place: int  # among equal changes of the function, from 0
    start: int  # bytes of the file
    end: int

    def applied(self, source: bytes) -> bytes:
        """The file with the fault in it."""
        return source[: self.start] + self.after.encode() + source[self.end :]


def faults_in(file: str, source: bytes) -> dict[str, list[Fault]]:
    """Every fault that can be put into a file, by the qualified name of its function; nested ones are part of it."""
    found: dict[str, list[Fault]] = {}
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    parts = Path(file).parts
    family = parts[1] if parts[0] == "nodes" and parts[1] in FAMILIES else REST
    for name, function in _functions(ast.parse(source), ""):
        made = []
        for kind, node, changed in _changes(function):
            place = [starts[line - 1] + column for line, column in _ends(node)]
            before, after = source[slice(*place)].decode(), ast.unparse(changed)
            if isinstance(node, ast.expr) and not isinstance(changed, ast.Constant | ast.Name):
                after = f"({after})"
            elif isinstance(node, ast.stmt):
                after = after.replace("\n", "\n" + " " * node.col_offset)
            equal = sum((kind, before, after) == (one.kind, one.before, one.after) for one in made)
            made.append(Fault(family, file, name, kind, before, after, equal, *place))
        if made:
            found[name] = made
    return found


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
        *(default for default in (*function.args.defaults, *function.args.kw_defaults) if default is not None),
    ]:
        yield from ((kind, node, changed) for kind, changed in _of_node(node))
        if isinstance(node, ast.If | ast.IfExp):
            yield "condition", node.test, ast.UnaryOp(ast.Not(), node.test)
    returns = [inner for part in body for inner in ast.walk(part) if isinstance(inner, ast.Return | ast.Yield)]
    if body and not returns and not isinstance(body[0], ast.Raise | ast.Pass):
        yield "does nothing", body[0], ast.Return(None)


def _code(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes below one, without annotations, messages, docstrings and the inside of f-strings."""
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
        case ast.BinOp(op=operator) if type(operator) in _OPERATIONS and not _is_text(node):
            yield "operation", _with(node, op=_OPERATIONS[type(operator)]())
        case ast.BoolOp(op=operator):
            yield "boolean", _with(node, op=ast.Or() if isinstance(operator, ast.And) else ast.And())
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
        case ast.Return(value=value) if value is not None and not isinstance(value, ast.Constant):
            yield "result", ast.Return(ast.Constant(None))
        case ast.Expr(value=ast.Call()) | ast.AugAssign():
            yield "statement", ast.Pass()
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            yield "statement", ast.Pass()
        case ast.Try(finalbody=[_, *_]):
            yield "finally", _with(node, finalbody=[ast.Pass()])
        case ast.Call(args=[first, second, *rest]) if ast.dump(first) != ast.dump(second) and not any(
            isinstance(one, ast.Starred) for one in (first, second)
        ):
            yield "arguments", _with(node, args=[second, first, *rest])
    match node:
        case ast.Call(func=ast.Name(id=name)) if name in _NAMES:
            yield "name", _with(node, func=ast.Name(_NAMES[name]))
        case ast.Call(func=ast.Attribute(value=value, attr=name)) if name in _NAMES:
            yield "name", _with(node, func=ast.Attribute(value, _NAMES[name]))


def _with(node: ast.AST, **changed) -> ast.AST:
    made = copy.copy(node)
    for name, value in changed.items():
        setattr(made, name, value)
    return made


def _is_text(node: ast.BinOp) -> bool:
    return any(
        isinstance(side, ast.JoinedStr) or (isinstance(side, ast.Constant) and isinstance(side.value, str))
        for side in (node.left, node.right)
    )


def _every_fault(root: Path) -> Iterator[Fault]:
    for path in sorted([*(root / "nodes").rglob("*.py"), *(root / "kernels").rglob("*.py")]):
        file = path.relative_to(root).as_posix()
        if file != "nodes/menu.py":
            for faults in faults_in(file, path.read_bytes()).values():
                yield from faults


def draw(root: Path, seed: int) -> list[Fault]:
    """Sixty faults, ten a family, of as many functions."""
    generator, functions = random.Random(seed), {}
    for fault in _every_fault(root):
        functions.setdefault((fault.file, fault.function), []).append(fault)
    by_family = {family: [] for family in (*FAMILIES, REST)}
    for faults in functions.values():
        by_family[faults[0].family].append(faults)
    drawn = []
    for some in by_family.values():
        for faults in generator.sample(some, EACH):
            kind = generator.choice(sorted({fault.kind for fault in faults}))
            drawn.append(generator.choice([fault for fault in faults if fault.kind == kind]))
    return drawn


class Concern:
    """Which tests concern a file of the pack: those that reach it through imports, nearest first."""

    def __init__(self, root: Path):
        self._root, self._uses = root, {}
        ids = {}
        for path in (root / "nodes").rglob("nodes_*.py"):
            for node_id in re.findall(r"\"(GBX_\w+)\"", path.read_text("utf-8")):
                ids.setdefault(node_id, path.relative_to(root).as_posix())
        for folder in ("nodes", "kernels", "tests", "studies", "tools"):
            for path in (root / folder).rglob("*.py"):
                file = path.relative_to(root).as_posix()
                self._uses[file] = set(self._imports(file, path.read_text("utf-8"), ids)) - {file, "nodes/menu.py"}

    def _imports(self, file: str, text: str, ids: dict[str, str]) -> Iterator[str]:
        package = file.split("/")[:-1]
        if file == "kernels/table.py":  # which names the modules of its backends
            yield from (path.relative_to(self._root).as_posix() for path in self._root.glob("kernels/*/*.py"))
        for node in ast.walk(ast.parse(text)):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name.split(".") for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                base = package[: len(package) - node.level + 1] if node.level else []
                base = [*base, *(node.module.split(".") if node.module else ())]
                names = [base, *([*base, alias.name] for alias in node.names)]
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and file.startswith("tests/"):
                if node.value in ids and "/tests/" not in file:
                    yield ids[node.value]
                if re.fullmatch(r"(glassbox\.)?(nodes|kernels)(\.\w+)+", node.value):
                    names = [node.value.split(".")]
            for name in names:
                parts = name[1:] if name[:1] == ["glassbox"] else name
                for candidate in (f"{'/'.join(parts)}.py", f"{'/'.join(parts)}/__init__.py"):
                    if parts and (self._root / candidate).is_file():
                        yield candidate
                if parts and (self._root / "tests" / "helpers" / f"{parts[0]}.py").is_file():
                    yield f"tests/helpers/{parts[0]}.py"

    def tests(self, fault: Fault, kind: str) -> list[str]:
        """A few test files of tests/<kind>, nearest first; those with its name and the family's own before others'."""
        steps, wave, step = {fault.file: 0}, {fault.file}, 0
        while wave:
            step += 1
            wave = {file for file, used in self._uses.items() if file not in steps and used & wave}
            steps |= dict.fromkeys(wave, step)
        stem = Path(fault.file).stem.removeprefix("nodes_").removesuffix("_comfy")
        found = [
            (not Path(file).stem.removeprefix("test_").startswith(stem), step, fault.family not in file, file)
            for file, step in steps.items()
            if re.fullmatch(rf"tests/{kind}/(.+/)?test_\w+\.py", file) and Path(file).stem not in _STRUCTURE
        ]
        files = [file for *_, file in sorted(found)[: _FILES[kind]]]
        if kind == "unit" and fault.function.startswith(("draw_", "plot_")):
            files = ["tests/unit/test_figures.py", *files]
        if kind == "comfy" and fault.function.endswith("define_schema"):
            files = [*_SCHEMA_TESTS, *files]
        return files


def _copied(root: Path, into: Path) -> None:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=root,
        capture_output=True,
        check=True,
    ).stdout.decode()
    for name in filter(None, listed.split("\0")):
        if (root / name).is_file():
            (into / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / name, into / name)
    for folder in (".venv", ".cache"):
        (into / folder).symlink_to(root / folder)


def _pytest(copy_root: Path, tests: list[str], limit: float, without: Sequence[str] = ()) -> tuple[str, str]:
    """("passed" | "failed" | "unfinished", the first test that failed) of a forked process, which shares imports."""
    output = copy_root / ".faults.log"
    child = os.fork()
    if not child:
        import resource  # not on Windows

        os.setsid()
        resource.setrlimit(resource.RLIMIT_CPU, (round(limit), round(limit)))  # a busy machine says nothing
        with output.open("w") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        os.chdir(copy_root)
        import pytest

        left_out = [argument for name in without for argument in ("--deselect", name)]
        code = pytest.main(
            ["-x", "-q", "-p", "no:cacheprovider", "--tb=no", "-rfE", "-m", "not slow", *tests, *left_out]
        )
        sys.stdout.flush()
        os._exit(int(code))
    end = time.monotonic() + _PATIENCE * limit
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            break
        if time.monotonic() > end:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return "unfinished", ""
        time.sleep(0.2)
    if os.WIFSIGNALED(status):
        return "unfinished", ""
    failed = _LISTED.search(output.read_text("utf-8", errors="replace"))
    code = os.waitstatus_to_exitcode(status)
    return ("passed" if code in (0, 5) else "failed"), failed.group(1) if failed else f"exit {code}" * (
        code not in (0, 5)
    )


def _prepare(kind: str, copy_root: Path) -> None:
    """Import in this process what every test of a kind imports, but nothing of the copy."""
    import hypothesis  # noqa: F401
    import matplotlib.figure  # noqa: F401
    import pytest  # noqa: F401
    import scipy.optimize  # noqa: F401
    import sklearn.cluster  # noqa: F401
    import torch

    torch.set_num_threads(1)
    if kind == "comfy":
        boot = runpy.run_path(str(copy_root / "tools" / "launcher" / "boot.py"))
        boot["prepare"](Path(os.environ["GLASSBOX_COMFYUI"]), cpu=True)
        import nodes

        asyncio.run(nodes.init_extra_nodes(init_custom_nodes=False, init_api_nodes=False))


@dataclass
class Row:
    """A line of the table. ``outcome``: noticed, survived (all tests passed), or unfinished (the limit came first)."""

    seed: int
    family: str
    file: str
    function: str
    kind: str
    before: str
    after: str
    place: int
    outcome: str = ""
    by: str = ""
    equivalent: str = ""


def _read() -> list[Row]:
    if not TABLE.is_file():
        return []
    with TABLE.open(encoding="utf-8", newline="") as file:
        return [Row(**{**row, "seed": int(row["seed"]), "place": int(row["place"])}) for row in csv.DictReader(file)]


def _write(rows: list[Row]) -> None:
    with TABLE.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, [field.name for field in fields(Row)], lineterminator="\n")
        writer.writeheader()
        writer.writerows(asdict(row) for row in sorted(rows, key=lambda row: row.seed))


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= 160 else f"{text[:157]}..."


def _try(faults: list[tuple[Fault, Row]], copy_root: Path, limit: float, save) -> None:
    concern, failing = Concern(copy_root), []
    for kind in ("unit", "comfy"):
        _prepare(kind, copy_root)
        for number, (fault, row) in enumerate(faults):
            tests = concern.tests(fault, kind)
            if row.outcome == "noticed" or not tests:
                continue
            path, begun = copy_root / fault.file, time.monotonic()
            source = path.read_bytes()
            while True:
                path.write_bytes(fault.applied(source))
                try:
                    outcome, by = _pytest(copy_root, tests, limit, failing)
                finally:
                    path.write_bytes(source)
                if outcome != "failed" or not by.startswith("tests/") or _pytest(copy_root, [by], limit)[0] != "failed":
                    break
                failing.append(by)  # it fails without the fault too
            row.outcome = {"failed": "noticed", "passed": "survived"}.get(outcome, outcome)
            row.by = by
            seconds = time.monotonic() - begun
            print(
                f"{kind} {number:2d} {seconds:4.0f} s {row.outcome}: {fault.file} {fault.function} {fault.kind}",
                flush=True,
            )
            save()


def _key(row: Row) -> tuple:
    """What a fault is known by when its file has moved."""
    stem = Path(row.file).stem.removesuffix("_comfy")
    return (stem, row.function, row.kind, row.before, row.after, row.place)


def _row(seed: int, fault: Fault) -> Row:
    texts = _short(fault.before), _short(fault.after)
    return Row(seed, fault.family, fault.file, fault.function, fault.kind, *texts, fault.place)


def main(argv: list[str]) -> int:
    """Draw, try and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument(
        "--limit", type=float, default=60.0, help="seconds of computing for a fault and a kind of tests"
    )
    parser.add_argument("--again", action="store_true", help="only what the table has as not noticed")
    parser.add_argument("--list", action="store_true", help="print the faults and their tests, and try none")
    options = parser.parse_args(argv)
    sys.dont_write_bytecode = True
    os.environ |= {"OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    os.environ.setdefault("GLASSBOX_COMFYUI", str(next((ROOT / ".cache").glob("comfyui-*"))))
    with tempfile.TemporaryDirectory(prefix="faults-") as folder:
        copy_root = Path(folder) / "pack"
        copy_root.mkdir()
        _copied(ROOT, copy_root)
        before = [row for row in _read() if row.seed == options.seed]
        if options.again:
            found = {_key(_row(options.seed, fault)): fault for fault in _every_fault(copy_root)}
            pairs = [(found[_key(row)], row) for row in before if row.outcome != "noticed" and _key(row) in found]
            for fault, row in pairs:
                row.file = fault.file
        else:
            before, pairs = [], [(fault, _row(options.seed, fault)) for fault in draw(copy_root, options.seed)]
        if options.list:
            concern = Concern(copy_root)
            for fault, row in pairs:
                print(row.family, row.file, row.function, row.kind, row.before, "->", row.after)
                print("   ", *concern.tests(fault, "unit")[:4], "|", *concern.tests(fault, "comfy")[:4])
            return 0
        own = before or [row for _, row in pairs]
        others = [row for row in _read() if row.seed != options.seed]
        _try(pairs, copy_root, options.limit, lambda: _write([*others, *own]))
    noticed = sum(row.outcome == "noticed" for row in own)
    equivalent = sum(row.outcome != "noticed" and bool(row.equivalent) for row in own)
    print(f"{noticed} of {len(own)} noticed, {equivalent} equivalent")
    return 0


if __name__ == "__main__":
    sys.path[:] = [entry for entry in sys.path if Path(entry).resolve() not in (ROOT, ROOT / "tools")]
    sys.exit(main(sys.argv[1:]))
