"""From a point of a weight space to weights, with each number of the basis and of a weight read
once.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .. import BASIS_GROUP
from . import common

# a block lies within one group of an int8 basis
BASIS_ROWS = 8
BLOCK = 512


def launch(target: str, wide: bool) -> dict:
    """Tile, ranks at a time and precision; ``wide``: whether the factors are multiplied in
    float32.
    """
    columns = 64 if target == common.RDNA else 128
    return {
        "ROWS": 32,
        "COLUMNS": columns,
        "DEPTH": 16 if wide else 32,
        "PRECISION": common.precision(target),
        "WIDE": wide,
    }


def flat_weights(
    coefficients: torch.Tensor,
    basis: torch.Tensor,
    mean: torch.Tensor,
    deviation: torch.Tensor,
    basis_scale: torch.Tensor | None = None,
) -> torch.Tensor:
    """See ``kernels.flat_weights``."""
    rows, size = basis.shape
    blocks = triton.cdiv(size, BLOCK)
    length, count = common.pieces(rows, BASIS_ROWS, blocks, common.PROGRAMS)
    sums = torch.empty(count, size, device=basis.device)
    scaled = basis_scale is not None
    scale = coefficients if basis_scale is None else basis_scale
    _combine[(blocks, count)](
        coefficients,
        basis,
        scale,
        sums,
        rows,
        size,
        coefficients.stride(0),
        basis.stride(0),
        scale.stride(0),
        length,
        scaled,
        BASIS_GROUP,
        BASIS_ROWS,
        BLOCK,
    )
    return torch.addcmul(mean.float(), deviation.float(), sums.sum(dim=0))


def low_rank_apply(
    weight: torch.Tensor, up: torch.Tensor, down: torch.Tensor, strength: float
) -> torch.Tensor:
    """See ``kernels.low_rank_apply``."""
    up, down = (factor.to(weight.device).flatten(1).contiguous() for factor in (up, down))
    rank, columns = down.shape
    rows = len(up)
    result = torch.empty_like(weight)
    tile = launch(common.target(weight), common.wide(up, down))
    grid = (triton.cdiv(rows, tile["ROWS"]) * triton.cdiv(columns, tile["COLUMNS"]),)
    _apply[grid](weight, up, down, result, strength, rows, columns, rank, **tile)
    return result


@triton.jit
def _combine(
    coefficients,
    basis,
    scale,
    sums,
    rows,
    size,
    coefficient_stride,
    basis_stride,
    scale_stride,
    length,
    SCALED: tl.constexpr,
    GROUP: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """A block of the combination of some rows of the basis."""
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.float32)
    first = tl.program_id(1) * length
    for start in range(first, tl.minimum(first + length, rows), ROWS):
        row = (start + tl.arange(0, ROWS)).to(tl.int64)
        factor = tl.load(coefficients + row * coefficient_stride, mask=row < rows, other=0).to(
            tl.float32
        )
        used = factor != 0
        if SCALED:
            group = tl.program_id(0) * BLOCK // GROUP
            factor *= tl.load(scale + row * scale_stride + group, mask=used, other=0).to(tl.float32)
        numbers = tl.load(
            basis + row[:, None] * basis_stride + place[None, :],
            mask=used[:, None] & (place < size)[None, :],
            other=0,
        )
        total += tl.sum(factor[:, None] * numbers.to(tl.float32), axis=0)
    tl.store(sums + tl.program_id(1).to(tl.int64) * size + place, total, mask=place < size)


@triton.jit
def _apply(
    weight,
    up,
    down,
    result,
    strength,
    rows,
    columns,
    rank,
    WIDE: tl.constexpr,
    PRECISION: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
):
    across = tl.cdiv(columns, COLUMNS)
    row = (tl.program_id(0) // across * ROWS + tl.arange(0, ROWS))[:, None]
    column = (tl.program_id(0) % across * COLUMNS + tl.arange(0, COLUMNS))[None, :]
    there = (row < rows) & (column < columns)
    place = row.to(tl.int64) * columns + column
    before = tl.load(weight + place, mask=there, other=0)
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    for first in range(0, rank, DEPTH):
        part = first + tl.arange(0, DEPTH)
        left = tl.load(
            up + row.to(tl.int64) * rank + part[None, :],
            mask=(row < rows) & (part < rank)[None, :],
            other=0,
        )
        right = tl.load(
            down + part[:, None].to(tl.int64) * columns + column,
            mask=(part < rank)[:, None] & (column < columns),
            other=0,
        )
        if WIDE:
            left = left.to(tl.float32)
            right = right.to(tl.float32)
        total = tl.dot(left, right, total, input_precision=PRECISION)
    tl.store(result + place, before.to(tl.float32) + strength * total, mask=there)
