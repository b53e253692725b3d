"""The form on weight updates: members in one common basis for each layer, without ever forming an update dW.

dW_i = up_i @ down_i is L C_i R with L (out, p) and R (q, in) of orthonormal columns and rows that all members have in
common. The core C_i = (L^T up_i) (down_i R^T) has the products <C_i, C_j> = <dW_i, dW_j>, whatever the rank, sign and
gauge of the factors, so principal components of cores are those of the updates, and every sum of members is again a
LoRA of rank min(p, q). L and R are truncated one after the other (Vannieuwenhoven et al., SIAM J. Sci. Comput. 34(2),
2012): what the two steps leave out adds up exactly.
"""

from __future__ import annotations

import torch

from .flat_layout import LayerBasis
from .lora_reader import Factors, Shape

_TINY = 1e-12  # a fraction of the energy that is rounding
_OVERSAMPLED = 16


def extend_basis(
    changes: list[Factors], shape: Shape, energy: float, limit: int, start: LayerBasis | None = None
) -> LayerBasis:
    """A layer's basis that keeps at least the fraction ``energy`` of the updates on average, each counted the same.

    At most ``limit`` vectors on a side (0: no limit), then less is kept. Vectors of ``start`` stay; the new ones are
    chosen for what it leaves out. Updates that are zero have no say.
    """
    halves = []
    for change in changes:
        if norm := change.squared_norm() ** 0.5:
            up, down = change.matrices()
            halves.append((up / norm, down))
    inputs, outputs = torch.Size(shape[0]).numel(), shape[1][0]
    left, right = (start.left, start.right) if start else (torch.empty(outputs, 0), torch.empty(0, inputs))
    budget = len(halves) * (1 - energy) / 2
    if inputs <= outputs:
        right = _extend(right.T, [_half(down.T, up.T) for up, down in halves], budget, limit).T
        left = _extend(left, [_half(up, down @ right.T) for up, down in halves], budget, limit)
    else:
        left = _extend(left, [_half(up, down) for up, down in halves], budget, limit)
        right = _extend(right.T, [_half(down.T, up.T @ left) for up, down in halves], budget, limit).T
    return LayerBasis(left, right.contiguous())


def _half(up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
    """X (out, r) with X X^T = (up down) (up down)^T."""
    return up @ torch.linalg.qr(down.T).R.T


def _extend(basis: torch.Tensor, parts: list[torch.Tensor], budget: float, limit: int) -> torch.Tensor:
    """Orthonormal columns (m, p) and those that leave at most ``budget`` of |parts|^2 outside of all of them."""
    room = limit - basis.shape[1] if limit else len(basis)
    if not parts or room <= 0:
        return basis
    stack = torch.cat(parts, dim=1)
    total = float(stack.double().square().sum())
    for _ in range(2 if basis.shape[1] else 0):  # twice is enough for orthogonality (Kahan and Parlett)
        stack = stack - basis @ (basis.T @ stack)
    if stack.shape[1] > 2 * stack.shape[0]:
        stack = torch.linalg.qr(stack.T).R.T
    if limit and min(stack.shape) > 2 * room:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            vectors, values, _ = torch.svd_lowrank(stack, q=min(room + _OVERSAMPLED, *stack.shape), niter=1)
    else:
        vectors, values, _ = torch.linalg.svd(stack, full_matrices=False)
    rest = float(stack.double().square().sum()) - torch.cat([torch.zeros(1), values]).double().square().cumsum(0)
    needed = int((rest > max(budget, _TINY * total)).sum())
    return torch.cat([basis, vectors[:, : min(needed, room, len(values))]], dim=1)
