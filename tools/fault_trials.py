"""Try faults: one process has collected the tests and started ComfyUI, and a fork of it is made for
each fault.

In the fork the functions' code is replaced, in every module that has been loaded from the file, and
the file itself in the copy of the pack, for what is imported later. What no test notices so is
tried once more in a process that imports the changed file: functions that act while modules are
imported (schemas, tables) are only seen there.
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import gc
import inspect
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from .fault_draws import Fault

if TYPE_CHECKING:
    import pytest

_FILES = {"unit": 8, "comfy": 3, "robustness": 2}  # test files of a kind that are run for a fault
#: Names of functions that say nothing about what they do.
_EVERYWHERE = ("execute", "define_schema", "run", "call", "work", "read", "write", "load", "save")
#: These look at files as they are, of which a copy has no history.
_STRUCTURE = (
    "test_arrows",
    "test_faults",
    "test_gates",
    "test_import_cost",
    "test_pack_rules",
    "test_registry_archive",
    "test_repository",
)
#: Holds names, defaults and ranges of all inputs.
_SCHEMA_TEST = "tests/comfy/test_node_contract.py"
_PATIENCE = 8.0  # seconds to wait for a second of computing
_ARGUMENTS = [
    "-q",
    "-s",
    "-p",
    "no:cacheprovider",
    "--tb=no",
    "-m",
    "not slow",
    "--continue-on-collection-errors",
]


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """``result``: noticed, survived (all tests passed) or unfinished (the limit came first);
    ``by``: a test's id; ``alone``: seconds of computing that an unfinished test had to itself.
    """

    result: str
    by: str = ""
    alone: float = 0.0


@dataclass(frozen=True)
class Keywords:
    """What a test of a function names: ``direct``, its name; ``around``, its class, what uses it in
    its file, by however many steps, and the nodes that are made so.
    """

    direct: frozenset[str]
    around: frozenset[str]

    def rank(self, text: str) -> int:
        """How near a source is to the function: 0 names it, 1 what uses it, 2 neither."""
        if _names(text, self.direct):
            return 0
        return 1 if _names(text, self.around) else 2


def keywords(fault: Fault, root: Path) -> Keywords:
    """What a test of the function of a fault may name."""
    path = fault.function.split(".")
    uses: dict[str, set[str]] = {}
    ids: dict[str, set[str]] = {}
    for node in ast.parse((root / fault.file).read_text("utf-8")).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            inner = list(ast.walk(node))
            uses[node.name] = {found.id for found in inner if isinstance(found, ast.Name)}
            ids[node.name] = {found.value for found in inner if _is_node_id(found)}
    around = {path[0]}
    wave = {path[0]}
    while wave:
        wave = {name for name, used in uses.items() if used & wave} - around
        around |= wave
    nodes = {node_id for name in around for node_id in ids.get(name, ())}
    # A method is named by its own name; one that every class has, by its class and node.
    direct = _tellable({path[-1]}) or _tellable({path[0], *ids.get(path[0], ())})
    return Keywords(direct, _tellable(around | nodes))


def _tellable(names: set[str]) -> frozenset[str]:
    return frozenset(
        name for name in names if name not in _EVERYWHERE and not name.startswith("__")
    )


def _is_node_id(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and re.fullmatch(r"GBX_\w+", node.value) is not None
    )


def _names(text: str, words: frozenset[str]) -> bool:
    """Whether a source names one of some words as a whole."""
    return any(re.search(rf"\b{re.escape(word)}\b", text) for word in words)


class Concern:
    """Which tests concern a file of the pack: those that reach it through imports, nearest
    first.
    """

    def __init__(self, root: Path):
        self._root, self._uses = root, {}
        ids = {}
        for path in (root / "nodes").rglob("nodes_*.py"):
            for node_id in re.findall(r"\"(GBX_\w+)\"", path.read_text("utf-8")):
                ids.setdefault(node_id, path.relative_to(root).as_posix())
        for folder in ("nodes", "kernels", "tests", "studies", "tools"):
            for path in (root / folder).rglob("*.py"):
                file = path.relative_to(root).as_posix()
                self._uses[file] = set(self._imports(file, path.read_text("utf-8"), ids)) - {
                    file,
                    "nodes/menu.py",
                }

    def _imports(self, file: str, text: str, ids: dict[str, str]) -> Iterator[str]:
        package = file.split("/")[:-1]
        if file == "kernels/table.py":  # which names the modules of its backends
            yield from (
                path.relative_to(self._root).as_posix()
                for path in self._root.glob("kernels/*/*.py")
            )
        for node in ast.walk(ast.parse(text)):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name.split(".") for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                base = package[: len(package) - node.level + 1] if node.level else []
                base = [*base, *(node.module.split(".") if node.module else ())]
                names = [base, *([*base, alias.name] for alias in node.names)]
            elif (
                isinstance(node, ast.Constant)
                and isinstance(node.value, str)
                and file.startswith("tests/")
            ):
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
        """A few test files of tests/<kind>: those that name the function or its node first, then
        the nearest; those with the file's name and the family's own before others'.
        """
        steps, wave, step = {fault.file: 0}, {fault.file}, 0
        while wave:
            step += 1
            wave = {file for file, used in self._uses.items() if file not in steps and used & wave}
            steps |= dict.fromkeys(wave, step)
        stem = Path(fault.file).stem.removeprefix("nodes_").removesuffix("_comfy")
        words = keywords(fault, self._root)
        near = [
            (
                words.rank((self._root / file).read_text("utf-8")),
                not Path(file).stem.removeprefix("test_").startswith(stem),
                step,
                fault.family not in file,
                file,
            )
            for file, step in steps.items()
            if re.fullmatch(rf"tests/{kind}/(.+/)?test_\w+\.py", file)
            and Path(file).stem not in _STRUCTURE
        ]
        files = [file for *_, file in sorted(near)[: _FILES[kind]]]
        if kind == "unit" and fault.function.startswith(("draw_", "plot_")):
            files = ["tests/unit/test_figures.py", *files]
        if kind == "comfy" and self._makes_inputs(fault):
            files = [_SCHEMA_TEST, *(file for file in files if file != _SCHEMA_TEST)]
        return files

    def _makes_inputs(self, fault: Fault) -> bool:
        """Whether a function makes inputs of nodes."""
        if fault.function.endswith(".define_schema") or Path(fault.file).stem == "schema":
            return True
        if not fault.file.startswith("nodes/") or "." in fault.function:
            return False
        source = (self._root / fault.file).read_text("utf-8")
        for node in ast.parse(source).body:
            if isinstance(node, ast.FunctionDef) and node.name == fault.function:
                text = ast.get_source_segment(source, node) or ""
                return re.search(r"\w_input\(|\.Input\(", text) is not None
        return False


def copy_pack(root: Path, into: Path) -> None:
    """Copy what git knows of a repository, or would; the environment and ComfyUI by a link."""
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


def loaded_functions(folder: Path) -> list[types.FunctionType]:
    """The functions of this process that were loaded from files of a folder."""
    # By type(): isinstance asks lazy objects for their class, which makes some of them warn.
    functions = (value for value in gc.get_objects() if type(value) is types.FunctionType)
    return [
        function for function in functions if function.__code__.co_filename.startswith(str(folder))
    ]


def replaced_code(fault: Fault, path: Path, functions: Sequence[types.FunctionType]) -> None:
    """Put a fault into those of ``functions`` that were loaded from ``path``.

    Raises ValueError where a function cannot take the code: it has other names of the functions
    around it.
    """
    source = path.read_bytes()
    text = fault.applied(source)
    before = _code_objects(source, path, fault.function)
    after = _code_objects(text, path, fault.function)
    defaults = _changed_defaults(source, text, fault.function)
    for function in functions:
        code = function.__code__
        if code.co_filename != str(path) or (code.co_qualname, code.co_firstlineno) not in before:
            continue
        if (code.co_qualname, code.co_firstlineno) in after:
            function.__code__ = after[code.co_qualname, code.co_firstlineno]
        if code.co_qualname == fault.function:
            _set_defaults(function, defaults)
        if fault.function.endswith(
            ".define_schema"
        ):  # which ComfyUI has called when it loaded the pack
            node = function.__globals__[fault.function.split(".")[0]]
            if getattr(node, "SCHEMA", None) is not None:
                node.GET_SCHEMA()


def _code_objects(text: bytes, path: Path, name: str) -> dict[tuple[str, int], types.CodeType]:
    """The compiled functions of a name, and those inside of them, by name and first line.

    Getter and setter share a name. Several of one name in one line, as lambdas may be, are left
    out: which is which is not known.
    """
    waiting = [compile(text, str(path), "exec", dont_inherit=True)]
    found: dict[tuple[str, int], list[types.CodeType]] = {}
    while waiting:
        code = waiting.pop()
        if code.co_qualname == name or code.co_qualname.startswith(f"{name}.<locals>."):
            found.setdefault((code.co_qualname, code.co_firstlineno), []).append(code)
        waiting += [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]
    return {place: codes[0] for place, codes in found.items() if len(codes) == 1}


def _changed_defaults(source: bytes, text: bytes, name: str) -> dict[str, ast.expr]:
    """By name of the argument, the default that is another one."""
    before, after = (dict(_defaults(ast.parse(code), name)) for code in (source, text))
    return {
        argument: default
        for argument, default in after.items()
        if argument in before and ast.dump(before[argument]) != ast.dump(default)
    }


def _defaults(tree: ast.AST, name: str) -> Iterator[tuple[str, ast.expr]]:
    for part in name.split("."):
        tree = next(node for node in tree.body if getattr(node, "name", None) == part)
    given = [*tree.args.posonlyargs, *tree.args.args]
    first = len(given) - len(tree.args.defaults)
    for argument, default in zip(given[first:], tree.args.defaults, strict=True):
        yield argument.arg, default
    for argument, default in zip(tree.args.kwonlyargs, tree.args.kw_defaults, strict=True):
        if default is not None:
            yield argument.arg, default


def _set_defaults(function: types.FunctionType, changed: dict[str, ast.expr]) -> None:
    code = function.__code__
    names = code.co_varnames[: code.co_argcount]
    for argument, default in changed.items():
        expression = compile(ast.Expression(default), code.co_filename, "eval", dont_inherit=True)
        value = eval(expression, function.__globals__)  # the pack's own source
        if argument in names:
            values = list(function.__defaults__)
            values[names.index(argument) - len(names)] = value
            function.__defaults__ = tuple(values)
        else:
            function.__kwdefaults__ = function.__kwdefaults__ | {argument: value}


class _Watch:
    """A plugin of pytest that tells the parent which test is under way and which one failed."""

    def __init__(self, pipe: int):
        self._pipe = pipe

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.tell("started", nodeid)

    def pytest_runtest_logreport(self, report) -> None:
        if report.failed:
            self.tell("failed", report.nodeid)

    def tell(self, event: str, name: str) -> None:
        """One line of JSON, with the seconds that this process has computed."""
        os.write(self._pipe, (json.dumps([event, name, time.process_time()]) + "\n").encode())


def forked(work: Callable[[_Watch], None], limit: float) -> Outcome:
    """Run ``work`` in a fork of this process; a test that fails in it, or the one under way when
    the limit came.

    ``limit``: seconds of computing; a busy machine says nothing.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        import resource  # not on Windows

        os.close(reading)
        os.setsid()
        resource.setrlimit(resource.RLIMIT_CPU, (round(limit), round(limit)))
        silent = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silent, 1)
        os.dup2(silent, 2)
        watch = _Watch(writing)
        try:
            work(watch)
        except BaseException as error:
            watch.tell("failed", repr(error))
        finally:
            os._exit(0)
    os.close(writing)
    return _watched(child, reading, limit)


