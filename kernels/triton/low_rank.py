"""From a point of a weight space to weights, with each number of the basis and of a weight read once.

All weights of a network take one launch. Its programs take numbers in the order in which they begin. The first make the
flat vector and wait for nobody; the others, a tile of a weight each, wait until it is whole. So whoever waits, waits
for programs that run, however few fit on the device at once.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .. import BASIS_GROUP
from . import common

BASIS_ROWS, BLOCK = 8, 512  # a block lies within one group of an int8 basis
_LEAST_BLOCK = 128
ROWS, COLUMNS, DEPTH = 64, 64, 32
_TYPES = (torch.float32, torch.bfloat16, torch.float16)  # of weights, as the kernel numbers them
_FIELDS = 7  # numbers that the table of weights has for each


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
    results = tuple(map(torch.empty_like, weights))
    if not weights:
        return results
    (rows, size), scaled = basis.shape, basis_scale is not None
    scale, block = basis_scale if scaled else coefficients, BLOCK
    while block > _LEAST_BLOCK and triton.cdiv(size, block) < common.PROGRAMS:
        block //= 2
    lines, tiles = _table(weights, results, places)
    table = torch.cat([lines.flatten(), *tiles]).to(basis.device)
    makers, flat = triton.cdiv(size, block), torch.empty(size, device=basis.device)
    begun_and_made = torch.zeros(2, dtype=torch.int32, device=basis.device)
    _apply_all[(makers + len(tiles[0]),)](
        coefficients, basis, scale, mean, deviation, flat, begun_and_made, table, strength, rows, size,
        coefficients.stride(0), basis.stride(0), scale.stride(0), makers, len(weights), len(tiles[0]), scaled,
        BASIS_GROUP, _FIELDS, BASIS_ROWS, block, ROWS, COLUMNS,
    )  # fmt: skip
    return results


def _table(weights, results, places) -> tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
    """What the kernel must know of each weight; for each of all tiles the number of its weight, and its own there."""
    lines, counts = [], []
    for weight, result, (offset, rank) in zip(weights, results, places, strict=True):
        rows, columns = len(weight), weight.numel() // len(weight)
        kind = _TYPES.index(weight.dtype)
        lines.append([weight.data_ptr(), result.data_ptr(), offset, rank, rows, columns, kind])
        counts.append(triton.cdiv(rows, ROWS) * triton.cdiv(columns, COLUMNS))
    counts = torch.tensor(counts)
    owner = torch.repeat_interleave(torch.arange(len(counts)), counts)
    return torch.tensor(lines), (owner, torch.arange(len(owner)) - (counts.cumsum(0) - counts)[owner])


@triton.jit
def _combine(coefficients, basis, scale, sums, rows, size, coefficient_stride, basis_stride, scale_stride, length,
             SCALED: tl.constexpr, GROUP: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    first = tl.program_id(1) * length
    total, place = _sum(coefficients, basis, scale, tl.program_id(0), first, tl.minimum(first + length, rows), rows,
                        size, coefficient_stride, basis_stride, scale_stride, SCALED, GROUP, ROWS, BLOCK)  # fmt: skip
    tl.store(sums + tl.program_id(1).to(tl.int64) * size + place, total, mask=place < size)


@triton.jit
def _sum(coefficients, basis, scale, block, first, last, rows, size, coefficient_stride, basis_stride, scale_stride,
         SCALED: tl.constexpr, GROUP: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    """A block of the combination of rows first to last of the basis, and its places."""
    place = block.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.float32)
    for start in range(first, last, ROWS):
        row = (start + tl.arange(0, ROWS)).to(tl.int64)
        factor = tl.load(coefficients + row * coefficient_stride, mask=row < rows, other=0).to(tl.float32)
        used = factor != 0
        if SCALED:
            factor *= tl.load(scale + row * scale_stride + block * BLOCK // GROUP, mask=used, other=0).to(tl.float32)
        numbers = tl.load(basis + row[:, None] * basis_stride + place[None, :],
                          mask=used[:, None] & (place < size)[None, :], other=0)  # fmt: skip
        total += tl.sum(factor[:, None] * numbers.to(tl.float32), axis=0)
    return total, place


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
def _apply_all(coefficients, basis, scale, mean, deviation, flat, begun_and_made, table, strength, rows, size,
               coefficient_stride, basis_stride, scale_stride, makers, weights, tiles, SCALED: tl.constexpr,
               GROUP: tl.constexpr, FIELDS: tl.constexpr, BASIS_ROWS: tl.constexpr, BLOCK: tl.constexpr,
               ROWS: tl.constexpr, COLUMNS: tl.constexpr):  # fmt: skip
    number = tl.atomic_add(begun_and_made, 1)
    if number < makers:
        total, place = _sum(coefficients, basis, scale, number, 0, rows, rows, size, coefficient_stride, basis_stride,
                            scale_stride, SCALED, GROUP, BASIS_ROWS, BLOCK)  # fmt: skip
        there = place < size
        middle = tl.load(mean + place, mask=there, other=0).to(tl.float32)
        width = tl.load(deviation + place, mask=there, other=0).to(tl.float32)
        tl.store(flat + place, middle + width * total, mask=there)
        tl.debug_barrier()  # all threads have stored before one says so
        tl.atomic_add(begun_and_made + 1, 1, sem="release")
    else:
        while tl.atomic_add(begun_and_made + 1, 0, sem="acquire") < makers:
            pass
        tl.debug_barrier()
        tile = table + weights * FIELDS + number - makers
        _change(table + tl.load(tile) * FIELDS, tl.load(tile + tiles), flat, strength, ROWS, COLUMNS)


@triton.jit
def _change(line, tile, flat, strength, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """One tile of the weight that a line of the table tells of."""
    offset, rank, rows, columns = tl.load(line + 2), tl.load(line + 3), tl.load(line + 4), tl.load(line + 5)
    across = tl.cdiv(columns, COLUMNS)
    row = tile // across * ROWS + tl.arange(0, ROWS)
    column = tile % across * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    # Sums in float32 without tensor cores: with the few ranks of a LoRA, reading the weight takes longer.
    for number in range(rank):
        left = tl.load(flat + offset + rank * columns + row * rank + number, mask=row < rows, other=0)
        right = tl.load(flat + offset + number * columns + column, mask=column < columns, other=0)
        total += left[:, None] * right[None, :]
    there = (row < rows)[:, None] & (column < columns)[None, :]
    place, total = row[:, None] * columns + column[None, :], strength * total
    weight, result, kind = tl.load(line), tl.load(line + 1), tl.load(line + 6)
    if kind == 0:
        _add(weight.to(tl.pointer_type(tl.float32)), result.to(tl.pointer_type(tl.float32)), place, total, there)
    elif kind == 1:
        _add(weight.to(tl.pointer_type(tl.bfloat16)), result.to(tl.pointer_type(tl.bfloat16)), place, total, there)
    else:
        _add(weight.to(tl.pointer_type(tl.float16)), result.to(tl.pointer_type(tl.float16)), place, total, there)


@triton.jit
def _add(weight, result, place, total, there):
    before = tl.load(weight + place, mask=there, other=0).to(tl.float32)
    tl.store(result + place, before + total, mask=there)
