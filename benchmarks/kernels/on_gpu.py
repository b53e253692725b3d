"""Every backend on a CUDA device: checked against eager, device-event times over the floor; CSV,
JSON and a plot.
"""

from __future__ import annotations

import csv
import re
import statistics
from collections.abc import Callable
from pathlib import Path

import torch

from studies.common import host, results

from .cases import Case, gpu_cases, moved

FIELDS = (
    "gpu",
    "torch",
    "triton",
    "bandwidth_gb_s",
    "matrix_tflop_s",
    "operation",
    "where",
    "dtype",
    "backend",
    "ms",
    "low_ms",
    "high_ms",
    "bytes",
    "operations",
    "floor_ms",
    "over_floor",
    "over_eager",
    "check",
)
EAGER, TRITON, CUDA, COMPILED = BACKENDS = ("eager", "triton", "cuda", "torch.compile of eager")
_COPIED = 2**30  # bytes of the copy that measures the bandwidth
_SIDE = 8192  # of the matrices that measure the matrix rate


def measure(quick: bool) -> list[str]:
    """Measure every case in float32 and bfloat16; returns the lines to paste, the files that were
    written last.
    """
    try:
        import triton

        version = triton.__version__
    except ImportError:
        version = "none"
    gpu = torch.cuda.get_device_name()
    name = "kernels_" + re.sub(r"\W+", "_", gpu).strip("_").lower() + ("_quick" if quick else "")
    machine = {
        "gpu": gpu,
        "torch": torch.__version__,
        "triton": version,
        "bandwidth_gb_s": _bandwidth() / 1e9,
    }
    rows: list[dict] = []
    for dtype in (torch.float32, torch.bfloat16):
        machine["matrix_tflop_s"] = _matrix_rate(dtype) / 1e12
        for case in gpu_cases(quick):
            torch.cuda.empty_cache()
            try:
                measured = compared(
                    case,
                    "cuda",
                    dtype,
                    1e9 * machine["bandwidth_gb_s"],
                    1e12 * machine["matrix_tflop_s"],
                    10 if quick else 50,
                )
            except torch.OutOfMemoryError:
                print(
                    f"{case.operation}, {case.where}, {dtype}: left out, this GPU has too little "
                    "memory"
                )
                continue
            print(text(measured), flush=True)
            rows += [machine | row for row in measured]
            table(
                results.RESULTS / f"{name}.csv", rows
            )  # what is measured stays, whatever ends the run
    written = plot(results.RESULTS / f"{name}.png", rows)
    command = "python run.py bench kernels" + (" --quick" if quick else "")
    results.write(name, command, 0, host.ROOT / "kernels", numbers(rows))
    return [*summary(rows), f"{written.with_suffix('')}.csv, .json and .png"]


def summary(rows: list[dict]) -> list[str]:
    """Three lines for a pull request: the machine, whether the kernels are right, and how fast they
    are.
    """
    first, lines = rows[0], []
    lines.append("{gpu}, torch {torch}, Triton {triton}: {bandwidth_gb_s:.0f} GB/s".format(**first))
    checked = [row for row in rows if row.get("check")]
    wrong = [
        f"{row['backend']} {row['operation']} ({row['check']})"
        for row in checked
        if row["check"] != "right"
    ]
    lines.append(
        f"{len(checked) - len(wrong)} of {len(checked)} checks right"
        + ": not " * bool(wrong)
        + ", ".join(wrong)
    )
    parts = []
    for operation in dict.fromkeys(row["operation"] for row in rows):
        for backend in (TRITON, CUDA):
            timed = [
                row
                for row in rows
                if (row["operation"], row["backend"]) == (operation, backend)
                and "over_floor" in row
            ]
            if timed:
                floor, eager = (
                    statistics.median(row[name] for row in timed)
                    for name in ("over_floor", "over_eager")
                )
                parts.append(
                    f"{backend} {operation} {floor:.1f} x floor, {1 / eager:.1f} x as fast as eager"
                )
    return [*lines, "; ".join(parts)]


def numbers(rows: list[dict]) -> dict[str, dict]:
    """What was timed, as result files hold it."""
    return {
        f"{row['operation']}, {row['where']}, {row['dtype']}, {row['backend']}": results.number(
            row["ms"],
            1,
            "ms",
            f"median of device-event times, 90 % of them {row['low_ms']:.4f} to "
            f"{row['high_ms']:.4f}; {row['over_floor']:.2f} of the floor; "
            f"{row.get('check', 'not checked')}",
        )
        for row in rows
        if "over_floor" in row
    }


