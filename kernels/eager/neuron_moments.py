"""Moments of neurons' activations, accumulated in float64."""

from __future__ import annotations

import torch


def neuron_moments(values: torch.Tensor) -> torch.Tensor:
    """See ``kernels.neuron_moments``."""
    # One prompt fits into the cache of a CPU where all of them do not.
    return moments(torch.stack([prompt.float().abs().mean(dim=0) for prompt in values]))


def moments(activations: torch.Tensor) -> torch.Tensor:
    """Mean, sum of squared deviations, smallest and largest over rows of (prompts, C): float64 (4, C)."""
    activations = activations.double()
    mean = activations.mean(dim=0)
    squares = (activations - mean).square().sum(dim=0)
    return torch.stack([mean, squares, activations.amin(dim=0), activations.amax(dim=0)])
