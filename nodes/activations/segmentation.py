"""Learn parts from a few pictures: the paper's few-shot segmentation (arXiv 2410.03558, section 6, as on Horse-21).

Activations are joined by nearest neighbour at the finest size, then read bilinearly at every pixel of a square of
``side`` pixels, 256 in the paper. Labels are brought there by nearest neighbour. What was learned on few pixels tells
apart as many as one likes: a pixel's activations alone decide.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn import functional as F

from . import ensemble
from .features import Activations

IGNORED = 255
#: Pixels a side in the paper.
SIDE = 256
#: A part with fewer pixels than this in a picture is left out of its training.
_TOO_FEW = 20
_MOST_UNCERTAIN = 0.1
_PIXELS_AT_A_TIME = 1 << 12


@dataclass(frozen=True)
class Segmenter:
    """A trained ensemble, and what it needs to be used: channels by ID, side that it learned from, names of parts."""

    members: ensemble.Ensemble
    channels: dict[str, int]
    side: int
    names: tuple[str, ...]


@dataclass(frozen=True)
class Segmentation:
    """Labels int64, 0 for none of the parts, and Jensen-Shannon divergence in nats: both (rows, side, side)."""

    labels: torch.Tensor
    divergence: torch.Tensor

    @property
    def uncertainty(self) -> torch.Tensor:
        """The paper's uncertainty of each picture, (rows,): the mean of the largest tenth of its divergences."""
        sorted_ = self.divergence.flatten(1).sort(dim=1, descending=True).values
        return sorted_[:, : max(int(sorted_.shape[1] * _MOST_UNCERTAIN), 1)].mean(1)


class Table:
    """Activations (rows, D) of any pixel of a batch on a square of ``side`` pixels, interpolated when asked for."""

    def __init__(self, activations: Activations, side: int):
        size = activations.grid
        joined = [F.interpolate(one.float(), size=size, mode="nearest") for one in activations.features.values()]
        joined = torch.cat(joined, dim=1)
        self._height, self._width = size
        self._cells = joined.movedim(1, -1).flatten(0, -2).contiguous()
        self._side = side
        self._vertical, self._horizontal = _cells_of(side, size[0]), _cells_of(side, size[1])
        self.width, self.count = joined.shape[1], len(joined) * side * side

    def __call__(self, pixels: torch.Tensor) -> torch.Tensor:
        """Activations (N, D) of pixels by number: picture, then row, then column."""
        picture, place = pixels // self._side**2, pixels % self._side**2
        up, down, vertical = (values[place // self._side] for values in self._vertical)
        left, right, horizontal = (values[place % self._side] for values in self._horizontal)
        upper, lower = (picture * self._height + line for line in (up, down))

        def along(line: torch.Tensor) -> torch.Tensor:
            cells = (self._cells[line * self._width + column] for column in (left, right))
            return torch.lerp(*cells, horizontal[:, None])

        return torch.lerp(along(upper), along(lower), vertical[:, None])


def train(
    activations: Activations,
    labels: torch.Tensor,
    names: tuple[str, ...],
    side: int,
    seed: int,
    epochs: int = ensemble.EPOCHS,
    watch=iter,
) -> Segmenter:
    """Train on pictures with labels int (rows, height, width): 0 none, 1 the first of ``names``, ``IGNORED`` unknown.

    Raises ValueError when fewer than two labels are left to learn.
    """
    table, labels = Table(activations, side), _at_side(labels, side)
    known = torch.nonzero(labels != IGNORED).flatten()
    if len(labels[known].unique()) < 2:
        raise ValueError(
            "The masks leave only one label to learn: paint parts that cover some of a picture, not all or none of it."
        )
    chosen = labels[known]
    members = ensemble.train(
        lambda rows: table(known[rows]), chosen, table.width, len(names) + 1, seed, epochs, watch
    )
    return Segmenter(members, {id_: value.shape[1] for id_, value in activations.features.items()}, side, names)


def segment(segmenter: Segmenter, activations: Activations, watch=iter, side: int | None = None) -> Segmentation:
    """Labels by the vote of the members (of equally many votes the lowest label), and how they disagree.

    At ``side`` pixels a side, without it at that of the training. Raises ValueError for activations other than those
    that the segmenter was trained on.
    """
    channels = {id_: value.shape[1] for id_, value in activations.features.items()}
    if channels != segmenter.channels:
        raise ValueError(
            f"The segmenter was trained on {', '.join(segmenter.channels)}, and these activations are others: tap with "
            "the same preset or list, on the same model."
        )
    side, rows = side or segmenter.side, len(activations.rows)
    table = Table(activations, side)
    labels, divergence = [], []
    for part in watch(range(-(-table.count // _PIXELS_AT_A_TIME))):
        pixels = torch.arange(part * _PIXELS_AT_A_TIME, min((part + 1) * _PIXELS_AT_A_TIME, table.count))
        probabilities = segmenter.members.probabilities(table(pixels))
        labels.append(probabilities.argmax(-1).mode(0).values)
        divergence.append(jensen_shannon(probabilities))
    return Segmentation(torch.cat(labels).view(rows, side, side), torch.cat(divergence).view(rows, side, side))


def jensen_shannon(probabilities: torch.Tensor) -> torch.Tensor:
    """Entropy of the mean less the mean of the entropies, in nats, of (members, N, classes): (N,), 0 or more."""

    def entropy(p: torch.Tensor) -> torch.Tensor:
        return -torch.xlogy(p, p).sum(-1)

    return (entropy(probabilities.mean(0)) - entropy(probabilities).mean(0)).clamp_min(0)


def labels_of(parts: list[torch.Tensor]) -> torch.Tensor:
    """Labels int64 (rows, H, W) of part masks (rows, H, W): 1 + the part with the largest value, 0 below a half."""
    stacked = torch.stack(parts)
    value, part = stacked.max(0)
    return torch.where(value >= 0.5, part + 1, 0)


def mean_iou(predicted: torch.Tensor, truth: torch.Tensor, classes: int) -> torch.Tensor:
    """Intersection over union of each class over all pictures, float64 (classes,), as the official code counts it.

    Pixels whose truth is ``IGNORED`` still count in the union of what is predicted there; a class found nowhere has 0.
    """
    found = []
    for label in range(classes):
        mine, real = predicted == label, truth == label
        found.append((mine & real).sum().double() / ((mine | real).sum().double() + 1e-8))
    return torch.stack(found)


def _at_side(labels: torch.Tensor, side: int) -> torch.Tensor:
    """Labels by nearest neighbour, flat (rows * side * side,), with parts of too few pixels unknown."""
    resized = F.interpolate(labels[:, None].float(), size=(side, side), mode="nearest")[:, 0].long()
    for picture in resized:
        values, counts = picture.unique(return_counts=True)
        for value in values[counts < _TOO_FEW].tolist():
            picture[picture == value] = IGNORED
    return resized.flatten()


def _cells_of(side: int, count: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """For each of ``side`` pixel centres, the two of ``count`` cells around it and the second's weight."""
    place = ((torch.arange(side) + 0.5) * (count / side) - 0.5).clamp_min(0)
    first = place.floor().long().clamp_max(count - 1)
    return first, (first + 1).clamp_max(count - 1), place - first
