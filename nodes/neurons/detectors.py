"""Detectors of memorization beside Finding NeMo's score.

All of them read what the text adds to the predicted noise, d(x) = e(x, prompt) - e(x, empty prompt): in pure noise x,
from a few more evaluations of the first step, or for Bright Ending in every step of sampling.
They have no fixed thresholds: a value says something beside those of ordinary prompts of the same model.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from .memorization_score import PromptScore, noise_difference, pairwise_similarity

#: The third from last of 50 DDIM steps of SD, at which the official code of the anisotropy paper compares directions.
LOW_NOISE_TIMESTEP = 41
#: Guidance of the images that Bright Ending samples, in its official code.
BRIGHT_ENDING_CFG = 7.5
_PROBE = 1.0  # length of the step along d, as in algorithm 2 of the sharpness paper; noise has the length sqrt(C H W)

#: (x (N, C, H, W), timestep) -> predicted noise of the same shape, float32
Predict = Callable[[torch.Tensor, int], torch.Tensor]


@dataclass(frozen=True)
class Detectors:
    """Which detectors are measured beside the score."""

    text_norm: bool = False
    sharpness: bool = False
    anisotropy: bool = False
    bright_ending_steps: int = 0

    def rows(self, seeds: int) -> tuple[int, int]:
        """Rows of the network for each prompt, and those that are evaluated once for all prompts."""
        by_prompt = 1 + 4 * self.sharpness + self.anisotropy + 2 * self.bright_ending_steps
        once = (self.text_norm or self.sharpness or self.anisotropy) + self.anisotropy
        return by_prompt * seeds, once * seeds


def text_norm(difference: torch.Tensor) -> torch.Tensor:
    """Norm of what the text adds to the prediction (N, C, H, W), by row: (N,). Wen et al. (arXiv 2407.21720)."""
    return difference.flatten(1).norm(dim=1)


def sharpness(
    noise: torch.Tensor, difference: torch.Tensor, at: Callable[[torch.Tensor], torch.Tensor]
) -> torch.Tensor:
    """Jeon et al. (arXiv 2412.04140): the norm of the Hessian difference times the score difference, by row: (N,).

    ``difference`` is d(x) in ``noise`` x (N, C, H, W), ``at`` gives d elsewhere. |J d|, J the Jacobian of d, by central
    differences along d. In units of noise; the paper's scores are d over -sqrt(1 - alpha_t), so its norm is this one
    over 1 - alpha_t, a factor that all prompts have in common.
    """
    length = text_norm(difference).clamp(min=torch.finfo(torch.float32).tiny)
    step = _PROBE * difference / length[:, None, None, None]
    forward, backward = at(torch.cat([noise + step, noise - step])).chunk(2)
    return text_norm(forward - backward) / (2 * _PROBE) * length


def alignment(unconditional: torch.Tensor, difference: torch.Tensor) -> torch.Tensor:
    """Cosine of the unconditional prediction and d over the channels, mean over positions: (N,), -1 to 1.

    Asthana and Belagiannis (arXiv 2601.20642), both (N, C, H, W) at a low noise level in pure noise.
    """
    return torch.cosine_similarity(unconditional, difference, dim=1).flatten(1).mean(1)


def local_norm(differences: torch.Tensor, attention: torch.Tensor) -> torch.Tensor:
    """Chen et al. (arXiv 2410.21665): |d * m| over the mean of m, mean over the steps, by row: (N,).

    ``differences`` d (steps, N, C, H, W) in every step of sampling; ``attention`` m (N, H, W) to the end token in the
    last step, large where memorized patches are. With the same attention everywhere it is Wen's text norm.
    """
    norms = (differences * attention[:, None]).flatten(2).norm(dim=2)
    return norms.mean(0) / attention.flatten(1).mean(1)


def score_with_detectors(
    conditional: Predict, unconditional: Predict, noise: torch.Tensor, timestep: int, detectors: Detectors
) -> PromptScore:
    """NeMo's score of a prompt over the seeds of ``noise`` (seeds, C, H, W), and the means of the detectors."""
    predicted = conditional(noise, timestep)
    score = PromptScore(pairwise_similarity(noise_difference(predicted, noise.to(predicted.device))))
    if not (detectors.text_norm or detectors.sharpness or detectors.anisotropy):
        return score
    difference = predicted - unconditional(noise, timestep)
    score = replace(score, norm=float(text_norm(difference).mean()))
    if detectors.sharpness:
        found = sharpness(
            noise.to(difference), difference, lambda x: conditional(x, timestep) - unconditional(x, timestep)
        )
        score = replace(score, sharpness=float(found.mean()))
    if detectors.anisotropy:
        low = unconditional(noise, LOW_NOISE_TIMESTEP)
        found = alignment(low, conditional(noise, LOW_NOISE_TIMESTEP) - low)
        score = replace(score, alignment=float(found.mean()))
    return score
