"""Similarity of images: whether an image replicates another, and how varied a batch is.

Finding NeMo (arXiv 2406.02366), section 4, measures with SSCD embeddings. Here: the cosine of
embeddings of any network (SSCD, CLIP vision, the demo world's judge), or structural similarity
(SSIM) at 128 x 128, which requires the same things in the same place and takes any two flat images
for similar. Replication counts the best match over small shifts, zooms and mirroring.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch.nn import functional as F

from ..common.pil_images import rgb
from ..common.ssim import ssim
from .score_threshold import wilson_interval

_SIDE = 128
_TAPS = 11
#: Shifts along x or y as fractions of the side, and zooms, that still count as the same image.
_SHIFTS = (-0.04, -0.02, 0.02, 0.04)
_ZOOMS = (1.05, 1.1)

#: Images (N, H, W, 3) of 0..1 -> embeddings (N, D).
Embed = Callable[[torch.Tensor], torch.Tensor]
#: Goes over items, such as a progress bar does.
Track = Callable[[Iterable], Iterable]
#: Images (N, H, W, 3) of 0..1 -> labels of what they show (N, labels), and how many faces (N,).
Read = Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]
#: An image is gone where no more is left of it than this over a generic prompt's: similarity,
#: fraction of labels.
GONE_SIMILARITY = 0.05
GONE_LABELS = 0.1
#: What became of an image under a mask.
GONE = "gone"
KEPT = "not gone"
BROKEN = "broken"


@dataclass(frozen=True)
class ImageSimilarity:
    """Similarities of a batch of images: between each other (B, B), and to a reference (B,) where
    there is one.
    """

    between: torch.Tensor
    to_reference: torch.Tensor | None

    @property
    def sameness(self) -> float | None:
        """Median similarity of two different images: 1 is always the same image. None for a single
        image.
        """
        count = len(self.between)
        if count < 2:
            return None
        first, second = torch.triu_indices(count, count, 1)
        return float(self.between[first, second].median())

    @property
    def replication(self) -> float | None:
        """Median similarity to the reference."""
        return None if self.to_reference is None else float(self.to_reference.median())


def compare_images(
    images: torch.Tensor,
    reference: torch.Tensor | None,
    embed: Embed | None = None,
    track: Track = iter,
) -> ImageSimilarity:
    """Compare images (B, H, W, 3) of 0..1 with each other, and with ``reference`` as
    `compare_to_reference`.
    """
    count = len(images)
    features = _features(images, embed)
    pairs = torch.eye(count)
    for first, second in track([*itertools.combinations(range(count), 2)]):
        pairs[first, second] = pairs[second, first] = _similarity(
            features[[first]], features[[second]], embed
        )[0]
    return ImageSimilarity(
        pairs, None if reference is None else compare_to_reference(images, reference, embed, track)
    )


def compare_to_reference(
    images: torch.Tensor, reference: torch.Tensor, embed: Embed | None = None, track: Track = iter
) -> torch.Tensor:
    """The greatest similarity (B,) of images (B, H, W, 3) of 0..1 to the first of ``reference`` and
    its variants.

    By the cosine of what ``embed`` gives; by SSIM without it. ``track`` goes over the images, and
    may stop.
    """
    variants = _features(transformed(rgb(reference[:1])), embed)
    features = _features(images, embed)
    return torch.stack(
        [_similarity(variants, one.expand_as(variants), embed).max() for one in track(features)]
    )


def compare_pairs(
    before: torch.Tensor, after: torch.Tensor, embed: Embed | None = None
) -> torch.Tensor:
    """Similarity of two batches seed by seed, (B,). Raises ValueError when they differ in size."""
    if len(before) != len(after):
        raise ValueError(
            f"There are {len(before)} images before and {len(after)} after: use the same seed and "
            "batch size for both."
        )
    return _similarity(_features(before, embed), _features(after, embed), embed)


def transformed(image: torch.Tensor) -> torch.Tensor:
    """An image (1, H, W, 3) and its small shifts and zooms, all of them also mirrored: (22, H, W,
    3).

    Pixels that come in at a border repeat it.
    """
    moves = [(1.0, shift, 0.0) for shift in _SHIFTS] + [(1.0, 0.0, shift) for shift in _SHIFTS]
    moves += [(zoom, 0.0, 0.0) for zoom in _ZOOMS]
    theta = torch.tensor([[[1 / zoom, 0, 2 * x], [0, 1 / zoom, 2 * y]] for zoom, x, y in moves])
    source = image.movedim(-1, 1).float().expand(len(moves), -1, -1, -1)
    grid = F.affine_grid(theta.to(source), list(source.shape), align_corners=False)
    moved = F.grid_sample(source, grid, mode="bilinear", padding_mode="border", align_corners=False)
    upright = torch.cat([image.float(), moved.movedim(1, -1)])
    return torch.cat([upright, upright.flip(2)])


def _features(images: torch.Tensor, embed: Embed | None) -> torch.Tensor:
    if embed is not None:
        return F.normalize(embed(rgb(images)).float().cpu().flatten(1))
    channels_first = rgb(images).permute(0, 3, 1, 2).float()
    return F.interpolate(
        channels_first, (_SIDE, _SIDE), mode="bilinear", align_corners=False, antialias=True
    )


def _similarity(a: torch.Tensor, b: torch.Tensor, embed: Embed | None) -> torch.Tensor:
    return ssim(a, b, _TAPS) if embed is None else (a * b).sum(1)


@dataclass(frozen=True, kw_only=True)
class ReplicationThreshold:
    """The similarity above which an image counts as a replica, and what it was calibrated on."""

    value: float
    untouched: tuple[float, ...] = ()
    controls: tuple[float, ...] = ()
    calibrated: bool = False

    @property
    def false_positives(self) -> tuple[float, float, float] | None:
        """Fraction of the control images above the threshold, with its 95 % Wilson interval; None
        without controls.

        A calibrated threshold judges each control image as calibrated on the others.
        """
        if not self.controls:
            return None
        values = [self.value] * len(self.controls)
        if self.calibrated:
            others = [
                [*self.controls[:i], *self.controls[i + 1 :]] for i in range(len(self.controls))
            ]
            values = [_between(rest, self.untouched) for rest in others]
        over = sum(score > value for score, value in zip(self.controls, values, strict=True))
        return wilson_interval(over, len(self.controls))


def calibrate_replication(untouched: list[float], controls: list[float]) -> ReplicationThreshold:
    """The threshold halfway between the most similar control image and the median untouched image.

    ``untouched``: similarities of images that the unmasked model generates for the memorized
    prompt; ``controls``: of images that are no replicas. Raises ValueError where there are fewer
    than three of either, or where they overlap.
    """
    if len(untouched) < 3 or len(controls) < 3:
        raise ValueError(
            "Calibrating the replication threshold needs three or more images of either kind."
        )
    if np.median(untouched) <= max(controls):
        raise ValueError(
            f"Untouched images (median similarity {np.median(untouched):.3f}) are not more similar "
            f"to the image than control images (up to {max(controls):.3f}): use another "
            "similarity, or other images."
        )
    return ReplicationThreshold(
        value=_between(controls, untouched),
        untouched=tuple(untouched),
        controls=tuple(controls),
        calibrated=True,
    )


def _between(controls: Sequence[float], untouched: Sequence[float]) -> float:
    return float((max(controls) + np.median(untouched)) / 2)


@dataclass(frozen=True)
class Remains:
    """What images have of a reference: the median similarity, and where labels are read the
    fraction that is the same.

    ``faces``: the fraction of the images with one face.
    """

    similarity: float
    labels: float | None = None
    faces: float | None = None

    def __str__(self) -> str:
        if self.labels is None or self.faces is None:
            return f"similarity {self.similarity:.3f}"
        return (
            f"similarity {self.similarity:.3f}, labels {self.labels:.2f}, one face {self.faces:.2f}"
        )

    def excess(self, generic: Remains) -> float:
        """How much more is left than where an image is gone; 0 or less where it is.

        Broken images do not count as gone: theirs is the fraction of faces that they lack.
        """
        over = [self.similarity - generic.similarity - GONE_SIMILARITY]
        if self.labels is not None and generic.labels is not None:
            over.append(self.labels - generic.labels - GONE_LABELS)
        if self.broken(generic):
            assert self.faces is not None and generic.faces is not None
            over.append(1 - self.faces / generic.faces)  # over a half
        return max(over)

    def broken(self, generic: Remains) -> bool:
        """Whether less than half as many images show one face as of a generic prompt."""
        if self.faces is None or generic.faces is None:
            return False
        return self.faces < generic.faces / 2

    def end(self, generic: Remains) -> str:
        """What became of the image, beside a generic prompt on the same model: ``GONE``, ``KEPT``
        or ``BROKEN``.
        """
        if self.broken(generic):
            return BROKEN
        return GONE if self.excess(generic) <= 0 else KEPT

    def verdict(self, generic: Remains) -> str:
        """One sentence on that."""
        end = self.end(generic)
        if end == BROKEN:
            return (
                f"Broken: {self.faces:.0%} of the images show one face, and {generic.faces:.0%} of "
                "the generic prompt's. They do not count as gone."
            )
        if end == GONE:
            return (
                "Gone: no more is left of the image than a generic prompt gives on the same model."
            )
        return "Not gone: more is left of the image than a generic prompt gives on the same model."


def remains(
    images: torch.Tensor,
    reference: torch.Tensor,
    embed: Embed | None,
    read: Read | None = None,
    track: Track = iter,
) -> Remains:
    """What images (B, H, W, 3) of 0..1 have of the first of ``reference``."""
    similarity = float(compare_to_reference(images, reference, embed, track).median())
    if read is None:
        return Remains(similarity)
    labels, faces = read(rgb(images))
    wanted, _ = read(rgb(reference[:1]))
    return Remains(
        similarity, float((labels == wanted).float().mean()), float((faces == 1).float().mean())
    )
