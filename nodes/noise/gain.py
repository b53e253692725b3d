"""What pairing noise with pictures gains: measured on the pictures, and as white pictures would have it.

The gain is the share by which the mean distance between a picture and its noise shrinks, in percent.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from . import nearest
from .pool import Pool, turns
from .rows import distances

# Mean selected entry of an optimal assignment in a B x B matrix of N(0, 1), by simulation.
_SELECTED = {
    1: 0.0, 2: 0.400, 4: 0.815, 8: 1.204, 16: 1.555, 32: 1.876, 64: 2.166, 128: 2.433, 256: 2.673, 512: 2.904,
    1024: 3.120, 2048: 3.317,
}  # fmt: skip


@dataclass(frozen=True)
class Bucket:
    """Pictures of one size: (N, D), and their weights where they are masked."""

    data: torch.Tensor
    weights: torch.Tensor | None = None


def mean_selected(batch: float) -> float:
    """m_B: what assignment in a batch gains along each picture, in standard deviations; interpolated in log B."""
    sizes = list(_SELECTED)
    position = min(max(math.log2(batch), 0), len(sizes) - 1)
    low = min(int(position), len(sizes) - 2)
    share = position - low
    return _SELECTED[sizes[low]] * (1 - share) + _SELECTED[sizes[low + 1]] * share


def predicted_assignment(bucket: Bucket, batch: float) -> float:
    """The gain of assignment in a batch, in percent, if the pictures were white: s_c m_B / (sqrt(D) (1 + s^2)).

    Noise shared out to N pictures that come again and again gains no more than the nearest picture for each noise: m_B
    ends at the mean of the largest of N normals.
    """
    data = bucket.data
    if len(data) == 1:
        return 0.0
    power = float(data.square().mean())
    spread = float(data.var(dim=0).mean().sqrt())
    selected = min(mean_selected(batch), nearest.largest_of_normals(len(data)))
    return 100 * spread * selected / (math.sqrt(data.shape[1]) * (1 + power))


def predicted_nearest(bucket: Bucket, k: float) -> float:
    """The gain of the nearest of k, in percent: m_k sqrt(2 + 4 s^2) / (2 sqrt(D) (1 + s^2))."""
    power = float(bucket.data.square().mean())
    largest = nearest.largest_of_normals(k)
    return 50 * largest * math.sqrt(2 + 4 * power) / (math.sqrt(bucket.data.shape[1]) * (1 + power))


def measured_assignment(bucket: Bucket, batch: int, generator: torch.Generator) -> float:
    """The gain of assignment in one random batch, in percent; pictures come several times where there are too few."""
    data, weights = bucket.data, bucket.weights
    if batch < len(data):
        chosen = torch.randperm(len(data), generator=generator)[:batch].to(data.device)
        data, weights = data[chosen], None if weights is None else weights[chosen]
    copies = turns(batch, len(data))
    noise = _noise(data, copies, generator)
    pool = Pool.build(data, noise, weights=weights)
    before = after = 0.0
    for turn in range(copies):
        before += float(distances(data, noise[turn * len(data) : (turn + 1) * len(data)], weights).sum())
        after += float(distances(data, noise[pool.serve(turn).to(noise.device)], weights).sum())
    return 100 * (1 - after / before)


def measured_nearest(bucket: Bucket, k: float, generator: torch.Generator) -> float:
    """The gain of the nearest of k in one draw for every picture, in percent."""
    data, weights = bucket.data, bucket.weights
    noise = _noise(data, 1, generator)
    streams = nearest.streams(int(torch.randint(2**62, (), generator=generator)), range(len(data)))
    if k == int(k):
        moved = nearest.closed_form(data, noise, int(k), streams, weights)
    else:
        moved = nearest.dot_form(data, noise, k, streams, weights)
    before = distances(data, noise, weights).sum()
    return 100 * float(1 - distances(data, moved, weights).sum() / before)


def nothing(bucket: Bucket, blank: bool) -> str | None:
    """Why these pictures have nothing to gain from swapping noise among each other; None when they have."""
    if blank:
        return "the latents are empty, and no noise is nearer to nothing than another"
    if len(bucket.data) == 1:
        return "there is one picture, and no other to swap noise with"
    if bool((bucket.data == bucket.data[:1]).all()):
        return "all pictures are the same"
    return None


def _noise(data: torch.Tensor, copies: int, generator: torch.Generator) -> torch.Tensor:
    return torch.randn(copies * len(data), data.shape[1], generator=generator).to(data.device)
