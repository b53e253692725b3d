"""Detection threshold of the memorization score, calibrated on ordinary prompts.

Finding NeMo (arXiv 2406.02366), section 3.1 and appendix D.1: the mean of ordinary prompts' scores
and one standard deviation. It is valid for the model, the size of the latent, the noise seeds and
the timestep it was measured with.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Threshold:
    """A threshold, and the scores of ordinary and of known memorized prompts that it was calibrated
    on.
    """

    value: float
    normal: tuple[float, ...]
    memorized: tuple[float, ...] = ()

    @property
    def false_positives(self) -> tuple[float, float, float]:
        """Fraction of the ordinary prompts that would count as memorized, with its 95 % Wilson
        interval.

        Each prompt is judged by the threshold of all others (leave one out).
        """
        spread = float(np.std(self.normal, ddof=1))
        deviations = (self.value - float(np.mean(self.normal))) / spread if spread > 0 else 0.0
        over = sum(
            score > _mean_plus([*self.normal[:i], *self.normal[i + 1 :]], deviations)
            for i, score in enumerate(self.normal)
        )
        return wilson_interval(over, len(self.normal))

    @property
    def auroc(self) -> float | None:
        """AUROC of known memorized prompts against ordinary ones; None without memorized
        prompts.
        """
        return auroc(self.memorized, self.normal) if self.memorized else None


def calibrate(
    normal: list[float], deviations: float = 1.0, memorized: Sequence[float] = ()
) -> Threshold:
    """The paper's threshold. Raises ValueError for fewer than three ordinary prompts."""
    if len(normal) < 3:
        raise ValueError(
            "A threshold needs at least three ordinary prompts; twenty or more make it stable."
        )
    return Threshold(_mean_plus(normal, deviations), tuple(normal), tuple(memorized))


def _mean_plus(scores: Any, deviations: float) -> float:
    return float(np.mean(scores) + deviations * np.std(scores, ddof=1))


def auroc(positive: tuple[float, ...], negative: tuple[float, ...]) -> float:
    """Area under the ROC curve: the fraction of pairs in which the positive scores higher; ties
    count half. Raises RuntimeError without scikit-learn.
    """
    try:
        from sklearn.metrics import roc_auc_score
    except ImportError as error:
        from ..common.packages import missing_package

        missing = missing_package("The AUROC of scores", "sklearn", error, "scikit-learn")
        raise RuntimeError(missing) from error
    return float(roc_auc_score([1] * len(positive) + [0] * len(negative), [*positive, *negative]))


def wilson_interval(hits: int, count: int) -> tuple[float, float, float]:
    """A fraction and its 95 % interval by Wilson's formula."""
    from scipy.stats import binomtest

    interval = binomtest(int(hits), count).proportion_ci(method="wilson")
    return hits / count, float(interval.low), float(interval.high)
