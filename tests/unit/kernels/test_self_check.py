"""A kernel's first result is compared with eager; wrong ones are remembered, failures only until
the next start.
"""

import json
import logging
import sys
import types

import kernel_inputs
import pytest
import torch
from glassbox.kernels import dispatch, self_check, table

F32 = torch.float32
CPU = torch.device("cpu")
eager = dispatch.function("eager", "low_rank_apply")


@pytest.fixture(autouse=True)
def start(monkeypatch, tmp_path):
    """A process that starts with an empty memory on one machine; called, it starts again."""

    def again():
        for name in ("_runs", "_wrong"):
            monkeypatch.setattr(self_check, name, {})
        monkeypatch.setattr(self_check, "_logged", set())

    again()
    monkeypatch.setattr(self_check, "machine_name", lambda device: "a GPU")
    monkeypatch.setattr(self_check, "memory_file", lambda: tmp_path / "glassbox" / "kernels.json")
    return again


@pytest.fixture
def memory(tmp_path):
    return tmp_path / "glassbox" / "kernels.json"


def arguments(rows=70):
    return kernel_inputs.low_rank_apply(F32, rows, 6, 2)


def run(kernel, given=None):
    return self_check.run("triton", "low_rank_apply", kernel, eager, given or arguments(), CPU)


def right(**given):
    return eager(**given) * (1 + 1e-6)


def wrong(**given):
    return eager(**given) + 1


def broken(**given):
    raise RuntimeError("Failed to find C compiler\nand more")


def test_a_right_kernel_runs_from_the_second_call_on(memory):
    assert torch.equal(run(right), eager(**arguments()))
    assert torch.equal(run(right), right(**arguments()))
    assert not memory.exists()


def test_each_class_of_inputs_is_compared():
    calls = []

    def counted(**given):
        calls.append(len(given["weight"]))
        return right(**given)

    for rows in (70, 71, 80, 200):  # multiples of 16 are a class of their own
        run(counted, arguments(rows))
    assert calls == [70, 71, 80, 200] and len(self_check._runs) == 3


def test_wrong_once_is_wrong_for_every_class():
    run(wrong)
    assert run(right, arguments(200)) is None


def test_a_wrong_kernel_is_remembered(start, memory, caplog):
    assert torch.equal(run(wrong), eager(**arguments())) and run(wrong) is None
    (error,) = json.loads(memory.read_text())["a GPU"].values()
    assert error.startswith("it errs by") and caplog.records[0].message == (
        f"The triton kernel of low_rank_apply is wrong on this GPU and will not run: {error}. "
        "Please report it."
    )
    for _ in range(2):
        start()
        caplog.clear()
        assert [run(right), run(right)] == [None, None]
        (record,) = caplog.records
        assert record.message.startswith(
            "The kernel triton low_rank_apply does not run: it was wrong on this GPU"
        )
        assert str(memory) in record.message


def test_wrong_holds_for_one_machine(start, monkeypatch, memory):
    run(wrong)
    start()
    monkeypatch.setattr(self_check, "machine_name", lambda device: "a GPU, driver 2")
    assert run(right) is not None and run(right) is not None
    assert list(json.loads(memory.read_text())) == ["a GPU"]


def test_a_failure_lasts_until_the_next_start(start, memory, caplog):
    assert torch.equal(run(broken), eager(**arguments())) and run(broken) is None
    (record,) = caplog.records
    assert record.message == (
        "The triton kernel of low_rank_apply is left out until the next start: RuntimeError: "
        "Failed to find C compiler"
    )
    assert not memory.exists()
    start()
    assert run(right) is not None and torch.equal(run(right), right(**arguments()))


def test_a_kernel_that_fails_later_gives_way(start, memory, caplog):
    """It was compared and right: its later failure is named once, and no file remembers it."""
    run(right)
    before = memory.read_bytes() if memory.exists() else b""
    assert run(broken) is None and run(right) is None
    (record,) = caplog.records
    assert record.message == (
        "The triton kernel of low_rank_apply is left out until the next start: RuntimeError: "
        "Failed to find C compiler"
    )
    assert (memory.read_bytes() if memory.exists() else b"") == before
    start()
    assert run(right) is not None
    assert torch.equal(run(right), right(**arguments()))


def test_a_full_gpu_is_an_error_of_the_caller():
    def full(**given):
        raise torch.OutOfMemoryError

    run(right)
    with pytest.raises(torch.OutOfMemoryError):
        run(full)
    assert run(right) is not None


