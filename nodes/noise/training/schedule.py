"""Learning rates over a run: warm-up, then constant, linear or cosine."""

from __future__ import annotations

import math

CONSTANT, LINEAR, COSINE = SCHEDULES = ("constant", "linear", "cosine")


def learning_rate(peak: float, kind: str, warmup: int, step: int, steps: int) -> float:
    """The rate of optimizer step ``step`` (from 0) of ``steps``: rises over ``warmup`` steps, then falls to 0 or stays.

    Raises ValueError for a kind that there is not.
    """
    if kind not in SCHEDULES:
        raise ValueError(f"There is no schedule {kind}: choose one of {', '.join(SCHEDULES)}.")
    if step < warmup:
        return peak * (step + 1) / warmup
    share = (step - warmup) / max(1, steps - warmup)
    return peak * {CONSTANT: 1.0, LINEAR: 1 - share, COSINE: (1 + math.cos(math.pi * share)) / 2}[kind]
