"""Change what a prompt says of an image, along the difference of two slopes.

FlowEdit (Kulikov et al., ICCV 2025, arXiv 2412.08629, Algorithm 1) needs no inversion: at each
noise level the image gets new noise and the edited image the same; the slope toward the changed
prompt at the edited one, less the slope toward the image's own prompt at the image, moves the
edited image on. Written with ComfyUI's noise levels, where sampling follows
dx/dsigma = (x - D(x, sigma)) / sigma for models of every kind: for a flow model this slope is the
velocity of the paper.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import torch

from .image_to_noise import Denoise, slope


def follow_difference(
    source: Denoise,
    target: Denoise,
    noised: Callable[[int, float], torch.Tensor],
    *,
    latent: torch.Tensor,
    sigmas: Sequence[float],
    mask: torch.Tensor | None = None,
    shown: Callable[[int, torch.Tensor], None] | None = None,
) -> torch.Tensor:
    """The edited latent, of the shape (B, C, ..., H, W) of ``latent``, in the model's scale.

    ``source`` and ``target``: the model with the prompt of the image and with the changed one.
    ``noised(step, sigma)``: the latent with the noise of a step. ``sigmas``: noise levels from high
    to low. ``mask``, 0 to 1: how much of each change is taken; 0 leaves the latent as it is.
    ``shown(step, edited)`` is called after each step.
    """
    edited = latent
    for step, (upper, lower) in enumerate(itertools.pairwise(map(float, sigmas))):
        at_source = noised(step, upper)
        at_target = at_source + (edited - latent)
        difference = slope(target, at_target, upper) - slope(source, at_source, upper)
        change = (lower - upper) * difference
        edited = edited + (change if mask is None else mask * change)
        if shown is not None:
            shown(step, edited)
    return edited
