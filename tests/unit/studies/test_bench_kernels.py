"""The kernels' benchmark at tiny sizes: its input fits, what people write gives the same, and its
files are written.
"""

import csv
import json
import math

import pytest
import torch
from glassbox import kernels

from benchmarks.kernels import __main__ as command
from benchmarks.kernels import cases, on_cpu, on_gpu, static
from studies.common import results

TINY = [
    cases.drawn("tiny", 3, 40, 8),
    cases.cost("tiny", 4, 40),
    cases.match("tiny", 9, 5),
    cases.point("tiny", 3, 1030, quantized=False),
    cases.point("tiny", 3, 1030, quantized=True),
    cases.change("tiny", 6, 5, 2),
    cases.change("tiny, factors bfloat16", 6, 5, 2, dtype=torch.bfloat16),
    cases.neurons("tiny", 4, 3, 5),
    cases.words("tiny", 2, 9, 7, 3, 8),
]
#: Of these the others compute something else: their own draws, distances, a variance for a sum of
#: squares; best match has tests of its own.
OTHERWISE = {"nearest_drawn", "assignment_cost", "neuron_moments", "best_match"}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("case", TINY, ids=lambda case: f"{case.operation} {case.where}")
def test_rivals_give_the_same_numbers(case, dtype):
    arguments = case.arguments("cpu", dtype)
    ours = getattr(kernels, case.operation)(**arguments)
    assert cases.moved(arguments, ours) > 0 and case.operations > 0
    if case.operation not in OTHERWISE:
        for name, other in case.others.items():
            rounds_twice = name == "plain" and "bfloat16" in f"{case.where} {dtype}"
            tolerance = 0.02 if rounds_twice else 1e-5
            torch.testing.assert_close(
                other(**arguments), ours, atol=tolerance * float(ours.abs().max()), rtol=tolerance
            )


def test_every_operation_is_measured():
    from glassbox.kernels.table import TABLE

    for quick in (True, False):
        assert {case.operation for case in cases.gpu_cases(quick)} == set(TABLE)
        assert {case.operation for case in cases.cpu_cases(quick)} == set(TABLE) - {"nearest_drawn"}


def test_the_table_of_traffic_is_that_of_the_tiles():
    pytest.importorskip("triton")
    table = "\n".join(static.traffic_lines())
    assert table in static.README.read_text(encoding="utf-8")
    # 256 x 256 in tiles of 128 x 128: each input is read twice, and 32 tables of partial sums are
    # written and read.
    assert static.traffic()[1][2] == 4 * 2 * 256 * 16_384 * 2 + 65 * 4 * 256 * 256


def test_rows_of_methods_do_the_same():
    """The assignments of one cost; the nearest of k differ by what is drawn."""
    rows = {where: contenders for where, _, contenders in on_cpu._methods()}
    assert [next(iter(contenders)) for contenders in rows.values()] == [on_cpu.OURS] * 4
    ours, line, *_ = rows["assignment, B = 256, D = 16,384"].values()
    assert ours().permutation.tolist() == line()[1].tolist()


def test_rows_that_are_measured_again_leave_the_others(monkeypatch, tmp_path):
    monkeypatch.setattr(results, "RESULTS", tmp_path)
    monkeypatch.setattr(on_cpu, "_methods", lambda: iter(()))
    monkeypatch.setattr(
        on_cpu, "cpu_cases", lambda quick: [cases.cost("tiny", 4, 40), cases.match("tiny", 9, 5)]
    )
    written = []
    for arguments in (["--cpu"], ["--cpu", "--only", "best_match"]):
        command.main(arguments)
        written.append(json.loads((tmp_path / "bench_kernels.json").read_text())["numbers"])
    assert list(written[0]) == list(written[1])
    assert {
        name.partition(",")[0] for name in written[0] if written[0][name] != written[1][name]
    } == {"best_match"}


