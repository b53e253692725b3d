"""Positions of a larger picture inside the range that was trained: arXiv 2411.03177, on positional embeddings.

A transformer with a table of sine-cosine positions, asked for more tokens a side than it was trained at, can step on
beyond the trained range (extrapolation) or sample the same sinusoids at a finer grid inside it (interpolation). The
paper finds interpolation better. Which alignment of the grids it uses was not to be read: all three are here.
"""

from __future__ import annotations

import torch

CORNER, CENTRE, ENDS = "corners", "centres", "ends"
ALIGNMENTS = (CORNER, CENTRE, ENDS)
_RATIO = 10000.0


def resampled(count: int, base: int, alignment: str) -> torch.Tensor:
    """Indices (count,) float64 into ``base`` trained positions 0 .. base - 1.

    ``corners`` i base / count, as PixArt does; ``centres`` (i + 1/2) base / count - 1/2; ``ends`` evenly from 0 to
    base - 1. With count = base all of them are 0, 1, 2, ... exactly.
    """
    index = torch.arange(count, dtype=torch.float64)
    if alignment == ENDS:
        return index * (base - 1) / max(count - 1, 1)
    return index * base / count if alignment == CORNER else (index + 0.5) * base / count - 0.5


def sincos(positions: torch.Tensor, width: int) -> torch.Tensor:
    """Sine-cosine embedding (..., width) of positions, in their dtype: all sines, then all cosines."""
    half = width // 2
    frequencies = _RATIO ** -(torch.arange(half, dtype=torch.float64, device=positions.device) / half)
    angles = positions.double()[..., None] * frequencies
    return torch.cat([angles.sin(), angles.cos()], dim=-1)


def table(rows: torch.Tensor, columns: torch.Tensor, width: int) -> torch.Tensor:
    """Embedding (rows x columns, width) float32 of a grid, row by row: columns in the first half, rows in the other."""
    across = sincos(columns, width // 2)[None].expand(len(rows), -1, -1)
    down = sincos(rows, width // 2)[:, None].expand(-1, len(columns), -1)
    return torch.cat([across, down], dim=-1).flatten(0, 1).float()


def positions_in(axis: torch.Tensor) -> torch.Tensor:
    """The evenly spaced positions (count,) float64 that one axis (count, width) of a stored table was made of.

    Its slowest sinusoid places them roughly, its fastest one exactly. Raises ValueError when it is no such table.
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
        raise ValueError("This model's position table does not hold evenly spaced sine-cosine positions: leave it.")
    return even
