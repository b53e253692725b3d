"""Moments of neurons' activations over prompts, accumulated in float64."""

from __future__ import annotations

import torch

from . import block_bytes

#: Bytes of some prompts in float32 on a CPU.
BLOCK = 1 << 19


def neuron_moments(values: torch.Tensor) -> torch.Tensor:
    """See ``kernels.neuron_moments``."""
    prompts = max(block_bytes(values.device, BLOCK) // max(4 * values[0].numel(), 1), 1)
    block = torch.empty_like(values[:prompts], dtype=torch.float32)
    means = []
    largest = []
    for part in values.split(prompts):
        sizes = block[: len(part)].copy_(part).abs_()
        means.append(sizes.mean(dim=1))
        largest.append(sizes.amax(dim=1))
    activations = torch.cat(means).double()
    mean = activations.mean(dim=0)
    squares = (activations - mean).square().sum(dim=0)
    extremes = (
        activations.amin(dim=0),
        activations.amax(dim=0),
        torch.cat(largest).amax(dim=0).double(),
    )
    return torch.stack([mean, squares, *extremes])
