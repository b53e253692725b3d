"""What pairing noise with images gains: measured on the images, and predicted for white images.

The gain is the fraction by which the mean distance between an image and its noise shrinks, in
percent.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, replace

import torch

from . import nearest
from .assignment import pool_turns
from .batch_matrix import flatten_batch
from .nearest import NearestForm
from .pairing import Batch, DrawnNoise, Pairing, PairingMode, PairingSettings, pair

# Mean selected entry of an optimal assignment in a B x B matrix of N(0, 1), by simulation; B = 1,
# 2, 4, ...
_SELECTED = (0.0, 0.400, 0.815, 1.204, 1.555, 1.876, 2.166, 2.433, 2.673, 2.904, 3.120, 3.317)


@dataclass(frozen=True)
class Bucket:
    """Images of one size: (N, D), their weights where they are masked, and whether all of them are
    blank.
    """

    data: torch.Tensor
    weights: torch.Tensor | None = None
    is_blank: bool = False

    @property
    def no_gain_reason(self) -> str | None:
        """Why these images have nothing to gain from swapping noise among each other; None when
        they have.
        """
        if self.is_blank:
            return "the latents are empty, and no noise is nearer to them than another"
        if len(self.data) == 1:
            return "there is one image, and no other to swap noise with"
        if bool((self.data == self.data[:1]).all()):
            return "all images are the same"
        return None


@dataclass(frozen=True, kw_only=True)
class GainPlan:
    """The training that a gain is estimated for."""

    batch_size: int
    pool_size: int
    k: float

    @property
    def sizes(self) -> list[int]:
        """How many images at once to measure: powers of two, and the two numbers of the plan."""
        largest = max(self.batch_size, self.pool_size)
        return sorted(
            {
                *(2**exponent for exponent in range(largest.bit_length())),
                self.batch_size,
                self.pool_size,
            }
        )


@dataclass(frozen=True)
class GainEstimate:
    """Percent of L2 gained: by assignment, for each number of images assigned at once, and by the
    nearest of k.
    """

    plan: GainPlan
    gains: dict[int, float]
    nearest: float

    @property
    def batch(self) -> float:
        """The gain of assignment in a batch."""
        return self.gains[self.plan.batch_size]

    @property
    def pool(self) -> float:
        """The gain of assignment in the pool."""
        return self.gains[self.plan.pool_size]


def make_buckets(batches: list[Batch]) -> list[Bucket]:
    """The images of several LATENTs, those of one size together."""
    by_size: dict[tuple, list[Batch]] = defaultdict(list)
    for batch in batches:
        by_size[tuple(part.shape[1:] for part in batch.parts)].append(batch)
    return [_join_batches(same) for same in by_size.values()]


def estimate_assignment(buckets: list[Bucket], size: int, generator: torch.Generator) -> float:
    """The gain of assigning so many images at once, in percent; small batches are tried several
    times.
    """
    values = []
    for bucket in buckets:
        trials = 0 if bucket.no_gain_reason or size == 1 else min(16, max(1, 64 // size))
        tried = [measure_assignment(bucket, size, generator) for _ in range(trials)]
        values.append(sum(tried) / trials if trials else 0.0)
    return _mean_over_images(buckets, values)


def estimate_nearest(buckets: list[Bucket], k: float, generator: torch.Generator) -> float:
    """The gain of the nearest of k, in percent."""
    gains = [
        0.0 if bucket.is_blank else measure_nearest(bucket, k, generator) for bucket in buckets
    ]
    return _mean_over_images(buckets, gains)


def measure_assignment(bucket: Bucket, batch: int, generator: torch.Generator) -> float:
    """The gain of assignment in one random batch, in percent; images come several times where there
    are too few.
    """
    data = bucket.data
    weights = bucket.weights
    if batch < len(data):
        chosen = torch.randperm(len(data), generator=generator)[:batch].to(data.device)
        data = data[chosen]
        weights = None if weights is None else weights[chosen]
    turns = pool_turns(batch, len(data))
    noise = torch.randn(turns * len(data), data.shape[1], generator=generator).to(data.device)
    images = _BucketBatch(data, weights)
    source = DrawnNoise(images.numbers, lambda numbers: [noise[numbers]])
    settings = PairingSettings(pairing=PairingMode.POOL, pool_size=batch)
    drawn = noise.split(len(data))
    pairings = [
        pair(replace(settings, pool_index=turn), images, [drawn[turn]], source, seed=0)
        for turn in range(turns)
    ]
    return _gain(pairings)


def measure_nearest(bucket: Bucket, k: float, generator: torch.Generator) -> float:
    """The gain of the nearest of k in one draw for every image, in percent."""
    noise = torch.randn(bucket.data.shape, generator=generator).to(bucket.data.device)
    form = NearestForm.CLOSED_FORM if k == int(k) else NearestForm.DOT_PRODUCT
    settings = PairingSettings(pairing=PairingMode.NEAREST, k=k, nearest_form=form)
    seed = int(torch.randint(2**62, (), generator=generator))
    return _gain(
        [
            pair(
                settings,
                _BucketBatch(bucket.data, bucket.weights),
                drawn=[noise],
                source=None,
                seed=seed,
            )
        ]
    )


def mean_selected(batch: float) -> float:
    """m_B: what assignment in a batch gains along each image, in standard deviations; interpolated
    in log B.
    """
    position = min(max(math.log2(batch), 0), len(_SELECTED) - 1)
    low = min(int(position), len(_SELECTED) - 2)
    fraction = position - low
    return _SELECTED[low] * (1 - fraction) + _SELECTED[low + 1] * fraction


def predict_assignment(bucket: Bucket, batch: float) -> float:
    """The gain of assignment in a batch, in percent, if the images were white: s_c m_B / (sqrt(D)
    (1 + s^2)).

    Noise shared out to N images that come again and again gains no more than the nearest image for
    each noise sample: m_B ends at the mean of the largest of N normals.
    """
    data = bucket.data
    if len(data) == 1:
        return 0.0
    power = float(data.square().mean())
    spread = float(data.var(dim=0).mean().sqrt())
    selected = min(mean_selected(batch), nearest.largest_of_normals(len(data)))
    return 100 * spread * selected / (math.sqrt(data.shape[1]) * (1 + power))


def gain_curve(buckets: list[Bucket], estimate: GainEstimate) -> list[tuple[int, float, float]]:
    """(images assigned at once, measured gain, predicted gain) of each size that was measured."""
    return [
        (
            size,
            measured,
            _mean_over_images(buckets, [predict_assignment(bucket, size) for bucket in buckets]),
        )
        for size, measured in estimate.gains.items()
    ]


def describe_gain(buckets: list[Bucket], estimate: GainEstimate) -> str:
    """The three gains as text, and why one of them is zero."""
    plan = estimate.plan
    lines = [
        f"Estimated gain of a training on {sum(len(bucket.data) for bucket in buckets)} images of "
        f"{len(buckets)} size(s). L2 between an image and its noise shrinks by",
        f"assign in batches of {plan.batch_size}: {estimate.batch:.2f} %",
        f"pool of {plan.pool_size}: {estimate.pool:.2f} %",
        f"nearest of {plan.k:g}: {estimate.nearest:.2f} %",
    ]
    if plan.batch_size == 1:
        lines.append("A batch of 1 gains nothing by assignment: choose pool or nearest.")
    for bucket in buckets:
        if bucket.no_gain_reason:
            lines.append(
                f"No gain by assignment for {len(bucket.data)} of the images: "
                f"{bucket.no_gain_reason}."
            )
    return "\n".join(lines)


class _BucketBatch:
    """Rows of a bucket as a batch of one part."""

    def __init__(self, data: torch.Tensor, weights: torch.Tensor | None):
        self.parts = [data]
        self.weights = None if weights is None else [weights]
        self.numbers = list(range(len(data)))
        self.blank = torch.zeros(len(data), dtype=torch.bool)


def _gain(pairings: list[Pairing]) -> float:
    before, after = (
        sum(float(getattr(one, name).sum()) for one in pairings) for name in ("before", "after")
    )
    return 100 * (1 - after / before) if before else 0.0


def _mean_over_images(buckets: list[Bucket], values: list[float]) -> float:
    """One value per bucket, averaged over images."""
    total = sum(len(bucket.data) * value for bucket, value in zip(buckets, values, strict=True))
    return total / sum(len(bucket.data) for bucket in buckets)


def _join_batches(batches: list[Batch]) -> Bucket:
    data = torch.cat([flatten_batch(batch.parts) for batch in batches])
    is_blank = bool(torch.cat([batch.blank for batch in batches]).all())
    if all(batch.weights is None for batch in batches):
        return Bucket(data, None, is_blank)
    whole = [batch.weights or [torch.ones_like(part) for part in batch.parts] for batch in batches]
    return Bucket(data, torch.cat([flatten_batch(weights) for weights in whole]), is_blank)
