"""Neurons of a concept: those that are more or less active in prompts with it than in the same
prompts without it.

Pairs of prompts that differ in the concept alone are compared by the family's activation, the mean
over tokens of the absolute value (Finding NeMo, arXiv 2406.02366, section 3.2). Whether a
difference is beyond chance is decided over all neurons at once, by the maximum statistic of a
permutation test (Westfall and Young 1993): under the null hypothesis the two prompts of a pair may
be exchanged, which flips the sign of the pair's difference.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

#: Sign flips of the test; up to this many are enumerated, beyond it they are drawn.
FLIPS = 4096
#: Probability, under chance alone, that any neuron at all counts as beyond chance.
LEVEL = 0.05
#: With fewer pairs the least p is over ``LEVEL``.
LEAST_PAIRS = 6
_BATCH = 64
_ROUNDING = 1e-9


@dataclass(frozen=True, kw_only=True)
class Contrast:
    """Of each neuron the effect and its p, float64 (C,): the fraction of sign flips with as large
    an effect anywhere.

    ``effect`` is the mean difference of the pairs, in standard deviations of the neuron's
    activation over all prompts. ``flips``: how many sign flips there were; ``threshold``: the
    absolute effect beyond which p is at most ``LEVEL``.
    """

    effect: torch.Tensor
    p: torch.Tensor
    threshold: float
    flips: int

    @property
    def beyond_chance(self) -> torch.Tensor:
        """Which neurons differ by more than chance, bool (C,)."""
        return self.p <= LEVEL

    def select(self, count: int) -> list[int]:
        """The ``count`` neurons of the largest absolute effect, that one first; 0: all that are
        beyond chance.
        """
        order = self.effect.abs().argsort(descending=True, stable=True)
        return order[: count or int(self.beyond_chance.sum())].tolist()


def contrast(present: torch.Tensor, absent: torch.Tensor, seed: int = 0) -> Contrast:
    """Compare activations (pairs, C) with and without a concept; ``seed`` draws the sign flips
    where they are too many.

    The standard deviation of all 2 N activations is the same for every flip. Neurons that never
    vary, or overflow, have the effect 0. Raises ValueError for fewer than two pairs.
    """
    if len(present) < 2:
        raise ValueError("A contrast needs two pairs of prompts or more: write one per line.")
    present = present.double()
    absent = absent.double()
    differences = present - absent
    spread = torch.cat([present, absent]).std(dim=0, correction=0)
    varies = spread > 0

    def effects(signs: torch.Tensor) -> torch.Tensor:
        return torch.where(varies, signs @ differences / len(differences) / spread, 0.0)

    signs = sign_flips(len(differences), seed)
    effect = effects(signs[:1])[0]
    maxima = (
        torch.cat([effects(part).abs().amax(dim=1) for part in signs.split(_BATCH)]).sort().values
    )
    as_large = len(maxima) - torch.searchsorted(maxima, effect.abs() * (1 - _ROUNDING))
    place = len(maxima) - 1 - int(LEVEL * len(maxima))
    return Contrast(
        effect=effect, p=as_large / len(maxima), threshold=float(maxima[place]), flips=len(maxima)
    )


def sign_flips(pairs: int, seed: int) -> torch.Tensor:
    """Signs (flips, pairs), float64, the first row without a flip: all of them, or ``FLIPS`` where
    there are more.

    The first pair keeps its sign, since flipping every sign leaves absolute effects as they are.
    """
    if 2 ** (pairs - 1) <= FLIPS:
        flipped = torch.arange(2 ** (pairs - 1))[:, None] >> torch.arange(pairs - 1) & 1
    else:
        flipped = torch.randint(
            2, (FLIPS, pairs - 1), generator=torch.Generator().manual_seed(seed)
        )
        flipped[0] = 0
    return torch.cat([torch.ones(len(flipped), 1), 1 - 2 * flipped], dim=1).double()
