"""The noise that a model's own sampler would have made an image from.

Sampling with Euler steps follows dx/dsigma = (x - D(x, sigma)) / sigma down to sigma 0, where D is
the denoised prediction. Followed upward from an image's latent, the same equation leads to noise
that holds what the prompt does not say (DDIM inversion: Song et al., ICLR 2021, arXiv 2010.02502,
section 4.3). An upward Euler step takes the slope at the lower level; the downward step that should
undo it takes that of the upper one. Corrections solve for the upper one: a fixed-point iteration,
as in AIDI (Pan et al., ICCV 2023, arXiv 2309.04907) and ReNoise (Garibi et al., ECCV 2024, arXiv
2403.14602).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import torch

#: (x, sigma) -> the denoised prediction, of the shape of x.
Denoise = Callable[[torch.Tensor, float], torch.Tensor]

#: The level at which the first slope is taken, since none is defined at 0: as in stock FlipSigmas.
FIRST_LEVEL = 1e-4


def follow_upward(
    denoise: Denoise, latent: torch.Tensor, sigmas: Sequence[float], corrections: int = 0
) -> torch.Tensor:
    """The state at the highest noise level of which ``latent`` is the end.

    ``latent``: (B, C, ..., H, W) in the model's scale. ``sigmas``: noise levels from high to low,
    as a sampler gets them, the last one 0 or the level of ``latent``. Each step evaluates the model
    once, and once more for each of its ``corrections``.
    """
    levels = [float(sigma) for sigma in sigmas][::-1]
    state = latent
    for lower, upper in itertools.pairwise(levels):
        step = upper - lower
        raised = state + step * slope(denoise, state, max(lower, FIRST_LEVEL))
        for _ in range(corrections):
            raised = state + step * slope(denoise, raised, upper)
        state = raised
    return state


def follow_downward(denoise: Denoise, state: torch.Tensor, sigmas: Sequence[float]) -> torch.Tensor:
    """What Euler sampling makes of a state at ``sigmas[0]``, at the last of ``sigmas``."""
    levels = [float(sigma) for sigma in sigmas]
    for upper, lower in itertools.pairwise(levels):
        state = state + (lower - upper) * slope(denoise, state, upper)
    return state


def relative_error(latent: torch.Tensor, returned: torch.Tensor) -> torch.Tensor:
    """Of each image of a batch (B,): the root mean square of what the round trip changed, over the
    latent's standard deviation.
    """
    difference = (returned - latent).flatten(1).float().square().mean(dim=1).sqrt()
    return difference / latent.flatten(1).float().std(dim=1).clamp(min=1e-8)


def noise_behind(
    noise_scaling: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    state: torch.Tensor,
    latent: torch.Tensor,
) -> torch.Tensor:
    """The noise with which a sampler that starts from ``latent`` begins at ``state``.

    ``noise_scaling(noise, latent)``: what the sampler begins with, an affine function of both with
    one factor for all numbers: latent + sigma noise, or (1 - sigma) latent + sigma noise.
    """
    zero = torch.zeros_like(state)
    factor = noise_scaling(torch.ones_like(state), zero)
    return (state - noise_scaling(zero, latent)) / factor


def latent_behind(
    noise_scaling: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    state: torch.Tensor,
    noise: torch.Tensor,
) -> torch.Tensor | None:
    """The latent with which a sampler that adds ``noise`` begins at ``state``; None where the
    sampler drops the latent, as a flow model's does at sigma 1.
    """
    zero = torch.zeros_like(state)
    factor = noise_scaling(zero, torch.ones_like(state))
    if float(factor.abs().min()) < _SMALLEST_FACTOR:
        return None
    return (state - noise_scaling(noise, zero)) / factor


#: Below this part of the latent, float32 leaves too few digits of it.
_SMALLEST_FACTOR = 1e-3


def slope(denoise: Denoise, state: torch.Tensor, sigma: float) -> torch.Tensor:
    """dx/dsigma of sampling at a state: the predicted noise, or a flow model's velocity."""
    return (state - denoise(state, sigma)) / sigma
