"""Unsupervised parts: k-means over the activations of all positions of all images."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch.nn import functional as F

_STARTS = 4
_ITERATIONS = 50
Watch = Callable[[Iterable[int]], Iterator[int]]
Call = Callable[[Callable], Any]
#: Does work on tensors elsewhere, as ``on_device`` does.
Run = Callable[..., tuple[torch.Tensor, ...]]


def cluster(
    feature: torch.Tensor,
    count: int,
    seed: int,
    watch: Watch = iter,
    call: Call = lambda work: work(),
    run: Run | None = None,
) -> torch.Tensor:
    """The cluster of every position, int64 (rows, H, W) in 0..count-1, of a feature (rows, C, H,
    W).

    scikit-learn's k-means (k-means++ starts, the best of four) on activations scaled to unit
    length, so that distance is cosine distance. Sorted as ``sort_by_size`` does. ``watch`` wraps
    the range of starts, and ``call`` makes each long call; both may stop by raising. With ``run``
    the steps from each start are made by it. Raises ValueError when there are fewer positions than
    clusters, RuntimeError without scikit-learn.
    """
    points = F.normalize(feature.float(), dim=1).movedim(1, -1).flatten(0, -2)
    if len(points) < count:
        raise ValueError(
            f"There are {len(points)} positions for {count} clusters. Use fewer, or tap a finer ID."
        )
    try:
        from sklearn.cluster import KMeans, kmeans_plusplus
    except ImportError as error:
        from ..common.packages import missing_package

        user = "Activation Clusters"
        raise RuntimeError(missing_package(user, "sklearn", error, "scikit-learn")) from error
    distinct = len(
        call(partial(points.unique, dim=0))
    )  # KMeans warns about clusters that can only stay empty
    found: list[tuple[float, torch.Tensor]] = []
    for start in watch(range(_STARTS)):
        random_state = (seed * _STARTS + start) % (1 << 32)
        clusters = min(count, distinct)
        if run is None:
            model = KMeans(clusters, n_init=1, max_iter=_ITERATIONS, random_state=random_state)
            call(partial(model.fit, points.numpy()))
            found.append((model.inertia_, torch.from_numpy(model.labels_).long()))
        else:
            drawn = call(
                partial(kmeans_plusplus, points.numpy(), clusters, random_state=random_state)
            )
            labels, inertia = call(partial(run, lloyd, points, torch.from_numpy(drawn[0])))
            found.append((float(inertia), labels))
    labels = min(found, key=lambda one: one[0])[1]
    return sort_by_size(labels.view(feature.shape[0], *feature.shape[2:]), count)


def lloyd(points: torch.Tensor, centers: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Labels (N,) of points (N, C) after Lloyd's steps from centers (K, C), and their sum of
    squared distances ().

    Until no label changes, fifty steps at most. A cluster that has lost its points keeps its
    center.
    """
    labels = torch.full((len(points),), -1, dtype=torch.int64, device=points.device)
    for _ in range(_ITERATIONS):
        nearest = (centers.square().sum(1) - 2 * points @ centers.T).argmin(1)
        if torch.equal(nearest, labels):
            break
        labels = nearest
        inside = F.one_hot(labels, len(centers)).to(points.dtype)
        counts = inside.sum(0)[:, None]
        centers = torch.where(counts > 0, inside.T @ points / counts.clamp_min(1), centers)
    return labels, (points - centers[labels]).square().sum()


def resize_labels(labels: torch.Tensor, count: int, size: Sequence[int]) -> torch.Tensor:
    """Labels (rows, h, w) at another size, int64: the label with most weight after bilinear
    interpolation.
    """
    one_hot = F.one_hot(labels, count).movedim(-1, 1).float()
    return F.interpolate(one_hot, size=tuple(size), mode="bilinear", align_corners=False).argmax(1)


def sort_by_size(labels: torch.Tensor, count: int) -> torch.Tensor:
    """Labels of any shape renumbered by descending size; of equally large ones the first to appear
    comes first.
    """
    flat = labels.flatten()
    sizes = torch.bincount(flat, minlength=count).tolist()
    first = [
        int((flat == label).int().argmax()) if sizes[label] else len(flat) for label in range(count)
    ]
    order = sorted(range(count), key=lambda label: (-sizes[label], first[label]))
    numbers = torch.empty(count, dtype=torch.int64)
    numbers[order] = torch.arange(count)
    return numbers[labels]
