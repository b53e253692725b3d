"""Eager PyTorch and what nodes make of it against the naive form, turn by turn on one thread."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from scipy.optimize import linear_sum_assignment

from studies.common import host
from studies.common.turns import threads, times, timing_numbers

from ..noise import assigning, nearest
from .cases import cpu_cases

OURS = "ours"
#: Turns of a fast row, and milliseconds that all contenders of a row take in the rest.
_TURNS, _MILLISECONDS = {True: (3, 15), False: (5, 41)}, {True: 500, False: 2_000}


def measure(quick: bool, only: str = "") -> Iterator[dict[str, dict]]:
    """Milliseconds of every row, and how many times as long as ours the others take; all so far,
    row by row.

    ``only``: how the names of the rows begin that are measured.
    """
    kernels = host.pack("kernels")
    numbers: dict[str, dict] = {}
    before = kernels.use("eager")
    try:
        for where, what, contenders in rows(quick, only):
            with torch.no_grad(), threads(1):
                taken = sum(float(found[0]) for found in times(contenders, 1, alone=True).values())
                least, most = _TURNS[quick]
                turns = min(max(int(_MILLISECONDS[quick] / taken), least), most)
                measured = times(contenders, turns, alone=True)
            numbers |= timing_numbers(
                f"{where}, 1 thread", measured, OURS, f"{what}, processor time"
            )
            print(f"{where}: {turns} turns of {taken:.0f} ms", flush=True)
            yield numbers
    finally:
        kernels.use(before)


def rows(quick: bool, only: str = "") -> Iterator[tuple[str, str, dict[str, Callable[[], object]]]]:
    """Where, what it is measured on, and the contenders, of which the first is ours."""
    kernels = host.pack("kernels")
    yield from (row for row in _methods() if row[0].startswith(only))
    for case in cpu_cases(quick):
        if not f"{case.operation}, {case.where}".startswith(only):
            continue
        dtypes = (
            (torch.float32, torch.bfloat16)
            if case.operation == "low_rank_apply"
            else (torch.float32,)
        )
        for dtype in dtypes:
            arguments = case.arguments("cpu", dtype)
            functions = {OURS: getattr(kernels, case.operation), **case.others}
            kind = str(dtype).removeprefix("torch.")
            yield (
                f"{case.operation}, {case.where}{'' if dtype == torch.float32 else f', {kind}'}",
                f"{kind} input, eager PyTorch",
                {
                    name: lambda run=run, given=arguments: run(**given)
                    for name, run in functions.items()
                },
            )


def _methods() -> Iterator[tuple[str, str, dict[str, Callable[[], object]]]]:
    """What a person waits for: an assignment, and the nearest of k noise samples."""
    assign = host.pack("nodes.noise.assignment").assign
    method = host.pack("nodes.noise.nearest")
    generator = torch.Generator().manual_seed(0)
    data, noise = (torch.randn(256, 16_384, generator=generator) for _ in range(2))
    yield (
        "assignment, B = 256, D = 16,384",
        "distances and SciPy",
        {
            OURS: lambda: assign(data, noise),
            "one line of SciPy": lambda: linear_sum_assignment(-(data @ noise.T).numpy()),
            "cdist with SciPy": lambda: assigning.by_cdist(data, noise),
        },
    )
    yield (
        "assignment as the paper's, B = 256, D = 16,384",
        "distances and SciPy",
        {
            OURS: lambda: assign(data, noise),
            "official form": lambda: assigning.official(data, noise),
        },
    )

    def closed(k):
        drawn = torch.randn(32, 16_384, generator=generator)
        return method.closed_form(data[:32], drawn, k, method.random_streams(0, range(32)))

    yield (
        "nearest of 4, B = 32, D = 16,384",
        "noise drawn, the default k and form",
        {
            OURS: lambda: closed(4),
            "official form": lambda: nearest.official(data[:32], 4, generator),
        },
    )
    yield (
        "nearest of 64 in training, official form, B = 4, D = 16,384",
        "noise drawn by PyTorch: on a CPU no kernel does it",
        {
            OURS: lambda: method.official_drawn(data[:4], noise[:4], 64, torch.arange(4)),
            "drawn at once": lambda: _drawn_at_once(data[:4], noise[:4], 64),
        },
    )


def _drawn_at_once(data: torch.Tensor, noise: torch.Tensor, k: int) -> torch.Tensor:
    candidates = torch.cat([noise[:, None], torch.randn(len(data), k - 1, data.shape[1])], dim=1)
    index = torch.linalg.vector_norm(data[:, None] - candidates, dim=2).argmin(dim=1)
    return candidates[torch.arange(len(data)), index]
