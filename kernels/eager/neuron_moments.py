"""Moments of neurons' activations, accumulated in float64."""

from __future__ import annotations

import torch


def neuron_moments(values: torch.Tensor) -> torch.Tensor:
    """See ``kernels.neuron_moments``."""
    if values.ndim != 3 or not len(values) or not values.shape[1]:
        raise ValueError(f"Neuron moments need (prompts, tokens, neurons) with one or more, not {tuple(values.shape)}.")
    activations = values.float().abs().mean(dim=1).double()
    mean = activations.mean(dim=0)
    squares = (activations - mean).square().sum(dim=0)
    return torch.stack([mean, squares, activations.amin(dim=0), activations.amax(dim=0)])