def _watched(child: int, reading: int, limit: float) -> Outcome:
    """What a child tells; it and whatever it has started are gone afterwards."""
    end = time.monotonic() + _PATIENCE * limit
    os.set_blocking(reading, False)
    text, status = b"", None
    while status is None:
        done, code = os.waitpid(child, os.WNOHANG)
        if done or time.monotonic() > end:
            status = code if done else signal.SIGKILL
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child, signal.SIGKILL)
        else:
            time.sleep(0.05)
        with contextlib.suppress(BlockingIOError):
            while chunk := os.read(reading, 1 << 16):
                text += chunk
    if not done:
        os.waitpid(child, 0)
    os.close(reading)
    under_way = ""
    begun = 0.0
    for line in text.decode().splitlines():
        event, name, begun = json.loads(line)
        if event == "failed":
            return Outcome(result="noticed", by=name)
        under_way = name
    if os.WIFSIGNALED(status):
        ended_by_limit = os.WTERMSIG(status) in (signal.SIGKILL, signal.SIGXCPU)
        result = "unfinished" if ended_by_limit else "noticed"
        return Outcome(result=result, by=under_way, alone=limit - begun)
    return Outcome(result="survived")


class Server:
    """A plugin of pytest that, once all tests are collected, tries faults instead of running
    them.
    """

    def __init__(
        self, copy_root: Path, trials: Sequence[tuple[Fault, list[str]]], limit: float, tell
    ):
        self._root = copy_root
        self._trials = trials
        self._limit = limit
        self._tell = tell
        self._failing: set[str] = set()  # which fail without any fault

    def pytest_runtestloop(self, session) -> bool:
        self._session = session
        if any(
            name.startswith(("tests/comfy/", "tests/robustness/"))
            for _, names in self._trials
            for name in names
        ):
            self._start_comfyui()
        gc.collect()
        self._functions = loaded_functions(self._root)
        gc.freeze()  # else the first collection of each child copies everything
        for number, (fault, names) in enumerate(self._trials):
            begun = time.monotonic()
            outcome = self._try(fault, names)
            self._tell(number, outcome, time.monotonic() - begun)
        return True

    def _start_comfyui(self) -> None:
        """Start ComfyUI once; in each child its folders are those of the child's own test run."""
        import importlib

        in_process, comfyui = (
            importlib.import_module(f"tools.launcher.{name}") for name in ("in_process", "comfyui")
        )
        # The child of one fault must not find what another one has written.
        with tempfile.TemporaryDirectory(prefix="faults-comfy-") as folder:
            started = in_process.start(comfyui.locate(), Path(folder))
        import folder_paths

        def start(_comfyui: Path, base: Path):
            in_process._own_folders(folder_paths, base)
            return started

        in_process.start = start

    def _try(self, fault: Fault, names: list[str]) -> Outcome:
        path = self._root / fault.file
        source = path.read_bytes()
        words = keywords(fault, self._root)
        while True:
            items = [item for item in self._items(names) if item.nodeid not in self._failing]
            # Tests that name the function first: the sooner one fails, the sooner a fault ends.
            items.sort(
                key=lambda item: (
                    not item.nodeid.startswith(_SCHEMA_TEST),
                    words.rank(_source(item)),
                )
            )
            try:
                outcome = forked(
                    lambda watch, items=items: self._run(items, watch, fault), self._limit
                )
            finally:
                path.write_bytes(source)
            if outcome.result == "survived" or not outcome.by.startswith("tests/"):
                return outcome
            if outcome.result == "unfinished" and outcome.alone < self._limit / 2:
                return outcome  # there were many tests, of which none is endless
            suspect = [item for item in items if item.nodeid == outcome.by]
            without = forked(
                lambda watch, suspect=suspect: self._run(suspect, watch, None), self._limit
            )
            if without.result != "survived":
                self._failing.add(outcome.by)
                continue
            if outcome.result == "unfinished":
                try:
                    alone = forked(
                        lambda watch, suspect=suspect: self._run(suspect, watch, fault), self._limit
                    )
                finally:
                    path.write_bytes(source)
                # A test that ends without the fault and never with it has noticed.
                return Outcome(
                    result="unfinished" if alone.result == "survived" else "noticed", by=outcome.by
                )
            return outcome

    def _items(self, names: list[str]) -> Iterator:
        for name in names:
            for item in self._session.items:
                if item.nodeid == name or item.nodeid.startswith((f"{name}::", f"{name}[")):
                    yield item

    def _run(self, items: list, watch: _Watch, fault: Fault | None) -> None:
        """Run tests in this process, a child, up to the first that fails."""
        from _pytest import main as pytest_main

        if fault is not None:
            path = self._root / fault.file
            text = fault.applied(path.read_bytes())
            with contextlib.suppress(ValueError):
                replaced_code(fault, path, self._functions)
            path.write_bytes(text)
        session = self._session
        session.items, session.testsfailed, session.shouldfail = items, 0, False
        session.config.option.maxfail = 1
        session.config.pluginmanager.register(watch)
        # Beside the copy, with which it goes where this process is killed.
        with tempfile.TemporaryDirectory(prefix="child-", dir=self._root.parent) as folder:
            session.config._tmp_path_factory._basetemp = Path(folder).resolve()
            with contextlib.suppress(session.Failed, session.Interrupted):
                pytest_main.pytest_runtestloop(session)


