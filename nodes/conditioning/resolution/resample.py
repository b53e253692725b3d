"""SD3's position table for a larger picture: the trained middle of it, sampled more finely."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from . import positions


@dataclass(frozen=True)
class Settings:
    """``base``: tokens a side up to which the table is trusted; ``alignment``: see ``positions.resampled``."""

    base: int
    alignment: str


def embedding(settings: Settings, stored: torch.Tensor, rows: int, columns: int) -> torch.Tensor | None:
    """The embedding (1, rows x columns, width) of a grid from a stored square table (1, side^2, width).

    None where neither axis has more tokens than the base, or where the table is smaller than the base.
    """
    side = round(stored.shape[1] ** 0.5)
    base = min(settings.base, side)
    if max(rows, columns) <= base:
        return None
    grid = stored[0].unflatten(0, (side, side))
    half = grid.shape[-1] // 2
    places = [
        _places(positions.positions_in(axis), count, base, settings.alignment)
        for axis, count in ((grid[:, 0, half:], rows), (grid[0, :, :half], columns))
    ]
    return positions.table(*places, grid.shape[-1]).to(stored)[None]


def _places(trained: torch.Tensor, count: int, base: int, alignment: str) -> torch.Tensor:
    """The positions of ``count`` tokens: the table's centre where it is large enough, else finer steps inside it."""
    kept = min(count, base)
    start = (len(trained) - kept) // 2
    if count <= base:
        return trained[start : start + count]
    step = trained[1] - trained[0]
    return trained[start] + step * positions.resampled(count, base, alignment).to(trained)


def describe(settings: Settings, stored: torch.Tensor) -> str:
    """The trained positions and those of larger pictures, in words. ``stored`` (side, side, width)."""
    trained = positions.positions_in(stored[0, :, : stored.shape[-1] // 2])
    base = min(settings.base, len(trained))
    lines = []
    for count in (base, base * 3 // 2, base * 2):
        places = _places(trained, count, base, settings.alignment)
        first, last, step = (round(float(value), 4) + 0.0 for value in (places[0], places[-1], places[1] - places[0]))
        lines.append(f"{count * 16} px: {count} positions from {first:g} to {last:g}, step {step:g}")
    return "\n".join([f"Table of {len(trained)} positions a side, aligned by {settings.alignment}.", *lines])
