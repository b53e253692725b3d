"""Find in one picture the points and parts of another: the most similar activation, without any training.

The training-free protocol ("nn") of arXiv 2410.03558 and of Diffusion Hyperfeatures: both features are enlarged
bilinearly to one size, and each source point goes to the target position of largest cosine similarity.
"""

from __future__ import annotations

import torch
from torch.nn import functional as F

from ...kernels import best_match
from .features import values_at

#: Bytes of enlarged target features that exist at a time.
_STRIP = 1 << 28


def nearest_points(
    source: torch.Tensor, target: torch.Tensor, points: torch.Tensor, side: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """The best matches of points in a source feature (C, H, W) among all positions of a target feature (C, H', W').

    Points are (P, 2) x and y in pixels of the features enlarged to ``side`` x ``side``; they are rounded to whole
    pixels inside. Returns points int64 (P, 2) in the enlarged target and their cosine similarity (P,); ties go to the
    upper left. The target is enlarged in strips, so that memory does not grow with ``side`` squared times channels.
    """
    columns, rows = points.clamp(0, side - 1).round().long().unbind(1)
    size = (side, side)
    queries = values_at(source, rows, columns, size)
    best, index = torch.full((len(points),), -torch.inf), torch.zeros(len(points), dtype=torch.int64)
    across, height = torch.arange(side), max(_STRIP // (4 * side * len(target)), 1)
    for top in range(0, side, height):
        lines = torch.arange(top, min(top + height, side))
        strip = values_at(target, lines.repeat_interleave(side), across.repeat(len(lines)), size)
        similarity, found = best_match(queries, strip)
        better = similarity > best
        best[better], index[better] = similarity[better], found[better] + top * side
    return torch.stack([index % side, index // side], dim=1), best


def carried_mask(source: torch.Tensor, target: torch.Tensor, mask: torch.Tensor, mutual: bool) -> torch.Tensor:
    """A mask (height, width) of the source picture carried over: (H', W') in 0..1 on the target feature's grid.

    Each target position takes the mask's value at its best match in the source (C, H, W). With ``mutual`` only where
    the match is the best in both directions, and 0 elsewhere.
    """
    values = F.interpolate(mask.float()[None, None], size=source.shape[-2:], mode="area").flatten()
    found = best_match(target.float().flatten(1).T, source.float().flatten(1).T, mutual)
    carried = values[found[1]]
    return (carried * found[2] if mutual else carried).view(target.shape[-2:])


def mutual_points(
    source: torch.Tensor, target: torch.Tensor, points: torch.Tensor, found: torch.Tensor, side: int
) -> torch.Tensor:
    """Which matches hold both ways, bool (P,): from the found point back, to within one cell of the source's grid."""
    back, _ = nearest_points(target, source, found, side)
    cell = side / torch.tensor([source.shape[2], source.shape[1]], dtype=torch.float32)
    return ((back - points).abs() <= cell).all(dim=1)
