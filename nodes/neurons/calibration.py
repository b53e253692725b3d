"""From which score on a prompt counts as memorised, learnt from prompts that are not.

Finding NeMo (arXiv 2406.02366), section 3.1 and appendix D.1: the mean of ordinary prompts' scores and one standard
deviation. The number belongs to the model, the size of the latent, the seeds and the timestep it was measured with.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Threshold:
    """A threshold, and the scores of ordinary and of known memorised prompts that it was learnt from."""

    value: float
    normal: tuple[float, ...]
    memorized: tuple[float, ...] = ()

    @property
    def false_positives(self) -> tuple[float, float, float]:
        """Share of the ordinary prompts that would count as memorised, with its 95 % Wilson interval.

        Each prompt is judged by the threshold of all others (leave one out).
        """
        over = sum(score > _threshold([*self.normal[:i], *self.normal[i + 1 :]], self._deviations).value
                   for i, score in enumerate(self.normal))  # fmt: skip
        return wilson(over, len(self.normal))

    @property
    def _deviations(self) -> float:
        spread = float(np.std(self.normal, ddof=1))
        return (self.value - float(np.mean(self.normal))) / spread if spread > 0 else 0.0

    @property
    def auroc(self) -> float | None:
        """How well the score tells known memorised prompts from ordinary ones: 1 is always, .5 is by chance."""
        return auroc(self.memorized, self.normal) if self.memorized else None


def threshold(normal: list[float], deviations: float = 1.0, memorized: list[float] = ()) -> Threshold:
    """The paper's threshold. Raises ValueError for fewer than three ordinary prompts."""
    if len(normal) < 3:
        raise ValueError("A threshold needs at least three ordinary prompts; twenty and more make it steady.")
    return _threshold(normal, deviations, memorized)


def _threshold(normal, deviations: float, memorized=()) -> Threshold:
    value = float(np.mean(normal) + deviations * np.std(normal, ddof=1))
    return Threshold(value, tuple(normal), tuple(memorized))


def auroc(positive: tuple[float, ...], negative: tuple[float, ...]) -> float:
    """Share of pairs in which the positive has the larger score; ties count half."""
    a, b = np.asarray(positive)[:, None], np.asarray(negative)[None]
    return float((a > b).mean() + (a == b).mean() / 2)


def wilson(hits: int, count: int) -> tuple[float, float, float]:
    """A share and its 95 % interval by Wilson's formula."""
    z, share = 1.96, hits / count
    scale = 1 + z * z / count
    middle = (share + z * z / (2 * count)) / scale
    half = z * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count)) / scale
    return share, max(middle - half, 0.0), min(middle + half, 1.0)