def test_nothing_is_compared_while_a_graph_is_captured(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    assert (
        self_check.run("triton", "low_rank_apply", right, eager, arguments(), torch.device("cuda"))
        is None
    )
    assert not self_check._runs


def test_the_reference_is_infull_precision():
    before, seen = torch.get_float32_matmul_precision(), []

    def reference(**given):
        seen.append(torch.get_float32_matmul_precision())
        return eager(**given)

    torch.set_float32_matmul_precision("medium")
    try:
        self_check.run("triton", "low_rank_apply", right, reference, arguments(), CPU)
        assert seen == ["highest"] and torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision(before)


def testfull_precision_by_the_newer_name():
    """Once it is used the older one raises, in a process where another pack allows TF32."""
    matmul = torch.backends.cuda.matmul
    if not hasattr(matmul, "fp32_precision"):
        pytest.skip("this PyTorch has the older name alone")
    before = matmul.fp32_precision
    matmul.fp32_precision = "tf32"
    try:
        with pytest.raises(RuntimeError):
            torch.get_float32_matmul_precision()
        with self_check.full_precision():
            assert matmul.fp32_precision == "ieee"
        assert matmul.fp32_precision == "tf32"
    finally:
        matmul.fp32_precision = before


@pytest.mark.parametrize(
    "content", ["{", "[]", '{"a GPU": {}}', '{"a GPU": 5}', '{"a GPU": {"triton": 5}}']
)
def test_a_memory_that_is_damaged(memory, content):
    memory.parent.mkdir()
    memory.write_text(content)
    assert run(wrong) is not None and run(wrong) is None
    assert list(json.loads(memory.read_text())["a GPU"]) == ["triton low_rank_apply"]


def test_without_a_home_or_a_folder_it_holds_for_the_process(start, monkeypatch, memory):
    memory.parent.write_text("a file where the folder would be")
    assert run(wrong) is not None and run(wrong) is None

    def homeless():
        raise RuntimeError("Could not determine home directory.")

    start()
    monkeypatch.setattr(self_check, "memory_file", homeless)
    assert run(wrong) is not None and run(wrong) is None


def test_triton_goes_by_several_names(monkeypatch):
    """Its package for Windows is called triton-windows; the module is the same."""
    monkeypatch.setitem(sys.modules, "triton", types.SimpleNamespace(__version__="3.5.1.post2"))
    assert self_check._triton_version() == "3.5.1.post2"
    monkeypatch.setitem(sys.modules, "triton", None)
    assert self_check._triton_version() == "none"


@pytest.mark.usefixtures("interpreter")
@pytest.mark.parametrize(
    "operation", sorted(name for name, entry in table.TABLE.items() if entry.kernels)
)
def test_every_kernel_passes(operation, caplog):
    """Each in Triton's interpreter, with the tolerances that hold on a GPU."""
    dtype = torch.float16 if operation == "flat_weights" else F32
    given = kernel_inputs.of(operation, dtype)
    pair = (dispatch.function(backend, operation) for backend in ("triton", "eager"))
    for _ in range(2):
        assert self_check.run("triton", operation, *pair, given, CPU) is not None
        pair = (dispatch.function(backend, operation) for backend in ("triton", "eager"))
    assert not caplog.records and list(self_check._runs.values()) == [True]


@pytest.mark.parametrize(
    ("found", "wanted", "agree"),
    [
        ([1.0, float("nan")], [1.0, float("nan")], True),
        ([1.0, float("inf")], [1.0, float("nan")], True),
        ([1.0, 2.0], [1.0, float("nan")], False),
        ([1.0, 2.0], [1.0, 2.1], False),
        ([0.0, 0.0], [0.0, 0.0], True),
        ([1.0], [1.0, 2.0], False),
    ],
)
def test_results_beyond_the_tolerance_disagree(found, wanted, agree):
    error = self_check.disagreement("flat_weights", torch.tensor(found), torch.tensor(wanted), {})
    assert (error is None) == agree


def test_near_ties_may_choose_another_candidate():
    noise, index = kernel_inputs.gaussian(200, 5), torch.zeros(200, dtype=torch.int64)

    def error(count, offset=0.0):
        other, moved = index.clone(), noise + offset
        other[:count], moved[:count] = 1, 7.0
        return self_check.disagreement("nearest_drawn", (moved, other), (noise, index), {})

    assert error(0) is None and error(2) is None
    assert error(3) == "3 of 200 indices differ" and error(2, 1.0).startswith("it errs by")


def test_rounding_to_bfloat16_is_right_and_a_wrong_column_is_not():
    given = kernel_inputs.assignment_cost(F32, 70, 80, 4096)
    exact = dispatch.function("eager", "assignment_cost")
    wanted, rounded = (
        exact(**given),
        exact(**{name: tensor.bfloat16() for name, tensor in given.items()}),
    )
    assert self_check.disagreement("assignment_cost", rounded, wanted, given) is None
    rounded[:, 3] = rounded[:, 4].clone()
    assert self_check.disagreement("assignment_cost", rounded, wanted, given).startswith(
        "it errs by"
    )


def test_a_constant_batch_does_not_condemn_the_cost():
    """Centering leaves nothing but rounding there, and that may differ."""
    same = kernel_inputs.gaussian(1, 4096).expand(64, 4096)
    found, wanted = torch.full((64, 64), 1e-4), torch.full((64, 64), -1e-4)
    given = {"data": same, "noise": same.clone()}
    assert self_check.disagreement("assignment_cost", found, wanted, given) is None


def test_the_first_call_goes_through_the_dispatcher(monkeypatch, caplog):
    """As on a GPU: compared, then the kernel's own result, and eager where it is wrong."""
    caplog.set_level(logging.INFO)
    original = dispatch.function
    monkeypatch.setattr(dispatch, "kernels_for", lambda operation, given, device: iter(["triton"]))
    monkeypatch.setattr(
        dispatch,
        "function",
        lambda backend, name: right if backend == "triton" else original(backend, name),
    )
    first, second = (dispatch.call("low_rank_apply", **arguments()) for _ in range(2))
    assert torch.equal(first, eager(**arguments())) and torch.equal(second, right(**arguments()))


@pytest.mark.parametrize("chosen", ["medium", "high", "highest"])
def test_the_precision_of_the_process_survives_an_error_of_the_reference(chosen):
    def failing(**given):
        assert torch.get_float32_matmul_precision() == "highest"
        raise ZeroDivisionError

    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(chosen)
    try:
        with pytest.raises(ZeroDivisionError):
            self_check.run("triton", "low_rank_apply", right, failing, arguments(), CPU)
        assert torch.get_float32_matmul_precision() == chosen
    finally:
        torch.set_float32_matmul_precision(before)


def test_the_backend_of_the_process_survives_an_error():
    from glassbox import kernels

    before = kernels.use("eager")
    try:
        with pytest.raises(ValueError, match="no backend nonsense"):
            kernels.use("nonsense")
        assert dispatch.setting() == "eager"
    finally:
        kernels.use(before)
