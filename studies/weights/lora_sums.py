"""Several low-rank changes as one of a higher rank: a slider or a style on a person, and sums of
edited models.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..common import host


def together(layout, flats: torch.Tensor, other: torch.Tensor, strength: float):
    """Models (n, D), each with one further change (D,) at a strength: a layout of twice the rank,
    and (n, 2 D).
    """
    return summed(layout, [flats, other.expand_as(flats)], (1.0, strength))


def summed(layout, parts: Sequence[torch.Tensor], strengths: Sequence[float]):
    """The exact sum of changes of models (n, D) each: a layout whose rank is the sum of theirs, and
    its factors.
    """
    rank = layout.rank * len(parts)
    shapes = {
        slot.layer: ((rank, slot.down_shape[1]), (slot.up_shape[0], rank)) for slot in layout.slots
    }
    wide = type(layout).of(shapes, rank, float(rank))
    return wide, torch.stack(
        [wide.flatten(_sum(layout, rows, strengths)) for rows in zip(*parts, strict=True)]
    )


def _sum(layout, rows: Sequence[torch.Tensor], strengths: Sequence[float]) -> dict:
    merge = host.pack("nodes.weights.style_merge").merge
    total, strength = layout.unflatten(rows[0]), strengths[0]
    for row, following in zip(rows[1:], strengths[1:], strict=True):
        total, strength = merge(total, layout.unflatten(row), (strength, following)), 1.0
    return total
