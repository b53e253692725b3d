"""The assignment of least total cost by SciPy (a shortest augmenting path method) on the CPU, in float64."""

from __future__ import annotations

import torch


def least_assignment(cost: torch.Tensor, gap: float = 0.0) -> tuple[torch.Tensor, torch.Tensor]:
    """See ``kernels.least_assignment``; always the least."""
    columns = torch.empty(cost.shape[:-1], dtype=torch.int64, device=cost.device)
    for problem, found in zip(*(part if cost.ndim == 3 else part[None] for part in (cost, columns)), strict=True):
        found.copy_(exact(problem))
    return columns, total(cost, columns)


def exact(problem: torch.Tensor) -> torch.Tensor:
    """The column of each row of one problem (N, N), on the CPU."""
    import numpy as np
    from scipy.optimize import linear_sum_assignment

    # Transposed: a picture that stands for many rows makes equal columns then, and equal rows are 20 times slower.
    rows = linear_sum_assignment(np.ascontiguousarray(problem.detach().double().cpu().numpy().T))[1]
    return torch.from_numpy(np.argsort(rows))


def total(cost: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
    """The cost of assignments (..., N), summed in float64."""
    return cost.gather(-1, columns[..., None])[..., 0].double().sum(dim=-1)
