"""The cost of pairing every row with every other, as a matrix product."""

from __future__ import annotations

import torch


def assignment_cost(data: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
    """See ``kernels.assignment_cost``."""
    if data.ndim != 2 or noise.ndim != 2 or data.shape[1] != noise.shape[1]:
        raise ValueError(f"Assignment cost needs (N, D) and (P, D), not {tuple(data.shape)} and {tuple(noise.shape)}.")
    cost = -(data.float() @ noise.float().T)
    return cost - cost.mean(dim=0, keepdim=True) - cost.mean(dim=1, keepdim=True) + cost.mean()
