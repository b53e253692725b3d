"""The paper's three properties of activations as numbers (arXiv 2410.03558, section 4), as a table
and as a chart.

The paper shows the properties in figures, the measures are this pack's: diffusion noise that
remains in an activation, granularity that goes from coarse to fine within one resolution, and
locality, the similarity of neighbors regardless of content.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch.nn import functional as F

from .id_chart import name_axis

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_PAIRS = 4096
_HEAD = ["ID", "noise", "granularity", "locality"]
_TITLES = (
    ("noise", "Diffusion noise: fraction of variance"),
    ("granularity", "Granularity: mean spatial frequency"),
    ("locality", "Locality: beyond that of the latent"),
)
_KEPT, _DROPPED = "#e66101", "#b8c4d0"


@dataclass(frozen=True)
class Quality:
    """Three numbers of one activation.

    ``noise``: fraction of its variance that comes from the noise sample and not from the image,
    0..1. ``granularity``: centroid of its spatial power spectrum over the finest frequency of its
    grid, 0..1. ``locality``: how much more its similarity falls with distance than that of the
    input latent, -2..2.
    """

    noise: float
    granularity: float
    locality: float

    def within(self, noise: float, locality: float) -> bool:
        """Whether neither noise nor locality is above a limit."""
        return self.noise <= noise and self.locality <= locality


class NoiseStatistics:
    """Sums over noise samples of one activation (rows, C, H, W), so that no sample has to be
    kept.
    """

    def __init__(self):
        self._count = 0
        # become (rows, C, H, W) with the first sample
        self._sum = torch.zeros((), dtype=torch.float64)
        self._squares = torch.zeros((), dtype=torch.float64)

    def add(self, feature: torch.Tensor) -> None:
        """Add another noise sample of the same images in the same order."""
        feature = feature.double()
        self._count = self._count + 1
        self._sum = self._sum + feature
        self._squares = self._squares + feature.square()

    @property
    def mean(self) -> torch.Tensor:
        """The mean over noise samples, float32 (rows, C, H, W)."""
        return (self._sum / self._count).float()

    def noise_fraction(self) -> float:
        """Variance within images, between noise samples, over that plus the variance between
        images: 1 - ICC(1, 1).

        One-way analysis of variance at every channel and position, summed over them. Needs two
        samples and two images.
        """
        mean = self._sum / self._count
        within = (
            (self._squares / self._count - mean.square()).clamp_min(0)
            * self._count
            / (self._count - 1)
        )
        within = within.mean(0)
        between = (mean.var(0) - within / self._count).clamp_min(0)
        return float(within.sum() / (within.sum() + between.sum()).clamp_min(1e-30))


def granularity(feature: torch.Tensor) -> float:
    """Power-weighted mean frequency of a feature (rows, C, H, W), without the constant, over the
    largest.

    About 0.54 for white noise; 0 for a feature that is the same everywhere.
    """
    power = (
        torch.fft.fft2(feature.float() - feature.float().mean((2, 3), keepdim=True))
        .abs()
        .square()
        .sum((0, 1))
    )
    vertical, horizontal = (torch.fft.fftfreq(length).abs() * 2 for length in feature.shape[2:])
    radius = (vertical[:, None].square() + horizontal[None].square()).sqrt()
    return float((power * radius).sum() / power.sum().clamp_min(1e-30)) / 2**0.5


def locality(feature: torch.Tensor, latent: torch.Tensor, seed: int = 0) -> float:
    """How strongly similarity depends on distance, minus the same of the input latent (rows, C',
    H', W').

    Minus the correlation of cosine similarity with distance over random pairs of positions, the
    mean over images.
    """
    size = (feature.shape[-2], feature.shape[-1])
    resized = (
        F.adaptive_avg_pool2d(latent.float(), size) if latent.shape[-2:] != size else latent.float()
    )
    pairs = torch.randint(
        size[0] * size[1], (2, _PAIRS), generator=torch.Generator().manual_seed(seed)
    )
    pairs = pairs[:, pairs[0] != pairs[1]]
    return _distance_correlation(feature.float(), pairs) - _distance_correlation(resized, pairs)


def _distance_correlation(feature: torch.Tensor, pairs: torch.Tensor) -> float:
    """Minus the correlation of similarity with distance; 0 where either is constant."""
    width = feature.shape[-1]
    rows = pairs // width
    columns = pairs % width
    distance = torch.hypot((rows[0] - rows[1]).float(), (columns[0] - columns[1]).float())
    directions = F.normalize(feature.flatten(2), dim=1)
    similarity = (directions[:, :, pairs[0]] * directions[:, :, pairs[1]]).sum(1)
    similarity = similarity - similarity.mean(1, keepdim=True)
    distance = distance - distance.mean()
    product = similarity.norm(dim=1) * distance.norm()
    return -float(((similarity * distance).sum(1) / product.clamp_min(1e-12)).mean())


def rows_of(latent: torch.Tensor) -> torch.Tensor:
    """Images (rows, C, H, W) of a latent, of videos every frame; raises ValueError when there are
    less than two.
    """
    rows = latent.movedim(2, 1).flatten(0, 1) if latent.ndim == 5 else latent
    if len(rows) < 2:
        raise ValueError(
            "At least two images are needed to measure how activations differ between images."
        )
    return rows


def measure_samples(
    tapped: Iterable[Mapping[str, torch.Tensor]], latent: torch.Tensor
) -> dict[str, Quality]:
    """The numbers of every activation by ID, of several noise samples of all; ``latent`` as in
    ``measure``.
    """
    statistics: dict[str, NoiseStatistics] = {}
    for tensors in tapped:
        for id_, value in tensors.items():
            statistics.setdefault(id_, NoiseStatistics()).add(value)
    return {id_: measure(one, latent) for id_, one in statistics.items()}


def measure(statistics: NoiseStatistics, latent: torch.Tensor) -> Quality:
    """All three numbers of an activation; granularity and locality are of its mean over noise
    samples.
    """
    mean = statistics.mean
    return Quality(statistics.noise_fraction(), granularity(mean), locality(mean, latent))


def table(found: dict[str, Quality], kept: set[str]) -> str:
    """One line per activation: ID, noise fraction, granularity, locality, and whether the filter
    keeps it.
    """
    width = max(map(len, found))
    lines = [f"{'ID':{width}}  noise  granularity  locality"]
    for id_, quality in found.items():
        numbers = f"{quality.noise:5.3f}  {quality.granularity:11.3f}  {quality.locality:8.3f}"
        lines.append(f"{id_:{width}}  {numbers}{'  kept' if id_ in kept else ''}")
    return "\n".join(lines)


def merge_tables(tables: Iterable[str]) -> str:
    """The table of all activations of tables that were measured on the same images, in their order.

    Raises ValueError for a text that is not such a table, and for an activation that two of them
    have.
    """
    rows: dict[str, list[str]] = {}
    for text in tables:
        head, *lines = text.splitlines() or [""]
        if head.split() != _HEAD or not all(len(line.split()) in (4, 5) for line in lines):
            raise ValueError(
                "A text is not a table of Score Activations (measure quality). Connect its report "
                "to Preview as Text."
            )
        for id_, *numbers in map(str.split, lines):
            if id_ in rows:
                raise ValueError(
                    f"{id_} is in two tables. Measure each activation once, on all images."
                )
            rows[id_] = numbers
    if not rows:
        raise ValueError(
            "There are no tables of Score Activations (measure quality). Connect its report to "
            "Preview as Text."
        )
    measured = {id_: Quality(*map(float, numbers[:3])) for id_, numbers in rows.items()}
    return table(measured, {id_ for id_, numbers in rows.items() if numbers[3:]})


def draw_chart(figure: Figure, found: dict[str, Quality], kept: set[str], title: str) -> None:
    """Three rows of bars on a matplotlib figure, IDs in forward order; those that the filter keeps
    are highlighted.
    """
    from matplotlib.patches import Patch

    places = range(len(found))
    colors = [_KEPT if id_ in kept else _DROPPED for id_ in found]
    axes = figure.subplots(3, 1, sharex=True)
    for axis, (name, label) in zip(axes, _TITLES, strict=True):
        axis.bar(
            places, [getattr(quality, name) for quality in found.values()], color=colors, width=0.8
        )
        axis.set_title(label, loc="left", fontsize=10)
        axis.grid(axis="y", alpha=0.3)
        axis.margins(x=0.005)
    axes[0].legend(
        handles=[
            Patch(color=_KEPT, label="kept by the filter"),
            Patch(color=_DROPPED, label="dropped"),
        ],
        fontsize=8,
        loc="upper center",
        ncol=2,
    )
    name_axis(axes[-1], list(found))
    figure.suptitle(title, fontsize=11)
