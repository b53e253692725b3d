"""What a step minimizes: a distance of the model's prediction from the clean image, weighted by the
noise level.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum

import torch
import torch.nn.functional as F

from .session import Session

LOSSES: dict[str, Callable] = {
    "MSE": F.mse_loss,
    "L1": F.l1_loss,
    "Huber": F.huber_loss,
    "SmoothL1": F.smooth_l1_loss,
}

#: (prediction, clean image, signal-to-noise ratio, weights of positions or None) -> loss
Objective = Callable[..., torch.Tensor]


class NoiseLevels(StrEnum):
    """How noise levels are distributed over the training."""

    UNIFORM = "uniform"
    LOGIT_NORMAL = "logit_normal"


def logit_normal_percent(uniform: float, mean: float, std: float) -> float:
    """A fraction of the sampling range, 0 pure noise and 1 none, whose noise fraction t = 1 -
    percent is logit-normal.

    t = sigmoid(mean + std n) with n from a normal law (SD3, arXiv 2403.03206, section 3.1), here
    the quantile of 1 - `uniform`, so that one draw of core's gives one level and a larger one still
    means less noise.
    """
    return float(
        torch.sigmoid(std * torch.special.ndtri(torch.tensor(uniform, dtype=torch.float64)) - mean)
    )


class PairObjective(StrEnum):
    """What a slider from pairs of images is trained on.

    ``VISUAL``: the paper's, the noise in the image before at strength -1 and in the image after at
    strength 1. ``DIFFERENCE``: at strength 1 the frozen model's own answer to the noised image
    before, plus after minus before; at strength -1 the reverse.
    """

    VISUAL = "visual"
    DIFFERENCE = "difference"


class Weighting(StrEnum):
    """How noise levels count in the loss."""

    PLAIN = "plain"
    EPSILON = "epsilon"
    MIN_SNR = "min_snr"


def make_objective(loss: str, weighting: str, gamma: float) -> Objective:
    """A function of prediction (B, ...), clean image (B, ...) and signal-to-noise ratio (B,) to a
    number.

    A fourth argument, weights (B, 1, ..., H, W) of at least 0, makes the error of each image its
    weighted mean.

    Plain: the error of the clean image as it is, as in core's Train LoRA. Epsilon: that of the
    noise, the error of the clean image times the ratio. min_snr: times the ratio but no more than
    `gamma` (arXiv 2303.09556, equation 4; there 5), which is their weight of the clean image's
    error, whatever the model predicts.
    """
    distance = LOSSES[loss]
    weighting = Weighting(weighting)
    largest = gamma if weighting == Weighting.MIN_SNR else torch.inf

    def objective(
        prediction: torch.Tensor,
        clean: torch.Tensor,
        ratio: torch.Tensor,
        weights: torch.Tensor | None = None,
    ) -> torch.Tensor:
        if weighting == Weighting.PLAIN and weights is None:
            return distance(prediction.float(), clean.float())
        errors = distance(prediction.float(), clean.float(), reduction="none")
        if weights is None:
            errors = errors.flatten(1).mean(dim=1)
        else:
            weights = weights.to(errors).expand_as(errors)
            errors = (errors * weights).flatten(1).sum(dim=1) / weights.flatten(1).sum(dim=1)
        if weighting == Weighting.PLAIN:
            return errors.mean()
        return (errors * ratio.clamp(max=largest).to(errors)).mean()

    return objective


def signal_to_noise(session: Session, sigmas: torch.Tensor) -> torch.Tensor:
    """The ratio of an image's and the noise's power, for unit power of both, at each level; (B,) in
    float32.
    """
    one = torch.ones(len(sigmas), 1, 1, 1, device=sigmas.device)
    zero = torch.zeros(len(sigmas), 1, 1, 1).to(sigmas)
    signal = session.noised(one, zero, sigmas)
    noise = session.noised(zero, one, sigmas)
    return (signal / noise).square().flatten().float()
