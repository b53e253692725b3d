"""From a point of a weight space to weights, with each number of the basis and of a weight read once.

All weights of a network take two launches, one for the flat vector and one for its products on every weight: a product
needs numbers from all over the first, and whoever fused them would read the basis once for each tile.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .. import BASIS_GROUP
from . import common

BASIS_ROWS, BLOCK = 8, 512  # a block lies within one group of an int8 basis
ROWS, COLUMNS, DEPTH = 64, 64, 32
_FIELDS = 6  # numbers that the table of weights has for each


def flat_weights(coefficients, basis, mean, deviation, basis_scale=None) -> torch.Tensor:
    """See ``kernels.flat_weights``."""
    rows, size = basis.shape
    blocks = triton.cdiv(size, BLOCK)
    length, count = common.pieces(rows, BASIS_ROWS, blocks, common.PROGRAMS)
    sums = torch.empty(count, size, device=basis.device)
    scaled = basis_scale is not None
    scale = basis_scale if scaled else coefficients
    _combine[(blocks, count)](
        coefficients, basis, scale, sums, rows, size, coefficients.stride(0), basis.stride(0),
        scale.stride(0), length, scaled, BASIS_GROUP, BASIS_ROWS, BLOCK,
    )  # fmt: skip
    return torch.addcmul(mean.float(), deviation.float(), sums.sum(dim=0))


def low_rank_apply(weight, up, down, strength: float) -> torch.Tensor:
    """See ``kernels.low_rank_apply``."""
    up, down = (factor.to(weight.device).flatten(1).contiguous() for factor in (up, down))
    (rank, columns), rows = down.shape, len(up)
    result = torch.empty_like(weight)
    grid = (triton.cdiv(rows, ROWS) * triton.cdiv(columns, COLUMNS),)
    _apply[grid](weight, up, down, result, strength, rows, columns, rank, common.wide(up, down), ROWS, COLUMNS, DEPTH)
    return result


def apply_point(weights, places, coefficients, basis, mean, deviation, strength: float, basis_scale=None) -> tuple:
    """See ``kernels.apply_point``."""
    flat = flat_weights(coefficients, basis, mean, deviation, basis_scale)
    results = tuple(map(torch.empty_like, weights))
    for dtype in {weight.dtype for weight in weights}:
        lines, tiles = [], []
        for weight, result, (offset, rank) in zip(weights, results, places, strict=True):
            if weight.dtype == dtype:
                rows, columns = len(weight), weight.numel() // len(weight)
                lines.append([weight.data_ptr(), result.data_ptr(), offset, rank, rows, columns])
                tiles.append(triton.cdiv(rows, ROWS) * triton.cdiv(columns, COLUMNS))
                like = weight
        owner, within = _owners(tiles)
        table = torch.tensor(lines).to(flat.device)
        _apply_all[(len(owner),)](like, table, owner.to(flat.device), within.to(flat.device), flat, strength, _FIELDS,
                                  ROWS, COLUMNS)  # fmt: skip
    return results


def _owners(tiles: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """For each of all tiles the number of its weight, and its number within that."""
    counts = torch.tensor(tiles)
    owner = torch.repeat_interleave(torch.arange(len(counts)), counts)
    within = torch.arange(len(owner)) - (counts.cumsum(0) - counts)[owner]
    return owner.int(), within.int()


@triton.jit
def _combine(coefficients, basis, scale, sums, rows, size, coefficient_stride, basis_stride, scale_stride, length,
             SCALED: tl.constexpr, GROUP: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    first = tl.program_id(1) * length
    total = tl.zeros([BLOCK], tl.float32)
    for start in range(first, tl.minimum(first + length, rows), ROWS):
        row = (start + tl.arange(0, ROWS)).to(tl.int64)
        factor = tl.load(coefficients + row * coefficient_stride, mask=row < rows, other=0).to(tl.float32)
        used = factor != 0
        if SCALED:
            group = tl.program_id(0) * BLOCK // GROUP
            factor *= tl.load(scale + row * scale_stride + group, mask=used, other=0).to(tl.float32)
        numbers = tl.load(basis + row[:, None] * basis_stride + place[None, :],
                          mask=used[:, None] & (place < size)[None, :], other=0)  # fmt: skip
        total += tl.sum(factor[:, None] * numbers.to(tl.float32), axis=0)
    tl.store(sums + tl.program_id(1).to(tl.int64) * size + place, total, mask=place < size)


@triton.jit
def _apply(weight, up, down, result, strength, rows, columns, rank, WIDE: tl.constexpr, ROWS: tl.constexpr,
           COLUMNS: tl.constexpr, DEPTH: tl.constexpr):  # fmt: skip
    across = tl.cdiv(columns, COLUMNS)
    row = (tl.program_id(0) // across * ROWS + tl.arange(0, ROWS)).to(tl.int64)[:, None]
    column = (tl.program_id(0) % across * COLUMNS + tl.arange(0, COLUMNS)).to(tl.int64)[None, :]
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    for first in range(0, rank, DEPTH):
        place = first + tl.arange(0, DEPTH)
        left = tl.load(up + row * rank + place[None, :], mask=(row < rows) & (place < rank)[None, :], other=0)
        right = tl.load(down + place[:, None].to(tl.int64) * columns + column,
                        mask=(place < rank)[:, None] & (column < columns), other=0)  # fmt: skip
        if WIDE:
            left, right = left.to(tl.float32), right.to(tl.float32)
        total = tl.dot(left, right, total, input_precision="tf32x3")
    there = (row < rows) & (column < columns)
    before = tl.load(weight + row * columns + column, mask=there, other=0).to(tl.float32)
    tl.store(result + row * columns + column, before + strength * total, mask=there)


@triton.jit
def _apply_all(like, table, owner, within, flat, strength, FIELDS: tl.constexpr, ROWS: tl.constexpr,
               COLUMNS: tl.constexpr):  # fmt: skip
    line = table + tl.load(owner + tl.program_id(0)) * FIELDS
    weight, result = tl.load(line).to(like.dtype), tl.load(line + 1).to(like.dtype)
    offset, rank, rows, columns = tl.load(line + 2), tl.load(line + 3), tl.load(line + 4), tl.load(line + 5)
    tile, across = tl.load(within + tl.program_id(0)), tl.cdiv(columns, COLUMNS)
    row = tile // across * ROWS + tl.arange(0, ROWS)
    column = tile % across * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    # Sums in float32 without tensor cores: with the few ranks of a LoRA, reading the weight takes longer.
    for number in range(rank):
        left = tl.load(flat + offset + rank * columns + row * rank + number, mask=row < rows, other=0)
        right = tl.load(flat + offset + number * columns + column, mask=column < columns, other=0)
        total += left[:, None] * right[None, :]
    there = (row < rows)[:, None] & (column < columns)[None, :]
    place = row[:, None] * columns + column[None, :]
    before = tl.load(weight + place, mask=there, other=0).to(tl.float32)
    tl.store(result + place, before + strength * total, mask=there)
