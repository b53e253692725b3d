"""The command that puts faults into the pack: what it changes, and that a seed draws the same faults again."""

import ast
import collections

import pytest
import repository

from tools import faults

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
    return faults.faults_in("nodes/weights/x.py", SOURCE)


def test_a_fault_changes_one_thing_and_the_file_still_parses():
    kinds = collections.Counter()
    for name, found in made().items():
        for fault in found:
            text = fault.applied(SOURCE)
            ast.parse(text)
            assert text != SOURCE and fault.function == name and fault.family == "weights"
            assert SOURCE[fault.start : fault.end].decode() == fault.before
            assert text[: fault.start] == SOURCE[: fault.start] and text.endswith(SOURCE[fault.end :])
            kinds[fault.kind] += 1
    assert set(made()) == {"scaled", "Box.put"}
    assert {"comparison", "operation", "boolean", "condition", "number", "result"} <= set(kinds)
    assert {"statement", "finally", "arguments", "name", "does nothing"} <= set(kinds)


@pytest.mark.parametrize(
    ("kind", "before", "after"),
    [
        ("comparison", "low < high", "(low <= high)"),
        ("operation", "total - low", "(total + low)"),
        ("boolean", "not values", "values"),
        ("number", "1.0", "2.0"),
        ("number", "3", "4"),
        ("arguments", "done(low, high)", "(done(high, low))"),
        ("name", "min(total - low, high)", "(max(total - low, high))"),
        ("statement", "self.count += 1", "pass"),
        ("does nothing", "self.value = value", "return"),
    ],
)
def test_what_stands_in_its_place(kind, before, after):
    every = [fault for found in made().values() for fault in found]
    assert (kind, before, after) in {(fault.kind, fault.before, fault.after) for fault in every}


def test_messages_and_docstrings_are_no_places():
    assert not any(
        '"1 < 2"' in fault.before and fault.kind != "finally" for found in made().values() for fault in found
    )


def test_sixty_faults_ten_a_family_by_seed():
    drawn = faults.draw(repository.ROOT, 5)
    assert drawn == faults.draw(repository.ROOT, 5) != faults.draw(repository.ROOT, 6)
    assert collections.Counter(fault.family for fault in drawn) == dict.fromkeys((*faults.FAMILIES, faults.REST), 10)
    assert len({(fault.file, fault.function) for fault in drawn}) == 60
    for fault in drawn:
        ast.parse(fault.applied((repository.ROOT / fault.file).read_bytes()))


def test_the_tests_of_a_file_are_those_that_reach_it():
    concern = faults.Concern(repository.ROOT)

    def of(file, kind, function="f"):
        return concern.tests(faults.Fault("weights", file, function, "number", "", "", 0, 0, 0), kind)

    assert of("nodes/weights/directions.py", "unit")[0].startswith("tests/unit/weights/")
    assert "tests/unit/kernels/test_mean_attention.py" in of("kernels/triton/mean_attention.py", "unit")
    assert "tests/comfy/weights/test_guidance.py" in of("nodes/weights/nodes_guidance.py", "comfy")
    contract = "tests/comfy/test_node_contract.py"
    assert of("nodes/weights/nodes_guidance.py", "comfy", "W2WGuidance.define_schema")[0] == contract
