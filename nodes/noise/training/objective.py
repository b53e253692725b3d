"""What a step minimises: a distance of the model's answer from the clean picture, weighted by the noise level."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F

LOSSES: dict[str, Callable] = {"MSE": F.mse_loss, "L1": F.l1_loss, "Huber": F.huber_loss, "SmoothL1": F.smooth_l1_loss}
PLAIN, EPSILON, MIN_SNR = WEIGHTINGS = ("plain", "epsilon", "min-SNR")

Objective = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


def make(loss: str, weighting: str, gamma: float) -> Objective:
    """A function of answer (B, ...), clean picture (B, ...) and signal-to-noise ratio (B,) to a number.

    Plain: the error of the clean picture as it is, as core's Train LoRA has it. Epsilon: that of the noise, the error
    of the clean picture times the ratio. min-SNR: times the ratio but no more than ``gamma`` (arXiv 2303.09556,
    equation 4; there 5), which is their weight of the clean picture's error, whatever the model predicts. Raises
    ValueError for names that there are not.
    """
    if loss not in LOSSES or weighting not in WEIGHTINGS:
        raise ValueError(f"There is no {loss} loss with {weighting} weighting: choose from {', '.join(LOSSES)}, and "
                         f"from {', '.join(WEIGHTINGS)}.")  # fmt: skip
    distance = LOSSES[loss]
    if weighting == PLAIN:
        return lambda answer, clean, ratio: distance(answer.float(), clean.float())
    most = gamma if weighting == MIN_SNR else torch.inf

    def weighted(answer: torch.Tensor, clean: torch.Tensor, ratio: torch.Tensor) -> torch.Tensor:
        errors = distance(answer.float(), clean.float(), reduction="none").flatten(1).mean(dim=1)
        return (errors * ratio.clamp(max=most).to(errors)).mean()

    return weighted


def signal_to_noise(session, sigmas: torch.Tensor) -> torch.Tensor:
    """The ratio of a picture's and the noise's power, for unit power of both, at each level; (B,) in float32."""
    one, none = torch.ones(len(sigmas), 1, 1, 1, device=sigmas.device), torch.zeros(len(sigmas), 1, 1, 1).to(sigmas)
    signal, noise = session.noised(one, none, sigmas), session.noised(none, one, sigmas)
    return (signal / noise).square().flatten().float()
