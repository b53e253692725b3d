"""Score every activation on labels of one's own: points (PCK) or part masks (mean IoU).

Points: the training-free protocol of arXiv 2410.03558 (``correspondence.py``). Masks: its pixel
classifier (``few_shot.py``). Beside both, the same place: a guess that needs no model.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.nn import functional as F

from . import correspondence, few_shot, id_chart, point_list
from .activations import Activations
from .comparison import Watch


@dataclass(frozen=True)
class LabelScores:
    """A score of every activation by ID, its name, and the same of the guess that needs no
    model.
    """

    name: str
    scores: dict[str, float]
    guess: float

    def title(self, images: int) -> str:
        """Of a chart of the scores."""
        return f"{self.name}, {images} images. Dashed: the same place, {self.guess:.3f}"

    def report(self) -> str:
        """As text, a line for each activation."""
        table = id_chart.table({self.name: self.scores})
        return f"{self.name}. The same place, without a model: {self.guess:.3f}\n{table}"


def by_points(
    activations: Activations,
    text: str,
    size: tuple[int, int],
    side: int,
    threshold: float,
    watch: Watch,
    run: Callable,
) -> LabelScores:
    """PCK of every activation on the points of ``parse_points``; other arguments are those of
    ``point_hits``.

    ``run(work, *tensors)`` computes, as `host.compute.on_device` does.
    """
    points = parse_points(text, len(activations.rows), size)

    def hits(value: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        return point_hits(value, places, size=size, side=side, threshold=threshold).float().mean()

    scores = {
        id_: float(run(hits, value, points)) for id_, value in watch(activations.features.items())
    }
    return LabelScores(
        f"PCK@{threshold:g}", scores, float(same_place_hits(points, size, threshold).float().mean())
    )


def by_parts(
    activations: Activations,
    labels: torch.Tensor,
    trained: int,
    side: int,
    seed: int,
    epochs: int,
    watch: Watch,
    run: Callable,
) -> LabelScores:
    """Mean IoU of every activation; the arguments are those of ``part_iou``, and ``run`` as in
    `by_points`.

    Raises ValueError when all rows are ``trained`` on.
    """
    if trained >= len(labels):
        raise ValueError(
            f"train_images is {trained} of {len(labels)} images: leave at least one to score."
        )

    def iou(one: Activations, known: torch.Tensor) -> torch.Tensor:
        return part_iou(one, known, trained=trained, side=side, seed=seed, epochs=epochs).mean()

    scores = {
        id_: float(activations.select([id_]).computed(run, iou, labels))
        for id_ in watch(activations.features)
    }
    return LabelScores("mean IoU", scores, float(same_place_iou(labels, trained, side).mean()))


def parse_points(text: str, images: int, size: tuple[int, int]) -> torch.Tensor:
    """Points float32 (images, P, 2) in pixels of images of ``size`` (height, width): one block of
    lines per image.

    Blank lines separate the blocks, whose points correspond in order. Raises ValueError for other
    text.
    """
    blocks = [point_list.parse(block, size) for block in re.split(r"\n\s*\n", text.strip())]
    counts = sorted({len(block) for block in blocks})
    if len(blocks) != images or len(counts) > 1:
        raise ValueError(
            f"The points have {len(blocks)} blocks of {' or '.join(map(str, counts))} lines for "
            f"{images} images. Enter one block per image, separated by blank lines, each with the "
            "same points in the same order."
        )
    return torch.stack(blocks)


def point_hits(
    feature: torch.Tensor, points: torch.Tensor, size: tuple[int, int], side: int, threshold: float
) -> torch.Tensor:
    """Which points are found from each image in each other one, bool (pairs, P): PCK is their mean.

    A point of one row of a feature (rows, C, H, W) goes to the most similar of ``side`` x ``side``
    positions of another row, and is found when it lies within ``threshold`` times the longer side
    of the image from that row's point.
    """
    height, width = size
    scale = torch.tensor([side / width, side / height], device=points.device)
    found = []
    for first, second in itertools.permutations(range(len(points)), 2):
        matches, _ = correspondence.nearest_points(
            feature[first], feature[second], points[first] * scale, side
        )
        found.append(_within(matches / scale, points[second], size, threshold))
    return torch.stack(found)


def same_place_hits(points: torch.Tensor, size: tuple[int, int], threshold: float) -> torch.Tensor:
    """The same for the guess that a point is where it is in the other image."""
    pairs = itertools.permutations(range(len(points)), 2)
    return torch.stack(
        [_within(points[first], points[second], size, threshold) for first, second in pairs]
    )


def _within(
    found: torch.Tensor, truth: torch.Tensor, size: tuple[int, int], threshold: float
) -> torch.Tensor:
    return (found - truth).norm(dim=1) <= threshold * max(size)


def part_iou(
    activations: Activations, labels: torch.Tensor, trained: int, side: int, seed: int, epochs: int
) -> torch.Tensor:
    """IoU of background and parts, float64 (classes,): learned from the first ``trained`` rows, on
    the others.

    ``labels``: int64 (rows, height, width), 0 for none of the parts.
    """
    rows = list(range(len(labels)))
    classes = int(labels.max()) + 1
    names = tuple(map(str, range(1, classes)))
    known = activations.select_rows(rows[:trained])
    unknown = activations.select_rows(rows[trained:])
    segmenter = few_shot.train(
        known, labels[:trained], names=names, side=side, seed=seed, epochs=epochs
    )
    return few_shot.mean_iou(
        few_shot.segment(segmenter, unknown).labels, _resized(labels[trained:], side), classes
    )


def same_place_iou(labels: torch.Tensor, trained: int, side: int) -> torch.Tensor:
    """The same for the guess that every pixel has the most frequent label of its place in the first
    rows.
    """
    classes = int(labels.max()) + 1
    sized = _resized(labels, side)
    guess = sized[:trained].mode(0).values.expand(len(labels) - trained, -1, -1)
    return few_shot.mean_iou(guess, sized[trained:], classes)


def _resized(labels: torch.Tensor, side: int) -> torch.Tensor:
    return F.interpolate(labels[:, None].float(), size=(side, side), mode="nearest")[:, 0].long()
