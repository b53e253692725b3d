"""Loss curves: their running mean, and an outline of any number of losses in few points."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

#: So many losses make a point of the mean: single ones vary with their noise level.
SMOOTH = 25
_POINTS = 200


def running_mean(losses: Sequence[float]) -> list[float]:
    """The mean of each loss and of those before it, ``SMOOTH`` in all; of fewer where there are not
    so many.
    """
    means = []
    total = 0.0
    for index, loss in enumerate(losses):
        total += loss - (losses[index - SMOOTH] if index >= SMOOTH else 0.0)
        means.append(total / min(index + 1, SMOOTH))
    return means


def outline(
    losses: Sequence[float],
    steps: int,
    per_step: int = 1,
    validation: Sequence[tuple[int, float]] = (),
) -> dict:
    """A run as plain data for the canvas, in at most 200 points a curve however long it is.

    ``losses``: one a batch, ``per_step`` of them a step of all ``steps``. ``each`` and ``mean``
    hold pairs of a step and a loss: the mean of the neighbors in a point, and of the last
    ``SMOOTH``. ``validation``: such pairs.
    """
    width = 1
    while width * _POINTS < len(losses):
        width *= 2  # points stay where they are while the run goes on, until two become one
    ends = [min(first + width, len(losses)) for first in range(0, len(losses), width)]
    return {
        "steps": steps,
        "smooth": SMOOTH,
        "each": _points((end / per_step, _mean(losses, end, width)) for end in ends),
        "mean": _points((end / per_step, _mean(losses, end, max(width, SMOOTH))) for end in ends),
        "validation": _points(validation),
    }


def _mean(losses: Sequence[float], end: int, count: int) -> float:
    """The mean of the last ``count`` losses before ``end``."""
    kept = losses[max(end - count, 0) : end]
    return sum(kept) / len(kept)


def _points(pairs: Iterable[Sequence[float]]) -> list[list[float]]:
    """What JSON can hold, in five digits."""
    return [
        [float(f"{step:.7g}"), float(f"{loss:.5g}")] for step, loss in pairs if math.isfinite(loss)
    ]
