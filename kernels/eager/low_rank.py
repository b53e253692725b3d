"""From a point of a weight space to weights: the flat vector of its factors, and their products on
the weights.
"""

from __future__ import annotations

from bisect import bisect_left

import torch

from .. import BASIS_GROUP
from . import block_bytes

#: Bytes of float32 on a CPU: of a basis as it lies, of one that is converted, and of a weight.
BASIS_BLOCK = 1 << 22
CONVERTED_BLOCK = 1 << 20
WEIGHT_BLOCK = 1 << 20
#: Columns of such a block of a basis, a multiple of BASIS_GROUP: its sums stay in the cache.
_COLUMNS = 1 << 17
_CONVERTED_COLUMNS = 1 << 15


def flat_weights(
    coefficients: torch.Tensor,
    basis: torch.Tensor,
    mean: torch.Tensor,
    deviation: torch.Tensor,
    basis_scale: torch.Tensor | None = None,
) -> torch.Tensor:
    """See ``kernels.flat_weights``. A point's sums are the same whatever points are beside it."""
    points = coefficients.reshape(-1, coefficients.shape[-1]).float()
    result = mean.to(torch.float32).expand(len(points), -1).clone()
    on_cpu = _COLUMNS if basis.dtype == torch.float32 else _CONVERTED_COLUMNS
    width = block_bytes(basis.device, 4 * on_cpu) // 4
    for first in range(0, basis.shape[1], width):
        columns = slice(first, min(first + width, basis.shape[1]))
        scale = None
        if basis_scale is not None:
            groups = slice(first // BASIS_GROUP, -(-columns.stop // BASIS_GROUP))
            scale = basis_scale[:, groups]
        total = _sums(points, basis[:, columns], scale)
        result[:, columns].addcmul_(deviation[columns].float(), total)
    return result.reshape(*coefficients.shape[:-1], -1)


def low_rank_apply(
    weight: torch.Tensor, up: torch.Tensor, down: torch.Tensor, strength: float
) -> torch.Tensor:
    """See ``kernels.low_rank_apply``."""
    up, down = (factor.to(weight.device).flatten(1) for factor in (up, down))
    matrix = weight.flatten(1)
    slow = weight.dtype == torch.float16 and weight.device.type == "cpu"
    if (
        up.dtype == down.dtype == weight.dtype and not slow
    ):  # accumulates in float32 and rounds once
        return torch.addmm(matrix, up, down, alpha=strength).view(weight.shape)
    up = up.float()
    down = down.float()
    step = max(block_bytes(weight.device, WEIGHT_BLOCK) // (4 * max(matrix.shape[1], 1)), 1)
    result = torch.empty_like(matrix)
    for first in range(0, len(matrix), step):
        part = slice(first, first + step)
        result[part] = torch.addmm(matrix[part].float(), up[part], down, alpha=strength)
    return result.view(weight.shape)


def _sums(
    points: torch.Tensor, basis: torch.Tensor, basis_scale: torch.Tensor | None
) -> torch.Tensor:
    """``points`` (N, K) times some columns of a basis, of which each number is read once."""
    on_cpu = BASIS_BLOCK if basis.dtype == torch.float32 else CONVERTED_BLOCK
    step = max(block_bytes(basis.device, on_cpu) // (4 * basis.shape[1]), 1)
    total = torch.zeros(len(points), basis.shape[1], device=basis.device)
    used = [point.nonzero()[:, 0].tolist() for point in points.cpu()]
    read = sorted(set().union(*used))
    for first in range(0, len(basis), step):
        numbers = _within(read, first, first + step)
        if not numbers:
            continue
        place = {number: slot for slot, number in enumerate(numbers)}
        block = _block(basis, basis_scale, _rows(numbers))
        for point, slots, sums in zip(points, used, total, strict=True):
            rows = _within(slots, first, first + step)
            if rows:
                lines = _rows([place[row] for row in rows])
                sums.addmv_(block[lines].T, point[_rows(rows)])
    return total


def _within(numbers: list[int], first: int, last: int) -> list[int]:
    """Those of ascending numbers from ``first`` to ``last`` - 1."""
    return numbers[bisect_left(numbers, first) : bisect_left(numbers, last)]


def _rows(numbers: list[int]) -> list[int] | slice:
    """Ascending numbers as an index; adjacent rows are taken without a copy."""
    if numbers[-1] - numbers[0] < len(numbers):
        return slice(numbers[0], numbers[-1] + 1)
    return numbers


def _block(
    basis: torch.Tensor, basis_scale: torch.Tensor | None, rows: list[int] | slice
) -> torch.Tensor:
    block = basis[rows].float()
    if basis_scale is None:
        return block
    return block * basis_scale[rows].repeat_interleave(BASIS_GROUP, dim=1)[:, : block.shape[1]]
