"""Best matches between all positions of two images: the kernel against the matrix of all similarities."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from studies.common import host, results
from studies.common.turns import times, timing_numbers

WIDTH = 320  # channels, as SD1.5's finest activations have


def materialized(queries: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """As it is usually written: normalize, multiply, take the largest."""
    return (F.normalize(queries, dim=1) @ F.normalize(targets, dim=1).T).max(1)


def measure(quick: bool) -> dict[str, dict]:
    """Time and the bytes of the similarities that exist at once, at 64, 96 and 128 positions a side."""
    kernels, eager = host.pack("kernels"), host.pack("kernels.eager.best_match")
    numbers = {}
    for side in (64,) if quick else (64, 96, 128):
        generator = torch.Generator().manual_seed(side)
        queries, targets = (torch.randn(side * side, WIDTH, generator=generator) for _ in range(2))
        contenders = {
            "kernel": lambda q=queries, t=targets: kernels.best_match(q, t),
            "whole matrix": lambda q=queries, t=targets: materialized(q, t),
        }
        where = f"matching {side} x {side} positions"
        what = f"{WIDTH} channels" + ("" if torch.cuda.is_available() else "; processor time, 1 thread")
        numbers |= timing_numbers(where, times(contenders, 3, alone=True), "kernel", what)
        whole, sliced = 4 * side**4, 4 * min(eager.BLOCK // 4, side**4)
        for name, value in (("whole matrix", whole), ("kernel", sliced)):
            numbers[f"{where}, {name}: similarities at once"] = results.number(
                value / 2**20, 1, "MiB", "counted, float32"
            )
    return numbers
