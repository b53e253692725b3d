"""The directions in which a model's images of one prompt vary, as pairs of images to train sliders
on.

SliderSpace (Gandikota et al., ICCV 2025, arXiv 2502.01639) takes the principal components of the
images' CLIP embeddings and trains one LoRA for each, through decoder and CLIP. Here the images at
both ends of a component become pairs for the visual objective of Concept Sliders (arXiv
2311.12092), so that nothing but the network has to have gradients.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Of so many images one is at each end of a direction.
IMAGES_PER_PAIR = 8
FEWEST_IMAGES = 16
_SHUFFLES = 20
_ROUNDING = 1e-5
#: A word names an end where its correlation passes both: this, and so many standard errors of
#: 1 / sqrt(n).
_LEAST, _ERRORS = 0.4, 3.0


@dataclass(frozen=True, kw_only=True)
class DiscoveredDirection:
    """A principal component of embeddings.

    ``scores``: (N,), each image's place along it. ``explained``: its fraction of the variance, and
    ``by_chance`` the fraction that a direction of what is left of the components before it would
    explain where no channel has to do with another. ``low`` and ``high``: the numbers of the
    images of its pairs.
    """

    scores: torch.Tensor
    explained: float
    by_chance: float
    low: list[int]
    high: list[int]


def discover(embeddings: torch.Tensor, count: int, seed: int = 0) -> list[DiscoveredDirection]:
    """The first ``count`` principal components of embeddings (N, D), the largest first.

    Their longer tail is the high end: images vary from what is usual towards what is rare. Raises
    ValueError for fewer than 16 images, for equal ones, for NaN or infinity, and for more
    directions than they have.
    """
    images = len(embeddings)
    if images < FEWEST_IMAGES:
        raise ValueError(
            f"There are {images} images: generate at least {FEWEST_IMAGES} of one prompt, better "
            "64, each from its own seed."
        )
    unreadable = (~embeddings.isfinite().all(dim=1)).nonzero().flatten().tolist()
    if unreadable:
        raise ValueError(
            f"The embedding of image {unreadable[0] + 1} has NaN or infinity: look at that image, "
            "or leave it out."
        )
    centered = embeddings.double() - embeddings.double().mean(dim=0)
    left, singular, axes = torch.linalg.svd(centered, full_matrices=False)
    variances = singular.square()
    total = float(variances.sum())
    # Below what rounding of float32 embeddings leaves of equal images.
    rank = int((singular > _ROUNDING * embeddings.double().norm()).sum())
    if rank == 0:
        raise ValueError("All images are the same: generate each from its own seed.")
    if count > rank:
        raise ValueError(
            f"{count} sliders are more than the {rank} directions in which {images} images can "
            "differ: lower sliders, or give more images."
        )
    generator = torch.Generator().manual_seed(seed)
    rest = centered
    directions = []
    for number in range(count):
        axis = axes[number]
        scores = left[:, number] * singular[number]
        if scores.pow(3).sum() < 0:
            axis, scores = -axis, -scores
        low, high = opposite_pairs(centered, axis)
        directions.append(
            DiscoveredDirection(
                scores=scores.float(),
                explained=float(variances[number]) / total,
                by_chance=_by_chance(rest, generator) / total,
                low=low,
                high=high,
            )
        )
        rest = rest - torch.outer(rest @ axis, axis)
    return directions


def _by_chance(rest: torch.Tensor, generator: torch.Generator) -> float:
    """Parallel analysis (Horn 1965): the largest variance of a direction where every channel of
    ``rest`` (N, D) is shuffled over the images for itself, the 95 % quantile of some shuffles.
    """
    largest = []
    for _ in range(_SHUFFLES):
        order = torch.rand(rest.shape, generator=generator).argsort(dim=0)
        shuffled = rest.gather(0, order.to(rest.device))
        products = shuffled @ shuffled.T if len(rest) <= rest.shape[1] else shuffled.T @ shuffled
        largest.append(torch.linalg.eigvalsh(products)[-1])
    return float(torch.stack(largest).quantile(0.95))


def opposite_pairs(centered: torch.Tensor, axis: torch.Tensor) -> tuple[list[int], list[int]]:
    """Numbers of the images at both ends of a unit vector (D,), in pairs that differ in nothing
    else as far as possible: the assignment with the least distance beside the axis.

    ``centered``: embeddings (N, D) less their mean.
    """
    from scipy.optimize import linear_sum_assignment

    scores = centered @ axis
    pairs = max(2, len(centered) // IMAGES_PER_PAIR)
    order = scores.argsort()
    ends = order[:pairs], order[-pairs:].flip(0)
    beside = centered - torch.outer(scores, axis)
    distances = torch.cdist(beside[ends[0]], beside[ends[1]])
    rows, columns = linear_sum_assignment(distances.cpu().numpy())
    return ends[0][torch.as_tensor(rows)].tolist(), ends[1][torch.as_tensor(columns)].tolist()


def nearest_words(
    scores: torch.Tensor, agreements: Mapping[str, torch.Tensor]
) -> tuple[tuple[str, float], tuple[str, float]]:
    """The word that grows most along a direction and the one that falls most, each with its
    correlation; "" where no word does more than chance.

    ``agreements``: for each word how well every image (N,) agrees with it.
    """
    correlations = {
        word: _correlation(scores.double(), values.double()) for word, values in agreements.items()
    }
    least = max(_LEAST, _ERRORS / len(scores) ** 0.5)
    highest = max(correlations.items(), key=lambda item: item[1], default=("", 0.0))
    lowest = min(correlations.items(), key=lambda item: item[1], default=("", 0.0))
    return (
        highest if highest[1] >= least else ("", 0.0),
        lowest if lowest[1] <= -least else ("", 0.0),
    )


def _correlation(first: torch.Tensor, second: torch.Tensor) -> float:
    """Pearson's correlation; 0 where one of them does not vary."""
    first = first - first.mean()
    second = second - second.mean()
    norms = float(first.norm() * second.norm())
    return float(first @ second) / norms if norms > 1e-12 else 0.0