def text(measured: list[dict]) -> str:
    """The rows of one case for a person to read."""
    first = measured[0]
    lines = [
        "{operation}, {where}, {dtype}: {bytes:,} bytes, {operations:,.0f} operations, "
        "at least {floor_ms:.4f} ms".format(**first)
    ]
    for row in measured:
        times = (
            "{ms:.4f} ms, {over_floor:.2f} of the floor, {over_eager:.2f} of eager"
            if "over_floor" in row
            else ""
        )
        lines.append(
            f"  {row['backend']}: "
            + ", ".join(filter(None, (times.format(**row), row.get("check"))))
        )
    return "\n".join(lines)


def milliseconds(function: Callable[[], object], turns: int) -> list[float]:
    """Device-event times of calls after three that warm up, with the cache of the device
    overwritten between them.
    """
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


def compared(
    case: Case, device: str, dtype: torch.dtype, bandwidth: float, rate: float, turns: int
) -> list[dict]:
    """A row for every contender of one case; bandwidth in bytes a second, rate in operations a
    second.
    """
    dispatch, self_check, limits = (
        host.pack(f"kernels.{name}") for name in ("dispatch", "self_check", "table")
    )
    arguments = case.arguments(device, dtype)
    eager = dispatch.function(EAGER, case.operation)
    torch.compiler.reset()  # compiled for these sizes, and not for whatever sizes came before
    contenders = {EAGER: eager}
    for backend, kernel in limits.TABLE[case.operation].kernels.items():
        if limits.unfit(kernel, arguments) is None:
            contenders[backend] = dispatch.function(backend, case.operation)
    contenders |= {COMPILED: torch.compile(eager), **case.others}
    with self_check.full_precision():
        wanted = eager(**arguments)
    volume = moved(arguments, wanted)
    floor = 1000 * max(volume / bandwidth, case.operations / rate if case.matrix else 0.0)
    rows, eager_ms = [], float("nan")
    for name, contender in contenders.items():
        row = {
            "operation": case.operation,
            "where": case.where,
            "dtype": str(dtype).removeprefix("torch."),
            "backend": name,
            "bytes": volume,
            "operations": case.operations,
            "floor_ms": floor,
        }
        try:
            times = milliseconds(lambda run=contender: run(**arguments), turns)
            if name in (
                TRITON,
                CUDA,
            ):  # after all turns: what programs do to each other need not show in the first
                found = contender(**arguments)
                row["check"] = (
                    self_check.disagreement(case.operation, found, wanted, arguments) or "right"
                )
        except Exception as error:  # a contender that does not run is a result, too
            rows.append(
                row
                | {
                    "ms": float("nan"),
                    "check": f"{type(error).__name__}: {error}".splitlines()[0][:200],
                }
            )
            continue
        middle = statistics.median(times)
        if name == EAGER:
            eager_ms = middle
        ranked = sorted(times)
        rows.append(
            row
            | {
                "ms": middle,
                "low_ms": ranked[len(ranked) // 20],
                "high_ms": ranked[-1 - len(ranked) // 20],
                "over_floor": middle / floor,
                "over_eager": middle / eager_ms,
            }
        )
    return rows


def _bandwidth() -> float:
    """Bytes a second of a large copy, read and written."""
    source = torch.empty(_COPIED, dtype=torch.int8, device="cuda")
    target = torch.empty_like(source)
    return 2 * _COPIED / (statistics.median(milliseconds(lambda: target.copy_(source), 20)) / 1000)


def _matrix_rate(dtype: torch.dtype) -> float:
    """Operations a second of a large product in that type.

    In float32 the faster of full precision and of three products in TF32 for each, as the kernels
    take it.
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
    figure = Figure(figsize=(10, 0.6 * len(cases) + 1.5), layout="constrained")
    axes = figure.subplots()
    for offset, backend in enumerate(BACKENDS):
        bars = {
            (row["operation"], row["where"]): row["over_floor"]
            for row in shown
            if row["backend"] == backend
        }
        places = [place + 0.2 * offset for place, case in enumerate(cases) if case in bars]
        axes.barh(
            places, [bars[case] for case in cases if case in bars], height=0.19, label=backend
        )
    axes.set_yticks(
        [place + 0.3 for place in range(len(cases))],
        [f"{name}\n{where}" for name, where in cases],
        fontsize=7,
    )
    axes.set_xscale("log")
    axes.set_xlabel("time over the floor from bandwidth and matrix rate")
    axes.set_title(rows[0]["gpu"])
    axes.set_xlim(left=min([0.8, *(0.9 * row["over_floor"] for row in shown)]))
    axes.axvline(1, color="black", linewidth=1)
    axes.margins(y=0.01)
    axes.invert_yaxis()
    figure.legend(loc="outside upper center", ncols=len(BACKENDS))
    figure.savefig(path, dpi=110)
    return path
