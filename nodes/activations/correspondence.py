"""Find points and parts of one image in others by the most similar activation, without training.

The training-free protocol ("nn") of arXiv 2410.03558 and of Diffusion Hyperfeatures: both features
are resized bilinearly to one size, and each source point goes to the target position of largest
cosine similarity.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import torch
from torch.nn import functional as F

from ...kernels import best_match
from .activations import enlarge, neighbors, values_at

#: Bytes of enlarged similarities that exist at a time, and positions that are matched at a time:
#: ``watch`` wraps the range of these parts, and may stop the work by raising.
_ENLARGED = 1 << 26
_QUERIES = 1 << 10
Watch = Callable[[Iterable[int]], Iterator[int]]


def nearest_points(
    source: torch.Tensor, target: torch.Tensor, points: torch.Tensor, side: int, watch: Watch = iter
) -> tuple[torch.Tensor, torch.Tensor]:
    """The best matches of points in a source feature (C, H, W) among all positions of a target
    feature (C, H', W').

    Points are (P, 2) x and y in pixels of the features resized to ``side`` x ``side``; they are
    rounded to whole pixels inside. Returns points int64 (P, 2) in the resized target and their
    cosine similarity (P,); ties go to the upper left. No channel is enlarged: the product with an
    interpolated feature is the interpolated product.
    """
    columns, rows = points.clamp(0, side - 1).round().long().unbind(1)
    queries = F.normalize(values_at(source, rows, columns, (side, side)), dim=1)
    cells = target.float().flatten(1)
    inverse_norm = _interpolated_norms(target, side).clamp_min(1e-12).reciprocal()
    best = queries.new_empty(len(points))
    index = torch.empty(len(points), dtype=torch.int64, device=queries.device)
    count = max(_ENLARGED // (4 * side * side), 1)
    for first in watch(range(0, len(points), count)):
        part = slice(first, first + count)
        similarity = (
            enlarge((queries[part] @ cells).view(-1, *target.shape[1:]), side)
            .mul_(inverse_norm)
            .flatten(1)
        )
        index[part] = similarity.argmax(1)  # the first of equal values, which max does not promise
        best[part] = similarity.gather(1, index[part, None])[:, 0]
    return torch.stack([index % side, index // side], dim=1), best


def _interpolated_norms(feature: torch.Tensor, side: int) -> torch.Tensor:
    """Norms float32 (side, side) of a feature (C, H, W) resized to ``side`` x ``side``, without
    resizing it.

    |sum of w_i f_i|^2 is the sum of w_i w_j (f_i . f_j) over the four cells around a
    position, and products of cells take five coarse maps: each cell with itself and with its
    right, its lower and its two diagonal neighbors.
    """
    feature = feature.double()  # the terms of a small norm cancel

    def product(first: torch.Tensor, second: torch.Tensor, right: int, lower: int) -> torch.Tensor:
        return F.pad((first * second).sum(0), (0, right, 0, lower))  # what is padded has weight 0

    own = product(feature, feature, 0, 0)
    across = product(feature[:, :, :-1], feature[:, :, 1:], 1, 0)
    down = product(feature[:, :-1], feature[:, 1:], 0, 1)
    diagonal = product(feature[:, :-1, :-1], feature[:, 1:, 1:], 1, 1)
    diagonal += product(feature[:, :-1, 1:], feature[:, 1:, :-1], 1, 1)
    positions = torch.arange(side, device=feature.device)
    up, low, vertical = neighbors(positions, side, feature.shape[1])
    left, right, horizontal = neighbors(positions, side, feature.shape[2])
    near, far, mixed = _products(horizontal)
    own = near * own[:, left] + far * own[:, right] + 2 * mixed * across[:, left]
    down = near * down[:, left] + far * down[:, right] + mixed * diagonal[:, left]
    near, far, mixed = _products(vertical[:, None])
    return (near * own[up] + far * own[low] + 2 * mixed * down[up]).clamp_min(0).sqrt().float()


def _products(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Squares of the weights of the two cells along an axis, and their product, in float64."""
    weight = weight.double()
    return (1 - weight).square(), weight.square(), weight * (1 - weight)


def transfer_mask(
    source: torch.Tensor,
    target: torch.Tensor,
    mask: torch.Tensor,
    mutual: bool,
    watch: Watch = iter,
) -> torch.Tensor:
    """A mask (height, width) of the source image transferred: (H', W') in 0..1 on the target
    feature's grid.

    Each target position takes the mask's value at its best match in the source (C, H, W). With
    ``mutual`` only where the match is the best in both directions, and 0 elsewhere.
    """
    values = F.interpolate(mask.float()[None, None], size=source.shape[-2:], mode="area").flatten()
    queries = target.float().flatten(1).T
    targets = source.float().flatten(1).T
    match = _best_matches(queries, targets, watch)
    transferred = values[match]
    if mutual:
        transferred = transferred * (
            _best_matches(targets, queries, watch)[match]
            == torch.arange(len(queries), device=match.device)
        )
    return transferred.view(target.shape[-2:])


def _best_matches(queries: torch.Tensor, targets: torch.Tensor, watch: Watch) -> torch.Tensor:
    """For each query (N, C) the index of the most similar target (M, C)."""
    parts = [
        best_match(queries[first : first + _QUERIES], targets)[1]
        for first in watch(range(0, len(queries), _QUERIES))
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
    """Which matches hold both ways, bool (P,): back from the match to within one cell of the
    source's grid.
    """
    back, _ = nearest_points(target, source, points=matches, side=side, watch=watch)
    cell = side / torch.tensor(
        [source.shape[2], source.shape[1]], dtype=torch.float32, device=points.device
    )
    return ((back - points).abs() <= cell).all(dim=1)


def mask_direction(feature: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """The mean direction (1, C) of one row (C, H, W) inside a mask (height, width); ValueError for
    an empty one.
    """
    weights = F.interpolate(mask.float()[None, None], size=feature.shape[-2:], mode="area")[
        0, 0
    ].clamp(0, 1)
    if weights.sum() <= 0:
        raise ValueError("The mask is empty. Mark the part to compare with.")
    directions = F.normalize(feature.float(), dim=0)
    return (directions * weights).sum((1, 2))[None] / weights.sum()


def similarity(feature: torch.Tensor, references: torch.Tensor) -> torch.Tensor:
    """Cosine similarity (rows, H, W) of a feature (rows, C, H, W) to the most similar of references
    (P, C).
    """
    directions = F.normalize(feature.float(), dim=1)
    return torch.einsum("bchw,pc->bphw", directions, F.normalize(references.float(), dim=1)).amax(1)
