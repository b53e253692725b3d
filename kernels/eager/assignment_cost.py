"""The cost of pairing every row with every other, as a matrix product."""

from __future__ import annotations

import torch


def assignment_cost(data: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
    """See ``kernels.assignment_cost``."""
    products = data.float() @ noise.float().T
    columns = products.mean(dim=0)
    rows = products.mean(dim=1, keepdim=True)
    return (columns - columns.mean() + rows).sub_(products)
