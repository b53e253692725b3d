"""The cost of pairing every row with every other, as a matrix product."""

from __future__ import annotations

import torch


def assignment_cost(data: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
    """See ``kernels.assignment_cost``."""
    return centred(-(data.float() @ noise.float().T))


def centred(cost: torch.Tensor) -> torch.Tensor:
    """A cost matrix less the means of its rows and columns."""
    return cost - cost.mean(dim=0, keepdim=True) - cost.mean(dim=1, keepdim=True) + cost.mean()
