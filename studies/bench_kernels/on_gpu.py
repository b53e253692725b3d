"""Every backend on a CUDA device: device-event times over the floor, checked against eager, into a CSV and a plot."""

from __future__ import annotations

import csv
import re
import statistics
from collections.abc import Callable
from pathlib import Path

import torch

from ..common import host, results
from .cases import Case, gpu_cases, moved

FIELDS = ("gpu", "torch", "triton", "bandwidth_gb_s", "matrix_tflop_s", "operation", "where", "dtype", "backend", "ms",
          "low_ms", "high_ms", "bytes", "operations", "floor_ms", "over_floor", "over_eager", "check")  # fmt: skip
EAGER, TRITON, COMPILED = "eager", "triton", "torch.compile of eager"
_COPIED = 2**30  # bytes of the copy that measures the bandwidth
_SIDE = 8192  # of the matrices that measure the matrix rate


def measure(quick: bool) -> list[Path]:
    """Measure every case in float32 and bfloat16; returns the files written."""
    try:
        import triton
    except ImportError:
        raise SystemExit("Triton is not installed, and its kernels are what is measured on a GPU: install it, or "
                         "measure the CPU with --cpu.") from None  # fmt: skip
    gpu = torch.cuda.get_device_name()
    name = "kernels_" + re.sub(r"\W+", "_", gpu).strip("_").lower() + ("_quick" if quick else "")
    bandwidth = _bandwidth()
    rows = []
    for dtype in (torch.float32, torch.bfloat16):
        rate = _matrix_rate(dtype)
        for case in gpu_cases(quick):
            machine = {"gpu": gpu, "torch": torch.__version__, "triton": triton.__version__,
                       "bandwidth_gb_s": bandwidth / 1e9, "matrix_tflop_s": rate / 1e12}  # fmt: skip
            torch.cuda.empty_cache()
            try:
                measured = compared(case, "cuda", dtype, bandwidth, rate, 10 if quick else 50)
            except torch.OutOfMemoryError:
                print(f"{case.operation}, {case.where}, {dtype}: left out, this GPU has too little memory")
                continue
            print(told(measured), flush=True)
            rows += [machine | row for row in measured]
            written = table(results.RESULTS / f"{name}.csv", rows)  # what is measured stays, whatever ends the run
    return [written, plot(results.RESULTS / f"{name}.png", rows)]


def told(measured: list[dict]) -> str:
    """The rows of one case for a person to read."""
    first = measured[0]
    lines = ["{operation}, {where}, {dtype}: {bytes:,} bytes, {operations:,.0f} operations, "
             "at least {floor_ms:.4f} ms".format(**first)]  # fmt: skip
    for row in measured:
        times = "{ms:.4f} ms, {over_floor:.2f} of the floor, {over_eager:.2f} of eager" if "over_floor" in row else ""
        lines.append(f"  {row['backend']}: " + ", ".join(filter(None, (times.format(**row), row.get("check")))))
    return "\n".join(lines)


def milliseconds(function: Callable[[], object], turns: int) -> list[float]:
    """Device-event times of calls after three that warm up, with the cache of the device overwritten between them."""
    for _ in range(3):
        function()
    flushed = torch.empty(2**28, dtype=torch.int8, device="cuda")
    found = []
    for _ in range(turns):
        flushed.zero_()
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        function()
        end.record()
        end.synchronize()
        found.append(start.elapsed_time(end))
    return found


