"""The paper's three properties of activations as numbers (arXiv 2410.03558, section 4). The measures are ours.

The paper shows the properties in pictures: diffusion noise that is left in an activation, granularity that goes from
coarse to fine within one resolution, and locality, the likeness of neighbours whatever they show.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn import functional as F

_PAIRS = 4096


@dataclass(frozen=True)
class Quality:
    """Three numbers of one activation.

    ``noise``: share of its variance that comes from the noise draw and not from the picture, 0..1. ``granularity``:
    centroid of its spatial power spectrum in shares of the finest frequency that its grid can hold, 0..1. ``locality``:
    how much more its similarity falls with distance than that of the latent that went in, -2..2.
    """

    noise: float
    granularity: float
    locality: float


class Draws:
    """Sums over draws of the noise of one activation (rows, C, H, W), so that no draw has to be kept."""

    def __init__(self):
        self._count, self._sum, self._squares = 0, 0, 0

    def add(self, feature: torch.Tensor) -> None:
        """Take another draw in; every draw has the same pictures in the same order."""
        feature = feature.double()
        self._count, self._sum, self._squares = self._count + 1, self._sum + feature, self._squares + feature.square()

    @property
    def mean(self) -> torch.Tensor:
        """The mean over draws, float32 (rows, C, H, W)."""
        return (self._sum / self._count).float()

    def noise_share(self) -> float:
        """Variance within pictures, between draws, over that plus the variance between pictures: 1 - ICC(1, 1).

        One-way analysis of variance at every channel and position, summed over them. Needs two draws and two pictures.
        """
        mean = self._sum / self._count
        within = (self._squares / self._count - mean.square()).clamp_min(0) * self._count / (self._count - 1)
        within = within.mean(0)
        between = (mean.var(0) - within / self._count).clamp_min(0)
        return float(within.sum() / (within.sum() + between.sum()).clamp_min(1e-30))


def granularity(feature: torch.Tensor) -> float:
    """Power-weighted mean frequency of a feature (rows, C, H, W), the constant left out, over the largest there is.

    About 0.54 for white noise; 0 for a feature that is the same everywhere.
    """
    power = torch.fft.fft2(feature.float() - feature.float().mean((2, 3), keepdim=True)).abs().square().sum((0, 1))
    vertical, horizontal = (torch.fft.fftfreq(length).abs() * 2 for length in feature.shape[2:])
    radius = (vertical[:, None].square() + horizontal[None].square()).sqrt()
    return float((power * radius).sum() / power.sum().clamp_min(1e-30)) / 2**0.5


def locality(feature: torch.Tensor, latent: torch.Tensor, seed: int = 0) -> float:
    """How strongly similarity goes with nearness, less the same of the latent (rows, C', H', W') that went in.

    Minus the correlation of cosine similarity with distance over random pairs of positions, the mean over pictures.
    """
    size = feature.shape[-2:]
    colours = F.adaptive_avg_pool2d(latent.float(), size) if latent.shape[-2:] != size else latent.float()
    pairs = torch.randint(size.numel(), (2, _PAIRS), generator=torch.Generator().manual_seed(seed))
    pairs = pairs[:, pairs[0] != pairs[1]]
    return _nearness(feature.float(), pairs) - _nearness(colours, pairs)


def _nearness(feature: torch.Tensor, pairs: torch.Tensor) -> float:
    """Minus the correlation of similarity with distance; 0 where either is constant."""
    width = feature.shape[-1]
    rows, columns = pairs // width, pairs % width
    distance = torch.hypot((rows[0] - rows[1]).float(), (columns[0] - columns[1]).float())
    directions = F.normalize(feature.flatten(2), dim=1)
    similarity = (directions[:, :, pairs[0]] * directions[:, :, pairs[1]]).sum(1)
    similarity, distance = similarity - similarity.mean(1, keepdim=True), distance - distance.mean()
    product = similarity.norm(dim=1) * distance.norm()
    return -float(((similarity * distance).sum(1) / product.clamp_min(1e-12)).mean())


def measured(draws: Draws, latent: torch.Tensor) -> Quality:
    """All three numbers of an activation; granularity and locality are of its mean over draws."""
    mean = draws.mean
    return Quality(draws.noise_share(), granularity(mean), locality(mean, latent))
