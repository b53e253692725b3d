"""From a point of a weight space to weights: the flat vector of its factors, and their products on the weights."""

from __future__ import annotations

import torch

from .. import BASIS_GROUP
from . import block_bytes

#: Bytes of float32 on a CPU: of a basis, and of a weight.
BASIS_BLOCK, WEIGHT_BLOCK = 1 << 22, 1 << 20


def flat_weights(coefficients, basis, mean, deviation, basis_scale=None) -> torch.Tensor:
    """See ``kernels.flat_weights``."""
    used = coefficients.nonzero()[:, 0].tolist()
    if not used:
        return mean.to(torch.float32, copy=True)
    adjacent = used[-1] - used[0] < len(used)
    step = max(block_bytes(basis.device, BASIS_BLOCK) // (4 * basis.shape[1]), 1)
    if adjacent and basis.dtype == torch.float32:  # is taken as it lies
        step = len(used)
    total = torch.empty_like(mean, dtype=torch.float32)
    for first in range(0, len(used), step):
        rows = used[first : first + step]
        if rows[-1] - rows[0] < len(rows):
            rows = slice(rows[0], rows[-1] + 1)  # adjacent rows are taken without a copy
        block, factors = _block(basis, basis_scale, rows).T, coefficients[rows].float()
        total.addmv_(block, factors, beta=1 if first else 0)
    return torch.addcmul(mean.float(), deviation.float(), total)


def low_rank_apply(weight, up, down, strength: float) -> torch.Tensor:
    """See ``kernels.low_rank_apply``."""
    up, down = (factor.to(weight.device).flatten(1) for factor in (up, down))
    matrix = weight.flatten(1)
    slow = weight.dtype == torch.float16 and weight.device.type == "cpu"
    if up.dtype == down.dtype == weight.dtype and not slow:  # accumulates in float32 and rounds once
        return torch.addmm(matrix, up, down, alpha=strength).view(weight.shape)
    up, down = up.float(), down.float()
    step = max(block_bytes(weight.device, WEIGHT_BLOCK) // (4 * max(matrix.shape[1], 1)), 1)
    result = torch.empty_like(matrix)
    for first in range(0, len(matrix), step):
        part = slice(first, first + step)
        result[part] = torch.addmm(matrix[part].float(), up[part], down, alpha=strength)
    return result.view(weight.shape)


def _block(basis, basis_scale, rows) -> torch.Tensor:
    block = basis[rows].float()
    if basis_scale is None:
        return block
    return block * basis_scale[rows].repeat_interleave(BASIS_GROUP, dim=1)[:, : block.shape[1]]