def compared(case: Case, device: str, dtype: torch.dtype, bandwidth: float, rate: float, turns: int) -> list[dict]:
    """A row for every contender of one case; bandwidth in bytes a second, rate in operations a second."""
    dispatch, proof, limits = (host.pack(f"kernels.{name}") for name in ("dispatch", "proof", "table"))
    arguments = case.arguments(device, dtype)
    eager = dispatch.function("eager", case.operation)
    torch.compiler.reset()  # compiled for these sizes, and not for whatever sizes came before
    contenders = {EAGER: eager, TRITON: dispatch.function("triton", case.operation), COMPILED: torch.compile(eager),
                  **case.others}  # fmt: skip
    wanted = eager(**arguments)
    volume = moved(arguments, wanted)
    floor = 1000 * max(volume / bandwidth, case.operations / rate if case.matrix else 0.0)
    rows, eager_ms = [], float("nan")

    def check(found) -> str:
        pair = (proof.compared(case.operation, result) for result in (found, wanted))
        tolerance, scale = limits.TABLE[case.operation].tolerance, proof.scale(case.operation, arguments)
        return proof.disagreement(*pair, tolerance, scale) or "right"

    for name, contender in contenders.items():
        row = {"operation": case.operation, "where": case.where, "dtype": str(dtype).removeprefix("torch."),
               "backend": name, "bytes": volume, "operations": case.operations, "floor_ms": floor}  # fmt: skip
        try:
            times = milliseconds(lambda run=contender: run(**arguments), turns)
            if name == TRITON:  # after all turns: what programs do to each other need not show in the first
                row["check"] = check(contender(**arguments))
        except Exception as error:  # a contender that does not run is a result, too
            rows.append(row | {"ms": float("nan"), "check": f"{type(error).__name__}: {error}".splitlines()[0][:200]})
            continue
        middle = statistics.median(times)
        if name == EAGER:
            eager_ms = middle
        ranked = sorted(times)
        rows.append(row | {"ms": middle, "low_ms": ranked[len(ranked) // 20], "high_ms": ranked[-1 - len(ranked) // 20],
                           "over_floor": middle / floor, "over_eager": middle / eager_ms})  # fmt: skip
    return rows


def _bandwidth() -> float:
    """Bytes a second of a large copy, read and written."""
    source = torch.empty(_COPIED, dtype=torch.int8, device="cuda")
    target = torch.empty_like(source)
    return 2 * _COPIED / (statistics.median(milliseconds(lambda: target.copy_(source), 20)) / 1000)


def _matrix_rate(dtype: torch.dtype) -> float:
    """Operations a second of a large product in that type.

    In float32 the faster of full precision and of three products in TF32 for each, as the kernels take it.
    """
    left, right = (torch.randn(_SIDE, _SIDE, device="cuda", dtype=dtype) for _ in range(2))
    taken = statistics.median(milliseconds(lambda: left @ right, 10))
    if dtype == torch.float32:
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("high")
        try:
            taken = min(taken, 3 * statistics.median(milliseconds(lambda: left @ right, 10)))
        finally:
            torch.set_float32_matmul_precision(before)
    return 2 * _SIDE**3 / (taken / 1000)


def table(path: Path, rows: list[dict]) -> Path:
    """Write the rows as CSV."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp")
    with temporary.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, FIELDS, restval="")
        writer.writeheader()
        writer.writerows(rows)
    temporary.replace(path)
    return path


def plot(path: Path, rows: list[dict]) -> Path:
    """How many times the floor each backend takes, a bar a case in float32."""
    from matplotlib.figure import Figure

    shown = [row for row in rows if row["dtype"] == "float32" and "over_floor" in row]
    cases = list(dict.fromkeys((row["operation"], row["where"]) for row in shown))
    backends = (EAGER, TRITON, COMPILED)
    figure = Figure(figsize=(10, 0.5 * len(cases) + 1.5), layout="constrained")
    axes = figure.subplots()
    for offset, backend in enumerate(backends):
        bars = {(row["operation"], row["where"]): row["over_floor"] for row in shown if row["backend"] == backend}
        places = [place + 0.27 * offset for place, case in enumerate(cases) if case in bars]
        axes.barh(places, [bars[case] for case in cases if case in bars], height=0.25, label=backend)
    axes.set_yticks([place + 0.27 for place in range(len(cases))], [f"{name}\n{where}" for name, where in cases],
                    fontsize=7)  # fmt: skip
    axes.set_xscale("log")
    axes.set_xlabel("time over the floor from bandwidth and matrix rate")
    axes.set_title(rows[0]["gpu"])
    axes.set_xlim(left=min([0.8, *(0.9 * row["over_floor"] for row in shown)]))
    axes.axvline(1, color="black", linewidth=1)
    axes.margins(y=0.01)
    axes.invert_yaxis()
    figure.legend(loc="outside upper center", ncols=len(backends))
    figure.savefig(path, dpi=110)
    return path
