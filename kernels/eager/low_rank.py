"""From a point of a weight space to weights: the flat vector of its factors, and their product on a weight."""

from __future__ import annotations

import torch

from .. import BASIS_GROUP

_ROWS = 64  # basis vectors that are brought to float32 at a time


def flat_weights(coefficients, basis, mean, deviation, basis_scale=None) -> torch.Tensor:
    """See ``kernels.flat_weights``."""
    if basis.ndim != 2 or coefficients.shape != basis.shape[:1] or mean.shape != basis.shape[1:]:
        raise ValueError(f"A basis {tuple(basis.shape)} needs a coefficient for each row and a mean as long as a row, "
                         f"not {tuple(coefficients.shape)} and {tuple(mean.shape)}.")  # fmt: skip
    if (basis.dtype == torch.int8) != (basis_scale is not None):
        raise ValueError("An int8 basis needs its scales, and no other has any.")
    total = torch.zeros_like(mean, dtype=torch.float32)
    used = coefficients.nonzero()[:, 0]
    for rows in used.split(_ROWS):
        total += coefficients[rows].float() @ _block(basis, basis_scale, rows)
    return mean.float() + deviation.float() * total


def low_rank_apply(weight, up, down, strength: float) -> torch.Tensor:
    """See ``kernels.low_rank_apply``."""
    if up.shape[0] != weight.shape[0] or up.flatten(1).shape[1] != down.shape[0] or (
        weight.numel() != weight.shape[0] * down[0].numel()
    ):
        raise ValueError(f"Factors {tuple(up.shape)} and {tuple(down.shape)} make no change of {tuple(weight.shape)}.")
    up, down = (factor.to(weight.device, torch.float32).flatten(1) for factor in (up, down))
    changed = torch.addmm(weight.float().flatten(1), up, down, alpha=strength)
    return changed.view(weight.shape).to(weight.dtype)


def _block(basis, basis_scale, rows) -> torch.Tensor:
    block = basis[rows].float()
    if basis_scale is None:
        return block
    return block * basis_scale[rows].repeat_interleave(BASIS_GROUP, dim=1)[:, : block.shape[1]]
