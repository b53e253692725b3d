"""Learn parts from a few images: the paper's few-shot segmentation (arXiv 2410.03558, section 6, as
on Horse-21).

Activations are joined by nearest neighbor at the finest size, then interpolated bilinearly at every
pixel of a square of ``side`` pixels, 256 in the paper. Labels are resized by nearest neighbor. Each
pixel is classified by its own activations alone, so the segmenter can be applied at another
resolution.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from copy import copy
from dataclasses import dataclass, replace

import torch
from torch.nn import functional as F

from . import pixel_classifier
from .activations import Activations, neighbors

IGNORED = 255
#: A part with fewer pixels than this in an image is ignored there in training.
_MIN_PIXELS = 20
_UNCERTAIN_FRACTION = 0.1
_CHUNK = 1 << 12


@dataclass(frozen=True)
class Segmenter:
    """A trained ensemble, its channels by ID, the side of its training, and the names of its
    parts.
    """

    members: pixel_classifier.Ensemble
    channels: dict[str, int]
    side: int
    names: tuple[str, ...]

    def __str__(self) -> str:
        return (
            f"FEW_SHOT_SEGMENTER: {', '.join(self.names)}\n{len(self.channels)} IDs at {self.side} "
            f"x {self.side}"
        )

    def to(self, device: torch.device) -> Segmenter:
        """The same with its networks on a device."""
        return replace(self, members=self.members.to(device))


@dataclass(frozen=True)
class Segmentation:
    """Labels int64, 0 for none of the parts, and Jensen-Shannon divergence in nats: both (rows,
    side, side).
    """

    labels: torch.Tensor
    divergence: torch.Tensor

    def to(self, device: torch.device) -> Segmentation:
        """The same on a device."""
        return Segmentation(self.labels.to(device), self.divergence.to(device))

    @property
    def uncertainty(self) -> torch.Tensor:
        """The paper's uncertainty of each image, (rows,): the mean of the largest tenth of its
        divergences.
        """
        sorted_ = self.divergence.flatten(1).sort(dim=1, descending=True).values
        return sorted_[:, : max(int(sorted_.shape[1] * _UNCERTAIN_FRACTION), 1)].mean(1)


class PixelFeatures:
    """Activations (rows, D) of any pixel of a batch on a square of ``side`` pixels, interpolated on
    demand.
    """

    def __init__(self, activations: Activations, side: int):
        size = activations.grid
        resized = [
            F.interpolate(one.float(), size=size, mode="nearest")
            for one in activations.features.values()
        ]
        joined = torch.cat(resized, dim=1)
        self._height, self._width = size
        self._cells = joined.movedim(1, -1).flatten(0, -2).contiguous()
        self._side = side
        positions = torch.arange(side, device=joined.device)
        self._vertical, self._horizontal = (neighbors(positions, side, count) for count in size)
        self.width = joined.shape[1]
        self.count = len(joined) * side * side
        self.device = joined.device

    def map(self, affine: Callable[[torch.Tensor], torch.Tensor]) -> PixelFeatures:
        """The table of ``affine`` of each pixel's activations: computed at the cells, since weights
        sum to 1.
        """
        mapped = copy(self)
        mapped._cells = affine(self._cells)
        mapped.width = mapped._cells.shape[1]
        return mapped

    def __call__(self, pixels: torch.Tensor) -> torch.Tensor:
        """Activations (N, D) of pixels by number: image, then row, then column."""
        image = pixels // self._side**2
        place = pixels % self._side**2
        up, down, vertical = (values[place // self._side] for values in self._vertical)
        left, right, horizontal = (values[place % self._side] for values in self._horizontal)
        upper, lower = (image * self._height + line for line in (up, down))

        def along(line: torch.Tensor) -> torch.Tensor:
            near, far = (self._cells[line * self._width + column] for column in (left, right))
            return torch.lerp(near, far, horizontal[:, None])

        return torch.lerp(along(upper), along(lower), vertical[:, None])


def train(
    activations: Activations,
    labels: torch.Tensor,
    names: tuple[str, ...],
    side: int,
    seed: int,
    epochs: int = pixel_classifier.EPOCHS,
    watch: pixel_classifier.Watch = iter,
) -> Segmenter:
    """Train on images with labels int (rows, height, width): 0 none, 1 the first of ``names``,
    ``IGNORED`` unknown.

    ``watch`` wraps the range of training parts and may stop by raising. Raises ValueError with
    fewer than two labels.
    """
    table = PixelFeatures(activations, side)
    labels = _labels_at(labels, side)
    known = torch.nonzero(labels != IGNORED).flatten()
    if len(labels[known].unique()) < 2:
        raise ValueError(
            "The masks hold only one label. Each part must cover some of an image, not all or "
            "none of it."
        )
    chosen = labels[known]
    members = pixel_classifier.train(
        lambda rows: table(known[rows]),
        chosen,
        width=table.width,
        classes=len(names) + 1,
        seed=seed,
        epochs=epochs,
        watch=watch,
    )
    return Segmenter(
        members, {id_: value.shape[1] for id_, value in activations.features.items()}, side, names
    )


def segment(
    segmenter: Segmenter,
    activations: Activations,
    watch: pixel_classifier.Watch = iter,
    side: int | None = None,
) -> Segmentation:
    """Labels by majority vote of the members (in a tie the lowest label), and their disagreement.

    ``side``: pixels per side; by default that of the training. Raises ValueError for activations
    with other IDs or channels than those of the training.
    """
    channels = {id_: value.shape[1] for id_, value in activations.features.items()}
    if channels != segmenter.channels:
        raise ValueError(
            f"The segmenter was trained on {', '.join(segmenter.channels)}, and these activations "
            "are different. Tap the same preset or IDs on the same model."
        )
    side = side or segmenter.side
    rows = len(activations.rows)
    table = PixelFeatures(activations, side)
    members = (
        segmenter.members if table.device.type == "cpu" else segmenter.members.to(table.device)
    )
    table = table.map(members.first_layer)
    labels = []
    divergence = []
    for part in watch(range(-(-table.count // _CHUNK))):
        pixels = torch.arange(
            part * _CHUNK, min((part + 1) * _CHUNK, table.count), device=table.device
        )
        probabilities = members.probabilities_of(table(pixels))
        labels.append(probabilities.argmax(-1).mode(0).values)
        divergence.append(jensen_shannon(probabilities))
    return Segmentation(
        torch.cat(labels).view(rows, side, side), torch.cat(divergence).view(rows, side, side)
    )


def jensen_shannon(probabilities: torch.Tensor) -> torch.Tensor:
    """Entropy of the mean minus the mean of the entropies, in nats, of (members, N, classes): (N,),
    0 or more.
    """

    def entropy(p: torch.Tensor) -> torch.Tensor:
        return -torch.xlogy(p, p).sum(-1)

    return (entropy(probabilities.mean(0)) - entropy(probabilities).mean(0)).clamp_min(0)


def labels_from_masks(parts: list[torch.Tensor]) -> torch.Tensor:
    """Labels int64 (rows, H, W) of part masks (rows, H, W): 1 + the part with the largest value, 0
    below a half.
    """
    stacked = torch.stack(parts)
    value, part = stacked.max(0)
    return torch.where(value >= 0.5, part + 1, 0)


def part_labels(masks: list[torch.Tensor], activations: Activations) -> torch.Tensor:
    """Labels (rows, H, W) of part masks, at the size of the first."""
    size = masks[0].shape[-2:]
    sized = []
    for number, mask in enumerate(masks, 1):
        if len(mask) != len(masks[0]):
            raise ValueError(
                f"Part {number} has {len(mask)} masks and the first part {len(masks[0])}. Connect "
                "one per image, black where an image does not have the part."
            )
        same = mask.shape[-2:] == size
        sized.append(
            mask.float()
            if same
            else F.interpolate(mask[:, None].float(), size=size, mode="bilinear")[:, 0]
        )
    images = [row.image for row in activations.rows]
    if max(images) >= len(masks[0]):
        raise ValueError(
            f"The activations belong to at least {max(images) + 1} images, and each part has "
            f"{len(masks[0])} masks. Connect one per image, in the same order."
        )
    return labels_from_masks(sized)[images]


def mean_iou(predicted: torch.Tensor, truth: torch.Tensor, classes: int) -> torch.Tensor:
    """Intersection over union of each class over all images, float64 (classes,), as in the official
    code.

    Pixels whose truth is ``IGNORED`` count in the union of the predicted class; a class that
    appears nowhere has 0.
    """
    return iou_of_counts(count_overlap(predicted, truth, classes))


def count_overlap(predicted: torch.Tensor, truth: torch.Tensor, classes: int) -> torch.Tensor:
    """Pixels in the intersection and in the union of each class, int64 (classes, 2); counts of
    images add up.
    """
    counts = []
    for label in range(classes):
        found = predicted == label
        real = truth == label
        counts.append(torch.stack([(found & real).sum(), (found | real).sum()]))
    return torch.stack(counts)


def iou_of_counts(counts: torch.Tensor) -> torch.Tensor:
    """Intersection over union of each class, float64 (classes,), of the sum of ``count_overlap``
    over images.
    """
    intersection, union = counts.double().unbind(1)
    return intersection / (union + 1e-8)


def merge_reports(reports: Iterable[str]) -> str:
    """Reports of the Few-Shot Segmenter as one, with images numbered in their order; ValueError for
    another text.
    """
    lines: list[str] = []
    for line in itertools.chain.from_iterable(map(str.splitlines, reports)):
        head, colon, rest = line.partition(":")
        if not colon or not head.startswith("image "):
            raise ValueError(
                "A text is not a report of the Few-Shot Segmenter. Connect it to Preview as Text."
            )
        lines.append(f"image {len(lines)}:{rest}")
    return "\n".join(lines)


def _labels_at(labels: torch.Tensor, side: int) -> torch.Tensor:
    """Labels by nearest neighbor, flat (rows * side * side,), with parts of too few pixels
    ignored.
    """
    resized = F.interpolate(labels[:, None].float(), size=(side, side), mode="nearest")[:, 0].long()
    for image in resized:
        values, counts = image.unique(return_counts=True)
        for value in values[counts < _MIN_PIXELS].tolist():
            image[image == value] = IGNORED
    return resized.flatten()
