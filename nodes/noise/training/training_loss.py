"""What a step minimizes: a distance of the model's prediction from the clean image, weighted by the noise level."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum

import torch
import torch.nn.functional as F

LOSSES: dict[str, Callable] = {"MSE": F.mse_loss, "L1": F.l1_loss, "Huber": F.huber_loss, "SmoothL1": F.smooth_l1_loss}

Objective = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


class Weighting(StrEnum):
    """How noise levels count in the loss."""

    PLAIN = "plain"
    EPSILON = "epsilon"
    MIN_SNR = "min_snr"


def make_objective(loss: str, weighting: str, gamma: float) -> Objective:
    """A function of prediction (B, ...), clean image (B, ...) and signal-to-noise ratio (B,) to a number.

    Plain: the error of the clean image as it is, as in core's Train LoRA. Epsilon: that of the noise, the error of the
    clean image times the ratio. min_snr: times the ratio but no more than `gamma` (arXiv 2303.09556, equation 4; there
    5), which is their weight of the clean image's error, whatever the model predicts.
    """
    distance, weighting = LOSSES[loss], Weighting(weighting)
    if weighting == Weighting.PLAIN:
        return lambda prediction, clean, ratio: distance(prediction.float(), clean.float())
    largest = gamma if weighting == Weighting.MIN_SNR else torch.inf

    def weighted(prediction: torch.Tensor, clean: torch.Tensor, ratio: torch.Tensor) -> torch.Tensor:
        errors = distance(prediction.float(), clean.float(), reduction="none").flatten(1).mean(dim=1)
        return (errors * ratio.clamp(max=largest).to(errors)).mean()

    return weighted


def signal_to_noise(session, sigmas: torch.Tensor) -> torch.Tensor:
    """The ratio of an image's and the noise's power, for unit power of both, at each level; (B,) in float32."""
    one, zero = torch.ones(len(sigmas), 1, 1, 1, device=sigmas.device), torch.zeros(len(sigmas), 1, 1, 1).to(sigmas)
    signal, noise = session.noised(one, zero, sigmas), session.noised(zero, one, sigmas)
    return (signal / noise).square().flatten().float()