def phrases_of(names: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Phrases of the high and the low end, each pair once: ends that no word names are numbered."""
    phrases: list[tuple[str, str]] = []
    for number, (high, low) in enumerate(names, 1):
        labels = (high or f"direction {number}", low)
        if labels in phrases:
            labels = (f"{labels[0]} {number}", low)
        phrases.append(labels)
    return phrases


#: Images of each end that the figure shows.
_SHOWN = 4


def draw(
    figure: Figure,
    images: torch.Tensor,
    directions: Sequence[DiscoveredDirection],
    *,
    phrases: Sequence[tuple[str, str]],
) -> None:
    """A row for each direction: images (N, H, W, 3) of its low end, then of its high end."""
    columns = 2 * _SHOWN + 1  # an empty one between the ends
    grid = figure.subplots(
        len(directions), columns, squeeze=False, width_ratios=[1] * _SHOWN + [0.2] + [1] * _SHOWN
    )
    for row, direction, (high, low) in zip(grid, directions, phrases, strict=True):
        for axes in row:
            axes.axis("off")
        shown = min(_SHOWN, len(direction.low))
        # The images at the very ends stand outside.
        outward = direction.scores[direction.low].argsort().tolist()
        inward = direction.scores[direction.high].argsort().tolist()
        for place in range(shown):
            numbers = direction.low[outward[place]], direction.high[inward[place - shown]]
            for axes, number in zip((row[place], row[_SHOWN + 1 + place]), numbers, strict=True):
                axes.imshow(images[number].clamp(0, 1).float().cpu().numpy())
        row[0].set_title(low or "low end", loc="left", fontsize=9)
        row[_SHOWN + 1].set_title(high, loc="left", fontsize=9)


def describe(
    directions: Sequence[DiscoveredDirection],
    phrases: Sequence[tuple[str, str]],
    names: Sequence[tuple[tuple[str, float], tuple[str, float]]],
    *,
    remark: str,
) -> str:
    """For each direction what it explains, beside chance, and how well its words fit."""
    first = directions[0]
    lines = [
        f"{len(directions)} directions of {len(first.scores)} images, {len(first.low)} pairs each."
    ]
    for (high, low), words, direction in zip(phrases, names, directions, strict=True):
        fits = [f"r {correlation:+.2f} with {word}" for word, correlation in words if word]
        line = f"{high}{f' / {low}' if low else ''}: {100 * direction.explained:.1f} % of the "
        line += f"variance (chance: {100 * direction.by_chance:.1f} %)"
        line += f"; {', '.join(fits)}." if fits else "; no word fits."
        if direction.explained <= direction.by_chance:
            line += " That is noise: give more images or fewer sliders."
        lines.append(line)
    return "\n".join(filter(None, [*lines, remark]))
