"""The gains of a set of pictures of one or several sizes, for a batch size, a pool size and a k."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import torch

from . import gain
from .gain import Bucket
from .pairing import View
from .rows import rows


@dataclass(frozen=True)
class Buckets:
    """Pictures by size, and why a size has nothing to gain from assignment (None: it has)."""

    buckets: list[Bucket]
    reasons: list[str | None]
    blank: list[bool]

    @property
    def pictures(self) -> int:
        """How many pictures there are."""
        return sum(len(bucket.data) for bucket in self.buckets)

    def mean(self, values: list[float]) -> float:
        """One value a bucket, averaged over pictures."""
        total = sum(len(bucket.data) * value for bucket, value in zip(self.buckets, values, strict=True))
        return total / self.pictures


@dataclass(frozen=True)
class Plan:
    """What the user thinks of training with."""

    batch_size: int
    pool_size: int
    k: float

    @property
    def sizes(self) -> list[int]:
        """How many pictures at once to measure: powers of two, and the two numbers of the plan."""
        largest = max(self.batch_size, self.pool_size)
        return sorted({*(2**exponent for exponent in range(largest.bit_length())), self.batch_size, self.pool_size})


@dataclass(frozen=True)
class Result:
    """Percent of L2 gained: by assignment, for each number of pictures assigned at once, and by the nearest of k."""

    plan: Plan
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


def buckets(views: list[View]) -> Buckets:
    """The pictures of several LATENTs, those of one size together."""
    by_size: dict[tuple, list[View]] = defaultdict(list)
    for view in views:
        by_size[tuple(part.shape[1:] for part in view.parts)].append(view)
    found = [_bucket(same) for same in by_size.values()]
    blank = [bool(torch.cat([view.blank for view in same]).all()) for same in by_size.values()]
    return Buckets(found, [gain.nothing(*pair) for pair in zip(found, blank, strict=True)], blank)


def assignment(buckets: Buckets, size: int, generator: torch.Generator) -> float:
    """The gain of assignment of so many pictures at once, in percent; small batches are tried several times."""
    values = []
    for bucket, reason in zip(buckets.buckets, buckets.reasons, strict=True):
        trials = 0 if reason or size == 1 else min(16, max(1, 64 // size))
        tried = [gain.measured_assignment(bucket, size, generator) for _ in range(trials)]
        values.append(sum(tried) / trials if trials else 0.0)
    return buckets.mean(values)


def nearest_of(buckets: Buckets, k: float, generator: torch.Generator) -> float:
    """The gain of the nearest of k, in percent."""
    pairs = zip(buckets.buckets, buckets.blank, strict=True)
    return buckets.mean([0.0 if blank else gain.measured_nearest(bucket, k, generator) for bucket, blank in pairs])


def curves(buckets: Buckets, result: Result) -> tuple[list[tuple[int, float, float]], list[tuple[str, float]]]:
    """What `report.draw_gains` draws."""
    points = [
        (size, measured, buckets.mean([gain.predicted_assignment(bucket, size) for bucket in buckets.buckets]))
        for size, measured in result.gains.items()
    ]
    return points, [(f"nearest of {result.plan.k:g}", result.nearest)]


def describe(buckets: Buckets, result: Result) -> str:
    """The three gains in words, and why one of them is nothing."""
    plan = result.plan
    lines = [
        f"{buckets.pictures} pictures of {len(buckets.buckets)} size(s). L2 between a picture and its noise shrinks by",
        f"assign in batches of {plan.batch_size}: {result.batch:.2f} %",
        f"pool of {plan.pool_size}: {result.pool:.2f} %",
        f"nearest of {plan.k:g}: {result.nearest:.2f} %",
    ]
    if plan.batch_size == 1:
        lines.append("A batch of 1 gains nothing by assignment: take pool or nearest.")
    for bucket, reason in zip(buckets.buckets, buckets.reasons, strict=True):
        if reason:
            lines.append(f"Nothing to gain by assignment for {len(bucket.data)} of the pictures: {reason}.")
    return "\n".join(lines)


def _bucket(views: list[View]) -> Bucket:
    data = torch.cat([rows(view.parts) for view in views])
    if all(view.weights is None for view in views):
        return Bucket(data)
    whole = [view.weights or [torch.ones_like(part) for part in view.parts] for view in views]
    return Bucket(data, torch.cat([rows(weights) for weights in whole]))
