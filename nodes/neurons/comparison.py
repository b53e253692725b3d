"""What a mask did to pictures: how varied they are, and how near to a picture that should not come back.

Finding NeMo (arXiv 2406.02366), section 4, measures with SSCD features, which no package brings; here with structural
similarity of the pictures themselves, which asks for the same place of things and so errs on the low side.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import torch
from torch.nn import functional as F

from ..common.structural_similarity import ssim

_SIDE, _TAPS = 128, 11


@dataclass(frozen=True)
class Measured:
    """Similarities of a batch of pictures: between each other (B, B), and to a reference (B,) where there is one."""

    between: torch.Tensor
    to_reference: torch.Tensor | None

    @property
    def sameness(self) -> float | None:
        """Median similarity of two different pictures: 1 is always the same picture. None for a single picture."""
        count = len(self.between)
        if count < 2:
            return None
        first, second = torch.triu_indices(count, count, 1)
        return float(self.between[first, second].median())

    @property
    def replication(self) -> float | None:
        """Median similarity to the reference."""
        return None if self.to_reference is None else float(self.to_reference.median())


def measure(pictures: torch.Tensor, reference: torch.Tensor | None) -> Measured:
    """Compare pictures (B, H, W, 3) of 0..1 with each other, and with the first of ``reference`` (B, H, W, 3)."""
    small = _small(pictures)
    between = torch.eye(len(small))
    for first, second in itertools.combinations(range(len(small)), 2):
        between[first, second] = between[second, first] = _alike(small[[first]], small[[second]])[0]
    if reference is None:
        return Measured(between, None)
    return Measured(between, _alike(small, _small(reference)[:1].expand_as(small)))


def paired(before: torch.Tensor, after: torch.Tensor) -> torch.Tensor:
    """Similarity of two batches seed by seed, (B,). Raises ValueError when they differ in size."""
    if len(before) != len(after):
        raise ValueError(f"There are {len(before)} pictures before and {len(after)} after: make both with the same "
                         "seed "
                         "and batch.")  # fmt: skip
    return _alike(_small(before), _small(after))


def _small(pictures: torch.Tensor) -> torch.Tensor:
    """(B, 3, 128, 128), so that large pictures are compared by what one sees."""
    channels_first = pictures[..., :3].permute(0, 3, 1, 2).float()
    return F.interpolate(channels_first, (_SIDE, _SIDE), mode="bilinear", align_corners=False, antialias=True)


def _alike(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return ssim(a, b, _TAPS)
