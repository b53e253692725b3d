"""Eager PyTorch against the naive form, turn by turn on one thread."""

from __future__ import annotations

import torch

from studies.common import host
from studies.common.turns import threads, times, timing_numbers

from .cases import cpu_cases

OURS = "ours"


def measure(quick: bool) -> dict[str, dict]:
    """Milliseconds of every case, and how many times as long as ours the others take."""
    kernels = host.pack("kernels")
    numbers = {}
    before = kernels.use("eager")
    try:
        for case in cpu_cases(quick):
            arguments = case.arguments("cpu", torch.float32)
            contenders = {OURS: _call(getattr(kernels, case.operation), arguments)}
            contenders |= {name: _call(other, arguments) for name, other in case.others.items()}
            with torch.no_grad(), threads(1):
                measured = times(contenders, 3 if quick else 7, alone=True)
            where = f"{case.operation}, {case.where}, 1 thread"
            numbers |= timing_numbers(where, measured, OURS, "float32 input, eager PyTorch, processor time")
    finally:
        kernels.use(before)
    return numbers


def _call(function, arguments):
    return lambda: function(**arguments)
