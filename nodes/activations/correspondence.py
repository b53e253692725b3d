"""Find points and parts of one image in others by the most similar activation, without training.

The training-free protocol ("nn") of arXiv 2410.03558 and of Diffusion Hyperfeatures: both features are resized
bilinearly to one size, and each source point goes to the target position of largest cosine similarity.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import torch
from torch.nn import functional as F

from ...kernels import best_match
from .activations import values_at

#: Bytes of resized target features that exist at a time, and positions that are matched at a time: ``watch`` wraps the
#: range of these parts, and may stop the work by raising.
_STRIP, _QUERIES = 1 << 26, 1 << 10
Watch = Callable[[Iterable[int]], Iterator[int]]


def nearest_points(
    source: torch.Tensor, target: torch.Tensor, points: torch.Tensor, side: int, watch: Watch = iter
) -> tuple[torch.Tensor, torch.Tensor]:
    """The best matches of points in a source feature (C, H, W) among all positions of a target feature (C, H', W').

    Points are (P, 2) x and y in pixels of the features resized to ``side`` x ``side``; they are rounded to whole pixels
    inside. Returns points int64 (P, 2) in the resized target and their cosine similarity (P,); ties go to the upper
    left. The target is resized in strips, so that memory does not grow with ``side`` squared times channels.
    """
    columns, rows = points.clamp(0, side - 1).round().long().unbind(1)
    size = (side, side)
    queries = F.normalize(values_at(source, rows, columns, size), dim=1)
    best, index = torch.full((len(points),), -torch.inf), torch.zeros(len(points), dtype=torch.int64)
    across, height = torch.arange(side), max(_STRIP // (4 * side * len(target)), 1)
    for top in watch(range(0, side, height)):
        lines = torch.arange(top, min(top + height, side))
        strip = values_at(target, lines.repeat_interleave(side), across.repeat(len(lines)), size)
        similarity = queries @ F.normalize(strip, dim=1).T
        position = similarity.argmax(1)  # the first of equal values, which max does not promise
        value = similarity.gather(1, position[:, None])[:, 0]
        better = value > best
        best[better], index[better] = value[better], position[better] + top * side
    return torch.stack([index % side, index // side], dim=1), best


def transfer_mask(
    source: torch.Tensor, target: torch.Tensor, mask: torch.Tensor, mutual: bool, watch: Watch = iter
) -> torch.Tensor:
    """A mask (height, width) of the source image transferred: (H', W') in 0..1 on the target feature's grid.

    Each target position takes the mask's value at its best match in the source (C, H, W). With ``mutual`` only where
    the match is the best in both directions, and 0 elsewhere.
    """
    values = F.interpolate(mask.float()[None, None], size=source.shape[-2:], mode="area").flatten()
    queries, targets = target.float().flatten(1).T, source.float().flatten(1).T
    match = _best_matches(queries, targets, watch)
    transferred = values[match]
    if mutual:
        transferred = transferred * (_best_matches(targets, queries, watch)[match] == torch.arange(len(queries)))
    return transferred.view(target.shape[-2:])


def _best_matches(queries: torch.Tensor, targets: torch.Tensor, watch: Watch) -> torch.Tensor:
    """For each query (N, C) the index of the most similar target (M, C)."""
    parts = [
        best_match(queries[first : first + _QUERIES], targets)[1] for first in watch(range(0, len(queries), _QUERIES))
    ]
    return torch.cat(parts)


def mutual_points(
    source: torch.Tensor,
    target: torch.Tensor,
    points: torch.Tensor,
    matches: torch.Tensor,
    side: int,
    watch: Watch = iter,
) -> torch.Tensor:
    """Which matches hold both ways, bool (P,): back from the match to within one cell of the source's grid."""
    back, _ = nearest_points(target, source, matches, side, watch)
    cell = side / torch.tensor([source.shape[2], source.shape[1]], dtype=torch.float32)
    return ((back - points).abs() <= cell).all(dim=1)


def mask_direction(feature: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """The mean direction (1, C) of one row (C, H, W) inside a mask (height, width); ValueError for an empty one."""
    weights = F.interpolate(mask.float()[None, None], size=feature.shape[-2:], mode="area")[0, 0].clamp(0, 1)
    if weights.sum() <= 0:
        raise ValueError("The mask is empty. Mark the part to compare with.")
    directions = F.normalize(feature.float(), dim=0)
    return (directions * weights).sum((1, 2))[None] / weights.sum()


def similarity(feature: torch.Tensor, references: torch.Tensor) -> torch.Tensor:
    """Cosine similarity (rows, H, W) of a feature (rows, C, H, W) to the most similar of references (P, C)."""
    directions = F.normalize(feature.float(), dim=1)
    return torch.einsum("bchw,pc->bphw", directions, F.normalize(references.float(), dim=1)).amax(1)
