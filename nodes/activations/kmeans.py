"""Unsupervised parts: k-means over the activations of all positions of all images."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch.nn import functional as F

_STARTS, _ITERATIONS = 4, 50
Watch = Callable[[Iterable[int]], Iterator[int]]
Call = Callable[[Callable], Any]


def cluster(
    feature: torch.Tensor, count: int, seed: int, watch: Watch = iter, call: Call = lambda work: work()
) -> torch.Tensor:
    """The cluster of every position, int64 (rows, H, W) in 0..count-1, of a feature (rows, C, H, W).

    scikit-learn's k-means (k-means++ starts, the best of four) on activations scaled to unit length, so that distance
    is cosine distance. Sorted as ``sort_by_size`` does. ``watch`` wraps the range of starts, and ``call`` makes each
    long call; both may stop by raising. Raises ValueError when there are fewer positions than clusters, RuntimeError
    without scikit-learn.
    """
    points = F.normalize(feature.float(), dim=1).movedim(1, -1).flatten(0, -2)
    if len(points) < count:
        raise ValueError(f"There are {len(points)} positions for {count} clusters. Use fewer, or tap a finer ID.")
    try:
        from sklearn.cluster import KMeans
    except ImportError as error:
        raise RuntimeError("Activation Clusters needs scikit-learn: pip install scikit-learn") from error
    distinct = len(call(partial(points.unique, dim=0)))  # KMeans warns about clusters that can only stay empty
    runs = []
    for start in watch(range(_STARTS)):
        random_state = (seed * _STARTS + start) % (1 << 32)
        model = KMeans(min(count, distinct), n_init=1, max_iter=_ITERATIONS, random_state=random_state)
        runs.append(call(partial(model.fit, points.numpy())))
    labels = torch.from_numpy(min(runs, key=lambda run: run.inertia_).labels_).long()
    return sort_by_size(labels.view(feature.shape[0], *feature.shape[2:]), count)


def resize_labels(labels: torch.Tensor, count: int, size: Sequence[int]) -> torch.Tensor:
    """Labels (rows, h, w) at another size, int64: the label with most weight after bilinear interpolation."""
    one_hot = F.one_hot(labels, count).movedim(-1, 1).float()
    return F.interpolate(one_hot, size=tuple(size), mode="bilinear", align_corners=False).argmax(1)


def sort_by_size(labels: torch.Tensor, count: int) -> torch.Tensor:
    """Labels of any shape renumbered by descending size; of equally large ones the first to appear comes first."""
    flat = labels.flatten()
    sizes = torch.bincount(flat, minlength=count).tolist()
    first = [int((flat == label).int().argmax()) if sizes[label] else len(flat) for label in range(count)]
    order = sorted(range(count), key=lambda label: (-sizes[label], first[label]))
    numbers = torch.empty(count, dtype=torch.int64)
    numbers[order] = torch.arange(count)
    return numbers[labels]
