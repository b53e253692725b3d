"""Parts without names: k-means over the activations of all positions of all pictures together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import torch
from torch.nn import functional as F

_ROUNDS, _STARTS = 50, 4
Watch = Callable[[Iterable[int]], Iterator[int]]


def clusters(feature: torch.Tensor, count: int, seed: int, watch: Watch = iter) -> torch.Tensor:
    """The cluster of every position, int64 (rows, H, W) in 0..count-1, of a feature (rows, C, H, W).

    k-means with k-means++ starts, the best of four, on activations scaled to unit length, so that distance is cosine
    distance. The largest cluster is 0, the next 1 and so on; of equally large ones the one that comes first in the
    first picture. Raises ValueError when there are fewer positions than clusters.
    """
    points = F.normalize(feature.float(), dim=1).movedim(1, -1).flatten(0, -2)
    if len(points) < count:
        raise ValueError(f"There are {len(points)} positions for {count} clusters: ask for fewer, or tap a finer ID.")
    generator = torch.Generator().manual_seed(seed)
    starts = [_start(points, count, generator) for _ in range(_STARTS)]
    runs = [_lloyd(points, starts[run]) for run in watch(range(_STARTS))]
    labels = min(runs, key=lambda run: run[1])[0]
    return ordered(labels.view(feature.shape[0], *feature.shape[2:]), count)


def enlarged(labels: torch.Tensor, count: int, size: tuple[int, int]) -> torch.Tensor:
    """Labels (rows, h, w) at another size, int64: the label with most weight after bilinear interpolation."""
    one_hot = F.one_hot(labels, count).movedim(-1, 1).float()
    return F.interpolate(one_hot, size=tuple(size), mode="bilinear", align_corners=False).argmax(1)


def _start(points: torch.Tensor, count: int, generator: torch.Generator) -> torch.Tensor:
    """k-means++: each next centre is a point drawn in proportion to its squared distance from the nearest so far."""
    chosen = [int(torch.randint(len(points), (1,), generator=generator))]
    distance = torch.full((len(points),), torch.inf)
    while len(chosen) < count:
        distance = torch.minimum(distance, (points - points[chosen[-1]]).square().sum(1)).clamp_min(0)
        weights = distance if distance.sum() > 0 else torch.ones_like(distance)
        chosen.append(int(torch.multinomial(weights, 1, generator=generator)))
    return points[chosen]


def _lloyd(points: torch.Tensor, centres: torch.Tensor) -> tuple[torch.Tensor, float]:
    """Labels (N,) and the sum of squared distances; a cluster that runs empty keeps its centre."""
    labels = torch.full((len(points),), -1)
    for _ in range(_ROUNDS):
        scores = points @ centres.T - centres.square().sum(1) / 2
        value, found = scores.max(1)
        if torch.equal(found, labels):
            break
        labels = found
        sums = torch.zeros_like(centres).index_add_(0, labels, points)
        sizes = torch.bincount(labels, minlength=len(centres))[:, None]
        centres = torch.where(sizes > 0, sums / sizes.clamp_min(1), centres)
    return labels, float(points.square().sum() - 2 * value.sum())


def ordered(labels: torch.Tensor, count: int) -> torch.Tensor:
    """Labels of any shape renamed by descending size, then by first appearance."""
    flat = labels.flatten()
    sizes = torch.bincount(flat, minlength=count).tolist()
    first = [int((flat == label).int().argmax()) if sizes[label] else len(flat) for label in range(count)]
    order = sorted(range(count), key=lambda label: (-sizes[label], first[label]))
    names = torch.empty(count, dtype=torch.int64)
    names[order] = torch.arange(count)
    return names[labels]
