"""The command that puts faults into the pack: what it changes, what a seed draws, and what a fork
of the tests sees.
"""

import argparse
import ast
import collections
import importlib.util
import json
import subprocess
import sys

import pytest
import repository

from tools import fault_draws, fault_trials, faults

SOURCE = b'''"""A module."""

def scaled(values, low=0, high=1.0):
    """Docstring with 1 < 2."""
    if not values and low < high:
        raise ValueError("1 < 2")
    try:
        total = sum(values) / len(values)  # \xc3\xbc
    finally:
        done(low, high)
    log.info("x")
    return min(total - low, high) if low == 0 else None


class Box:
    def put(self, value: int = 3):
        self.value = value
        self.count += 1
'''


def made():
    return fault_draws.faults_in("nodes/weights/x.py", SOURCE)


def test_a_fault_changes_one_thing_and_the_file_still_parses():
    kinds = collections.Counter()
    for name, found in made().items():
        for fault in found:
            text = fault.applied(SOURCE)
            ast.parse(text)
            assert text != SOURCE and fault.function == name and fault.family == "weights"
            assert SOURCE[fault.start : fault.end].decode() == fault.before
            assert text[: fault.start] == SOURCE[: fault.start] and text.endswith(
                SOURCE[fault.end :]
            )
            kinds[fault.kind] += 1
    assert set(made()) == {"scaled", "Box.put"}
    assert set(kinds) == {
        "comparison", "operation", "boolean", "condition", "number", "statement", "finally", "name"
    }  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "before", "after"),
    [
        ("comparison", "low < high", "(low <= high)"),
        ("operation", "total - low", "(total + low)"),
        ("boolean", "not values", "values"),
        ("number", "1.0", "2.0"),
        ("number", "3", "4"),
        ("name", "min(total - low, high)", "(max(total - low, high))"),
        ("statement", "self.count += 1", "pass"),
        ("statement", "self.value = value", "pass"),
    ],
)
def test_what_stands_in_its_place(kind, before, after):
    every = [fault for found in made().values() for fault in found]
    assert (kind, before, after) in {(fault.kind, fault.before, fault.after) for fault in every}


def test_messages_and_docstrings_are_no_places():
    assert not any(
        '"1 < 2"' in fault.before and fault.kind != "finally"
        for found in made().values()
        for fault in found
    )


def test_changes_that_crash_wherever_they_run_are_no_faults():
    source = b"def f(a, b):\n    g(a, b)\n    c = [a] + b\n    return sum(c), a.sum(), f'{a}' + b\n"
    every = [
        fault
        for found in fault_draws.faults_in("nodes/weights/x.py", source).values()
        for fault in found
    ]
    assert {fault.before for fault in every} == {"g(a, b)", "a.sum()"}


def test_sixty_faults_ten_a_family_by_seed():
    drawn = fault_draws.draw(repository.ROOT, 5)
    assert drawn == fault_draws.draw(repository.ROOT, 5) != fault_draws.draw(repository.ROOT, 6)
    families = (*fault_draws.FAMILIES, fault_draws.REST)
    assert collections.Counter(fault.family for fault in drawn) == dict.fromkeys(families, 10)
    assert len({(fault.file, fault.function) for fault in drawn}) == 60
    for fault in drawn:
        ast.parse(fault.applied((repository.ROOT / fault.file).read_bytes()))


def test_a_fault_that_no_test_could_notice_is_replaced_by_the_next_of_its_family():
    drawn = fault_draws.draw(repository.ROOT, 5, count=12)
    again = fault_draws.draw(repository.ROOT, 5, count=12, without={drawn[1].identity})
    assert drawn[1] not in again and len(again) == 12
    assert collections.Counter(fault.family for fault in again) == collections.Counter(
        fault.family for fault in drawn
    )
    assert {fault for fault in drawn if fault.family != drawn[1].family} <= set(again)
    assert len(set(again) - set(drawn)) == 1


def committed(folder):
    """A repository with one file of three functions, and its commit."""

    def git(*words):
        named = ("-c", "user.name=n", "-c", "user.email=e")
        done = subprocess.run(["git", *named, *words], cwd=folder, check=True, capture_output=True)
        return done.stdout.decode().strip()

    path = folder / "nodes" / "weights" / "x.py"
    path.parent.mkdir(parents=True)
    path.write_text(
        "def first(a):\n    return a + 1\n\n\nclass Box:\n    def put(self, a):\n        b = a + "
        "2\n        return b + 3\n\n\ndef last(a):\n    c = a + 4\n    return c + 5\n"
    )
    git("init", "-q")
    git("add", "-A")
    git("commit", "-qm", "x")
    return path, git("rev-parse", "HEAD")


