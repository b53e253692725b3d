"""SD3's position table for a larger image, inside the trained range: arXiv 2411.03177, on
positional embeddings.

A transformer with a table of sine-cosine positions, used with more tokens per side than it was
trained with, can step on beyond the trained range (extrapolation) or sample the same sinusoids on a
finer grid inside it (interpolation). The paper finds interpolation better.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import torch

_RATIO = 10000.0


class Alignment(StrEnum):
    """How a finer grid lies on the trained one."""

    CORNERS = "corners"
    CENTERS = "centers"
    ENDS = "ends"


@dataclass(frozen=True, kw_only=True)
class PositionSettings:
    """`base`: tokens per side up to which the table is trusted."""

    base: int
    alignment: Alignment


def resample_indices(count: int, base: int, alignment: str) -> torch.Tensor:
    """Indices (count,) float64 into `base` trained positions 0 .. base - 1.

    `corners` i base / count, as PixArt does; `centers` (i + 1/2) base / count - 1/2; `ends` evenly
    from 0 to base - 1. With count = base all of them are 0, 1, 2, ... exactly.
    """
    index = torch.arange(count, dtype=torch.float64)
    match Alignment(alignment):
        case Alignment.ENDS:
            return index * (base - 1) / max(count - 1, 1)
        case Alignment.CORNERS:
            return index * base / count
    return (index + 0.5) * base / count - 0.5


def sincos(positions: torch.Tensor, width: int) -> torch.Tensor:
    """Sine-cosine embedding (..., width) of positions, in their dtype: all sines, then all
    cosines.
    """
    half = width // 2
    frequencies = _RATIO ** -(
        torch.arange(half, dtype=torch.float64, device=positions.device) / half
    )
    angles = positions.double()[..., None] * frequencies
    return torch.cat([angles.sin(), angles.cos()], dim=-1)


def position_table(rows: torch.Tensor, columns: torch.Tensor, width: int) -> torch.Tensor:
    """Embedding (rows x columns, width) float32 of a grid, row by row: columns in the first half,
    rows in the other.
    """
    across = sincos(columns, width // 2)[None].expand(len(rows), -1, -1)
    down = sincos(rows, width // 2)[:, None].expand(-1, len(columns), -1)
    return torch.cat([across, down], dim=-1).flatten(0, 1).float()


def recover_positions(axis: torch.Tensor) -> torch.Tensor:
    """The evenly spaced positions (count,) float64 behind one axis (count, width) of a stored
    table.

    Its slowest sinusoid places them roughly, its fastest one exactly. Raises ValueError for another
    table.
    """
    axis = axis.double()
    half = axis.shape[1] // 2
    slowest = _RATIO ** ((half - 1) / half)
    rough = torch.atan2(axis[:, half - 1], axis[:, -1]) * slowest
    fast = torch.atan2(axis[:, 0], axis[:, half])
    exact = fast + 2 * torch.pi * torch.round((rough - fast) / (2 * torch.pi))
    step = (exact[-1] - exact[0]) / (len(exact) - 1)
    even = exact[0] + step * torch.arange(len(exact), dtype=torch.float64, device=axis.device)
    if not torch.allclose(sincos(even, axis.shape[1]), axis, atol=5e-3):
        raise ValueError(
            "This model's position table does not contain evenly spaced sine-cosine positions: it "
            "is not supported."
        )
    return even


def resample_table(
    settings: PositionSettings, stored: torch.Tensor, rows: int, columns: int
) -> torch.Tensor | None:
    """The embedding (1, rows x columns, width) of a grid of tokens from a stored square table (1,
    side^2, width).

    None where neither axis has more tokens than the base, or where the table is smaller than the
    base.
    """
    side = round(stored.shape[1] ** 0.5)
    base = min(settings.base, side)
    if max(rows, columns) <= base:
        return None
    grid = stored[0].unflatten(0, (side, side))
    half = grid.shape[-1] // 2
    down, across = (
        _places(recover_positions(axis), count, base, settings.alignment)
        for axis, count in ((grid[:, 0, half:], rows), (grid[0, :, :half], columns))
    )
    return position_table(down, across, grid.shape[-1]).to(stored)[None]


def _places(trained: torch.Tensor, count: int, base: int, alignment: str) -> torch.Tensor:
    """The positions of `count` tokens: the table's center where it is large enough, else finer
    steps inside it.
    """
    kept = min(count, base)
    start = (len(trained) - kept) // 2
    if count <= base:
        return trained[start : start + count]
    step = trained[1] - trained[0]
    return trained[start] + step * resample_indices(count, base, alignment).to(trained)


def describe_positions(settings: PositionSettings, stored: torch.Tensor) -> str:
    """The trained positions and those of larger images, as text. `stored` (side, side, width)."""
    trained = recover_positions(stored[0, :, : stored.shape[-1] // 2])
    base = min(settings.base, len(trained))
    lines = []
    for count in (base, base * 3 // 2, base * 2):
        places = _places(trained, count, base, settings.alignment)
        first, last, step = (
            round(float(value), 4) + 0.0 for value in (places[0], places[-1], places[1] - places[0])
        )
        lines.append(
            f"{count * 16} px: {count} positions from {first:g} to {last:g}, step {step:g}"
        )
    return "\n".join(
        [f"Table of {len(trained)} positions per side, aligned by {settings.alignment}.", *lines]
    )