def _source(item: pytest.Item) -> str:
    """The source of a test, and the values that it is tried with; empty where it has none."""
    try:
        return f"{item.nodeid}\n{inspect.getsource(item.function)}"
    except (AttributeError, OSError, TypeError):
        return item.nodeid


def serve(
    copy_root: Path,
    trials: Sequence[tuple[Fault, list[str]]],
    limit: float,
    tell: Callable[[int, Outcome, float], None],
) -> None:
    """Try faults with their tests, in a process that collects once; ``tell`` gets number, outcome
    and seconds.
    """
    import pytest

    os.chdir(copy_root)
    files = sorted({name.split("::")[0] for _, names in trials for name in names})
    server = Server(copy_root, trials, limit, tell)
    pytest.main([*_ARGUMENTS, *files], plugins=[server])


def try_afresh(copy_root: Path, fault: Fault, names: list[str], limit: float) -> Outcome:
    """Try a fault in a process that imports everything with it; as ``serve`` does with one."""
    names = sorted(names, key=lambda name: name != _SCHEMA_TEST)
    path = copy_root / fault.file
    source = path.read_bytes()
    failing: list[str] = []

    def run(watch: _Watch, names: list[str]) -> None:
        import pytest

        os.chdir(copy_root)
        left_out = [argument for name in failing for argument in ("--deselect", name)]
        pytest.main(["-x", *_ARGUMENTS, *names, *left_out], plugins=[watch])

    while True:
        path.write_bytes(fault.applied(source))
        try:
            outcome = forked(lambda watch: run(watch, names), limit)
        finally:
            path.write_bytes(source)
        if outcome.result != "noticed" or not outcome.by.startswith("tests/"):
            return outcome
        suspect = outcome.by
        without = forked(lambda watch, suspect=suspect: run(watch, [suspect]), limit)
        if without.result == "survived":
            return outcome
        failing.append(suspect)  # it fails without the fault too


def prepare(comfyui: Path | None) -> None:
    """Import in this process what the tests import, but nothing of the copy; with ComfyUI where its
    folder is given.
    """
    import hypothesis  # noqa: F401
    import matplotlib.figure  # noqa: F401
    import pytest  # noqa: F401
    import scipy.optimize  # noqa: F401
    import sklearn.cluster  # noqa: F401
    import torch

    torch.set_num_threads(1)
    if comfyui is None:
        return
    from tools.launcher import boot

    boot.prepare(comfyui, cpu=True)
    import nodes

    asyncio.run(nodes.init_extra_nodes(init_custom_nodes=False, init_api_nodes=False))


def forget_tools() -> None:
    """Let the tests import the launcher of the copy, not the one beside this file."""
    for name in [name for name in sys.modules if name.split(".")[0] == "tools"]:
        del sys.modules[name]