def test_functions_that_were_changed_since_a_commit(tmp_path):
    path, commit = committed(tmp_path)
    assert fault_draws.changed_since(tmp_path, commit) == set()
    text = path.read_text()
    path.write_text(text.replace("b = a + 2", "b = a + 7"))
    assert fault_draws.changed_since(tmp_path, commit) == {("nodes/weights/x.py", "Box.put")}
    path.write_text(text.replace("    c = a + 4\n", ""))  # a line less, and none that is new
    assert fault_draws.changed_since(tmp_path, commit) == {("nodes/weights/x.py", "last")}
    path.write_text("VALUE = 3\n\n\n" + text)  # moved, not changed
    assert fault_draws.changed_since(tmp_path, commit) == set()
    drawn = fault_draws.draw(tmp_path, 1, functions={("nodes/weights/x.py", "last")})
    assert [fault.function for fault in drawn] == ["last"]


MODULE = """
import contextlib
import functools

def plain(a, b=2, *, c=3.0):
    return a + b * c

@contextlib.contextmanager
def wrapped(a):
    yield a * 2

@functools.lru_cache
def cached(a):
    return a - 1

class Box:
    def __init__(self, a):
        super().__init__()
        self._a = a

    @property
    def a(self):
        return self._a + 1

    @a.setter
    def a(self, a):
        self._a = a + 1

    @staticmethod
    def still(a):
        return a * 3

def maker(k):
    def inner(a):
        return a * k + 1

    return inner

TRIPLE = maker(3)
"""


@pytest.fixture
def module(tmp_path):
    """A module from a file, and a way to put a fault into it that is known by its function and
    source.
    """
    path = tmp_path / "nodes" / "weights" / "x.py"
    path.parent.mkdir(parents=True)
    path.write_text(MODULE)
    spec = importlib.util.spec_from_file_location("faulted", path)
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    found = fault_draws.faults_in("nodes/weights/x.py", path.read_bytes())

    def put(function, before, after):
        fault = next(
            each
            for each in found[function]
            if each.before == before and each.after.strip("()") == after
        )
        fault_trials.replaced_code(fault, path, fault_trials.loaded_functions(tmp_path))

    return loaded, put


def test_code_is_replaced_in_what_is_already_imported(module):
    loaded, put = module
    box, plain = loaded.Box(1), loaded.plain  # held by others, as tests hold what they import
    assert (plain(1), box.a, loaded.Box.still(2), loaded.cached(5)) == (7.0, 2, 6, 4)
    put("plain", "a + b * c", "a - b * c")
    assert plain(1) == -5.0
    put("Box.still", "a * 3", "a / 3")
    assert loaded.Box.still(3) == 1
    put("cached", "a - 1", "a + 1")
    assert loaded.cached(6) == 7
    put("wrapped", "a * 2", "a / 2")
    with loaded.wrapped(4) as value:
        assert value == 2
    put("maker", "a * k", "a / k")  # also in what it has made
    assert loaded.TRIPLE(6) == 3 and loaded.maker(2)(6) == 4
    put("Box.a", "self._a + 1", "self._a - 1")
    assert box.a == 0
    box.a = 5
    assert box.a == 5  # the setter, of the same name, is as it was


def test_defaults_are_replaced_too(module):
    loaded, put = module
    put("plain", "2", "3")
    assert loaded.plain(1) == 10.0
    put("plain", "3.0", "6.0")
    assert loaded.plain(1, 2) == 13.0


TESTS = """
import importlib.util, os, pathlib

root = pathlib.Path(__file__).parents[2]
spec = importlib.util.spec_from_file_location("thing", root / "nodes" / "weights" / "x.py")
thing = importlib.util.module_from_spec(spec)
spec.loader.exec_module(thing)
TABLE = thing.table()

def test_alone(tmp_path):
    (tmp_path / "x").write_text("x")
    assert thing.seen(3) == 4

def test_that_fails_anyway():
    assert False

def test_endless():
    assert thing.countdown(3) == 0

def test_table():
    assert TABLE == [0, 1]
"""
THING = """
def seen(a):
    return a + 1

def unseen(a):
    return a + 2

def countdown(a):
    while a:
        a -= 1
    return a

def table():
    return [0, 0 + 1]
"""
SCRIPT = """
import json, os, pathlib, runpy, sys
runpy.run_path(sys.argv[1])["load_package"]("tools")
from tools import fault_draws, fault_trials
root = pathlib.Path(sys.argv[2])
faults = list(fault_draws.every_fault(root))
trials = [(fault, ["tests/unit/test_x.py"]) for fault in faults]
def tell(number, outcome, seconds):
    line = [faults[number].function, faults[number].kind, outcome.result, outcome.by]
    print("@", json.dumps(line), flush=True)
if not (child := os.fork()):
    fault_trials.serve(root, trials, 2, tell)
    os._exit(0)
os.waitpid(child, 0)
for fault, names in trials:
    if fault.function == "table" and fault.kind == "operation":
        print("!", fault_trials.try_afresh(root, fault, names, 20))
"""


