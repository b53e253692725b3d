"""From a point of a weight space to weights: the flat vector of its factors, and their products on the weights."""

from __future__ import annotations

import torch

from .. import BASIS_GROUP
from . import block_bytes

#: Bytes of float32 on a CPU: of a basis, and of a weight.
BASIS_BLOCK, WEIGHT_BLOCK = 1 << 22, 1 << 19


def flat_weights(coefficients, basis, mean, deviation, basis_scale=None) -> torch.Tensor:
    """See ``kernels.flat_weights``."""
    total = torch.zeros_like(mean, dtype=torch.float32)
    used = coefficients.nonzero()[:, 0].tolist()
    adjacent = used and used[-1] - used[0] < len(used)
    step = max(block_bytes(basis.device, BASIS_BLOCK) // (4 * basis.shape[1]), 1)
    if adjacent and basis.dtype == torch.float32:  # is taken as it lies
        step = len(used)
    for first in range(0, len(used), step):
        rows = used[first : first + step]
        if rows[-1] - rows[0] < len(rows):
            rows = slice(rows[0], rows[-1] + 1)  # adjacent rows are taken without a copy
        total.addmv_(_block(basis, basis_scale, rows).T, coefficients[rows].float())
    return torch.addcmul(mean.float(), deviation.float(), total)


def low_rank_apply(weight, up, down, strength: float) -> torch.Tensor:
    """See ``kernels.low_rank_apply``."""
    up, down = (factor.to(weight.device, torch.float32).flatten(1) for factor in (up, down))
    matrix = weight.flatten(1)
    if weight.dtype == torch.float32:
        return torch.addmm(matrix, up, down, alpha=strength).view(weight.shape)
    step = max(block_bytes(weight.device, WEIGHT_BLOCK) // (4 * max(matrix.shape[1], 1)), 1)
    pairs = zip(matrix.split(step), up.split(step), strict=True)
    changed = [torch.addmm(rows.float(), left, down, alpha=strength).to(weight.dtype) for rows, left in pairs]
    return torch.cat(changed).view(weight.shape)


def _block(basis, basis_scale, rows) -> torch.Tensor:
    block = basis[rows].float()
    if basis_scale is None:
        return block
    return block * basis_scale[rows].repeat_interleave(BASIS_GROUP, dim=1)[:, : block.shape[1]]