def test_rows_and_files_of_a_gpu(monkeypatch, tmp_path):
    """On the CPU with made-up times; a contender that fails is a row without one."""
    times = {"called": 0.0}

    def milliseconds(function, turns):
        function()
        times["called"] += 1
        return [times["called"]] * turns

    def fails(**_):
        raise RuntimeError("no kernel image is available\nand more")

    monkeypatch.setattr(on_gpu, "milliseconds", milliseconds)
    monkeypatch.setattr(torch, "compile", lambda function: function)
    monkeypatch.setattr(torch.compiler, "reset", lambda: None)
    dispatch = on_gpu.host.pack("kernels.dispatch")
    original = dispatch.function
    monkeypatch.setattr(
        dispatch,
        "function",
        lambda backend, name: fails if backend == "triton" else original(backend, name),
    )
    case = cases.cost("tiny", 64, 40)
    rows = [
        {"gpu": "none"} | row for row in on_gpu.compared(case, "cpu", torch.float32, 1e9, 1e12, 3)
    ]
    assert [row["backend"] for row in rows] == [
        "eager",
        "triton",
        "torch.compile of eager",
        "product",
        "cdist",
    ]
    assert (
        rows[0]["bytes"] == 2 * 64 * 40 * 4 + 64 * 64 * 4
        and rows[0]["operations"] == 2 * 64 * 64 * 40
    )
    assert rows[0]["floor_ms"] == pytest.approx(1000 * rows[0]["bytes"] / 1e9)
    assert rows[2]["over_eager"] == 2 and math.isnan(rows[1]["ms"])
    assert rows[1]["check"] == "RuntimeError: no kernel image is available"
    assert on_gpu.text(rows).splitlines()[:3] == [
        "assignment_cost, tiny, float32: 36,864 bytes, 327,680 operations, at least 0.0369 ms",
        "  eager: 1.0000 ms, 27.13 of the floor, 1.00 of eager",
        "  triton: RuntimeError: no kernel image is available",
    ]
    with on_gpu.table(tmp_path / "x.csv", rows).open(newline="") as file:
        assert [row["backend"] for row in csv.DictReader(file)] == [row["backend"] for row in rows]
    assert rows[0]["over_eager"] == 1 and rows[0].get("check") is None
    assert on_gpu.plot(tmp_path / "x.png", rows).stat().st_size > 1000


def test_a_kernel_is_checked_after_its_turns(monkeypatch):
    """One that is right until the last turn is wrong, and the line to paste says so."""
    calls = []
    original = on_gpu.host.pack("kernels.dispatch").function("eager", "low_rank_apply")

    def spoiled(**arguments):
        calls.append(0)
        return original(**arguments) + 0.1 * (len(calls) > 3)

    monkeypatch.setattr(
        on_gpu, "milliseconds", lambda run, turns: [run() is None or 1.0 for _ in range(turns)]
    )
    monkeypatch.setattr(torch, "compile", lambda function: function)
    monkeypatch.setattr(torch.compiler, "reset", lambda: None)
    dispatch = on_gpu.host.pack("kernels.dispatch")
    monkeypatch.setattr(
        dispatch, "function", lambda backend, name: spoiled if backend == "triton" else original
    )
    measured = on_gpu.compared(
        cases.change("tiny", 6, 5, 2, dtype=torch.bfloat16), "cpu", torch.float32, 1e9, 1e12, 3
    )
    (row,) = [row for row in measured if row["backend"] == "triton"]
    assert row["check"].startswith("it errs by") and len(calls) == 4
    machine = {"gpu": "A GPU", "torch": "2", "triton": "3", "bandwidth_gb_s": 1.0}
    lines = on_gpu.summary([machine | row for row in measured])
    assert lines[0] == "A GPU, torch 2, Triton 3: 1 GB/s"
    assert lines[1].startswith("1 of 2 checks right: not triton low_rank_apply (it errs by")
    assert lines[2].count("as fast as eager") == 2
    assert len(on_gpu.numbers(measured)) == len(measured)


def test_the_rate_of_float32_is_that_of_three_products(monkeypatch):
    """Where TF32 is more than three times as fast, and full precision's where it is not."""
    randn = torch.randn
    monkeypatch.setattr(on_gpu, "_SIDE", 10)
    monkeypatch.setattr(torch, "randn", lambda *shape, device, dtype: randn(*shape, dtype=dtype))
    for tf32, rate in ((1.0, 2e6 / 3), (5.0, 2e5)):
        taken = {"highest": 10.0, "high": tf32}
        monkeypatch.setattr(
            on_gpu,
            "milliseconds",
            lambda _, turns, t=taken: [t[torch.get_float32_matmul_precision()]],
        )
        assert on_gpu._matrix_rate(torch.float32) == pytest.approx(rate)
        assert torch.get_float32_matmul_precision() == "highest"