@pytest.mark.skipif(sys.platform == "win32", reason="there is no fork")
def test_each_fault_has_a_fork_of_the_tests_that_were_collected_once(tmp_path):
    (tmp_path / "tests" / "unit").mkdir(parents=True)
    (tmp_path / "nodes" / "weights").mkdir(parents=True)
    (tmp_path / "kernels").mkdir()
    (tmp_path / "pyproject.toml").write_text(
        "[tool.pytest.ini_options]\naddopts = ['--import-mode=importlib']\n"
    )
    (tmp_path / "tests" / "unit" / "test_x.py").write_text(TESTS)
    (tmp_path / "nodes" / "weights" / "x.py").write_text(THING)
    command = [
        sys.executable,
        "-P",
        "-c",
        SCRIPT,
        str(repository.ROOT / "run.py"),
        str(tmp_path.resolve()),
    ]
    output = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    found = [json.loads(line[2:]) for line in output.stdout.splitlines() if line.startswith("@ ")]
    outcomes = {
        (function, kind): (result, by.partition("::")[2]) for function, kind, result, by in found
    }
    assert outcomes["seen", "operation"] == ("noticed", "test_alone"), output.stdout + output.stderr
    assert outcomes["unseen", "operation"] == ("survived", "")
    assert outcomes["countdown", "statement"] == ("noticed", "test_endless")  # which never ends
    assert outcomes["table", "operation"] == (
        "survived",
        "",
    )  # it has run when the tests were collected
    assert "! Outcome(result='noticed', by='tests/unit/test_x.py::test_table'" in output.stdout
    assert (tmp_path / "nodes" / "weights" / "x.py").read_text() == THING


def test_the_table_keeps_what_is_equivalent_and_draws_another(tmp_path):
    options = argparse.Namespace(seed=5, since="", count=6, again=False)
    rows = []
    pairs = faults.chosen(repository.ROOT, rows, options)
    assert [row for _, row in pairs] == rows and len(rows) == 6
    for row in rows:
        row.outcome = "noticed"
    rows[0].outcome, rows[2].outcome, rows[2].equivalent = "survived", "survived", "for a reason"
    table = tmp_path / "faults.csv"
    faults.write_table(rows, table)
    rows = faults.read_table(table)
    options.again = True
    again = faults.chosen(repository.ROOT, rows, options)
    assert again[0][1] is rows[0] and len(again) == 2 and len(rows) == 7
    assert again[1][1].family == rows[2].family and again[1][1].outcome == ""
    # What has no place any more is replaced too; what was noticed counts.
    rows[1].function, rows[3].function, rows[3].outcome = "gone", "gone_too", "survived"
    last = faults.chosen(repository.ROOT, rows, options)
    assert len(rows) == 7 and "gone_too" not in {row.function for row in rows}
    assert "gone" in {row.function for row in rows} and len(last) == 3


def test_the_tests_of_a_file_are_those_that_reach_it():
    concern = fault_trials.Concern(repository.ROOT)

    def of(file, kind, function="in_no_test"):
        return concern.tests(
            fault_draws.Fault("weights", file, function, "number", "", "", 0, 0, 0), kind
        )

    assert of("nodes/weights/directions.py", "unit")[0].startswith("tests/unit/weights/")
    assert "tests/unit/kernels/test_mean_attention.py" in of(
        "kernels/triton/mean_attention.py", "unit"
    )
    assert "tests/comfy/weights/test_guidance.py" in of("nodes/weights/nodes_guidance.py", "comfy")
    # those that name the node of a class, or of what a function is part of, come first
    scans = "tests/comfy/neurons/test_neuron_nodes.py"
    assert of("nodes/neurons/nodes_report.py", "comfy", "MemorizationReport.execute")[0] == scans
    assert of("nodes/neurons/nodes_report.py", "comfy", "_draw_pages")[0] == scans
    reports = "tests/unit/weights/test_numbers_in_reports.py"
    assert reports in of("nodes/weights/directions.py", "unit", "split_half")[:3]
    contract = "tests/comfy/test_node_contract.py"
    for file, function in (
        ("nodes/weights/nodes_guidance.py", "W2WGuidance.define_schema"),
        ("nodes/weights/nodes_train_slider.py", "_training_inputs"),
        ("nodes/host/schema.py", "float_input"),
    ):
        assert of(file, "comfy", function)[0] == contract
    assert contract not in of("nodes/weights/nodes_guidance.py", "comfy", "W2WGuidance.execute")


def test_tests_that_name_a_function_come_before_those_of_what_uses_it():
    def of(file, function):
        fault = fault_draws.Fault("weights", file, function, "number", "", "", 0, 0, 0)
        return fault_trials.keywords(fault, repository.ROOT)

    words = of("nodes/weights/projection.py", "_lengths")
    assert words.direct == {"_lengths"}
    assert {"_lengths", "nearest_members", "label_point", "project"} <= words.around
    texts = ("projection._lengths(space)", "projection.project(space)", "space.mean")
    assert [words.rank(text) for text in texts] == [0, 1, 2]
    words = of("nodes/weights/nodes_guidance.py", "W2WGuidance.execute")
    assert words.direct == {"W2WGuidance", "GBX_W2WGuidance"}
    words = of("nodes/weights/space.py", "Point.tolerances")
    assert words.direct == {"tolerances"} and "Point" in words.around
    words = of("nodes/weights/nodes_train_slider.py", "_training_inputs")
    assert "GBX_TrainSlider" in words.around and words.direct == {"_training_inputs"}
