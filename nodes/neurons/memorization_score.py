"""Memorization score of a prompt: how similar the first noise differences of several noise seeds
are.

Finding NeMo (arXiv 2406.02366), section 3.1 and appendices B.4 and D.1. The first denoising step of
a memorized prompt points to the same image whatever the noise, so what the network adds to the
noise is similar between seeds.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

#: The official code's timestep (its first prediction is discarded), and the paper's first of 50
#: steps.
OFFICIAL_TIMESTEP = 961
PAPER_TIMESTEP = 981
#: The paper's threshold for SD1.4: mean and one standard deviation of ordinary prompts' scores,
#: .358 + .070.
PAPER_THRESHOLD = 0.428
_SCALES = 3
_EXPONENT = 0.33
_TAPS = 11
_SMALL_TAPS = 7
#: Latent sides from which three halvings leave room for the window of 11.
OFFICIAL_SIDE = 44

#: (noise (N, C, H, W), factors by layer path (N, width) or None) -> predicted noise of the same
#: shape, float32
Predict = Callable[..., torch.Tensor]


@dataclass(frozen=True)
class PromptScore:
    """The score of one prompt: the similarity of all pairs of seeds; and the values of
    ``detectors.DETECTORS``.
    """

    pairs: torch.Tensor  # (seeds, seeds), float32, ones on the diagonal
    detectors: dict[str, float] = field(default_factory=dict)  # by name, those that were measured

    @property
    def value(self) -> float:
        """The largest similarity of two seeds: the paper's score."""
        return float(self.by_seed.max())

    @property
    def by_seed(self) -> torch.Tensor:
        """(seeds,) the largest similarity of each seed with any other."""
        return self.pairs.clone().fill_diagonal_(-1).amax(1)

    def memorized_seeds(self, threshold: float) -> list[int]:
        """The seeds with a similarity over the threshold, which the search goes on with (section
        3.1).
        """
        return [index for index, value in enumerate(self.by_seed.tolist()) if value > threshold]


def noise_difference(predicted: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
    """The noise difference, scaled to 0..1 per sample and channel; (N, C, H, W) float32, zeros
    where it is constant. Frames of (N, C, F, H, W) count as channels.
    """
    delta = (predicted.float() - noise.float()).flatten(1, -3)
    low = delta.amin((2, 3), keepdim=True)
    high = delta.amax((2, 3), keepdim=True)
    return (delta - low) / (high - low).clamp(min=torch.finfo(torch.float32).tiny)


def has_official_score(side: int) -> bool:
    """Whether latents of this smallest side have the official score; below, the small-latent
    variant is used.
    """
    return side >= OFFICIAL_SIDE


def similarity(a: torch.Tensor, b: torch.Tensor, spans: list[float] | None = None) -> torch.Tensor:
    """Similarity of pairs of noise differences (N, C, H, W): float32 (N,).

    Official, from a side of 44 on: three scales of SSIM, window 11, exponents .33; the dynamic
    range is that of the whole batch at each scale, so a score depends a little on its batch
    (``spans`` gives other ranges). Small variant, sides 7 to 43: one scale, window 7, range 1.
    Raises ValueError for smaller sides.
    """
    from ..common import ssim as structure

    side = min(a.shape[-2:])
    if has_official_score(side):
        spans = spans or batch_spans(extremes(a), extremes(b))
        return structure.multi_scale(a, b, spans=spans, exponent=_EXPONENT, taps=_TAPS)
    if side < _SMALL_TAPS:
        raise ValueError(
            "The memorization score needs latents of 7 x 7 and more: use images of 56 pixels and "
            "more."
        )
    return structure.ssim(a, b, _SMALL_TAPS)


def extremes(a: torch.Tensor) -> torch.Tensor:
    """Smallest and largest value of each row at each scale, (N, scales, 2): the input of
    ``batch_spans``.
    """
    from ..common import ssim

    return ssim.extremes(a, _SCALES)


def batch_spans(a: torch.Tensor, b: torch.Tensor) -> list[float]:
    """The official dynamic range at each scale from the extremes of two batches: the larger of
    their own ranges.
    """
    ranges = [rows[:, :, 1].amax(0) - rows[:, :, 0].amin(0) for rows in (a, b)]
    return torch.maximum(*ranges).tolist()


def pairwise_similarity(differences: torch.Tensor) -> torch.Tensor:
    """Similarity of every pair of rows, all in one comparison as the official code does: (N, N),
    ones on the diagonal.

    Raises ValueError for fewer than two rows.
    """
    count = len(differences)
    if count < 2:
        raise ValueError(
            "The memorization score compares noise seeds: use two or more (the paper uses 10)."
        )
    first, second = map(list, zip(*itertools.combinations(range(count), 2), strict=True))
    values = similarity(differences[first], differences[second]).cpu()
    matrix = torch.eye(count)
    matrix[first, second] = matrix[second, first] = values
    return matrix


def seeded_noise(shape: tuple[int, ...], count: int, seed: int) -> torch.Tensor:
    """Noise (count, *shape) from one call of the generator, as the official code makes it."""
    return torch.randn((count, *shape), generator=torch.Generator().manual_seed(seed))


def score_prompt(predict: Predict, noise: torch.Tensor) -> PromptScore:
    """The score of the prompt that ``predict`` is conditioned on, over the seeds of ``noise``
    (seeds, C, ..., H, W).
    """
    predicted = predict(noise)
    return PromptScore(pairwise_similarity(noise_difference(predicted, noise.to(predicted.device))))
