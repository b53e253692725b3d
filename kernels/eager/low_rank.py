"""From a point of a weight space to weights: the flat vector of its factors, and their products on the weights."""

from __future__ import annotations

import torch

from .. import BASIS_GROUP

_ROWS = 64  # basis vectors that are brought to float32 at a time


def flat_weights(coefficients, basis, mean, deviation, basis_scale=None) -> torch.Tensor:
    """See ``kernels.flat_weights``."""
    total = torch.zeros_like(mean, dtype=torch.float32)
    used = coefficients.nonzero()[:, 0].tolist()
    adjacent = used and used[-1] - used[0] < len(used)
    step = len(used) if adjacent and basis.dtype == torch.float32 else _ROWS  # float32 is taken as it lies
    for first in range(0, len(used), step):
        rows = used[first : first + step]
        if rows[-1] - rows[0] < len(rows):
            rows = slice(rows[0], rows[-1] + 1)  # adjacent rows are taken without a copy
        total += coefficients[rows].float() @ _block(basis, basis_scale, rows)
    return mean.float() + deviation.float() * total


def low_rank_apply(weight, up, down, strength: float) -> torch.Tensor:
    """See ``kernels.low_rank_apply``."""
    up, down = (factor.to(weight.device, torch.float32).flatten(1) for factor in (up, down))
    changed = torch.addmm(weight.float().flatten(1), up, down, alpha=strength)
    return changed.view(weight.shape).to(weight.dtype)


def apply_point(weights, places, coefficients, basis, mean, deviation, strength: float, basis_scale=None) -> tuple:
    """See ``kernels.apply_point``."""
    flat = flat_weights(coefficients, basis, mean, deviation, basis_scale)
    changed = []
    for weight, (offset, rank) in zip(weights, places, strict=True):
        rows = len(weight)
        middle = offset + rank * (weight.numel() // rows)
        down, up = flat[offset:middle].view(rank, -1), flat[middle : middle + rows * rank].view(rows, rank)
        changed.append(low_rank_apply(weight, up, down, strength))
    return tuple(changed)


def _block(basis, basis_scale, rows) -> torch.Tensor:
    block = basis[rows].float()
    if basis_scale is None:
        return block
    return block * basis_scale[rows].repeat_interleave(BASIS_GROUP, dim=1)[:, : block.shape[1]]
