"""Attention probabilities averaged over heads: first what every row of every head sums to, then the mean tile by tile.

No head's map exists beyond a tile, and of the keys only the wanted ones are visited in the second pass.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from . import common

TILE = 64
_BYTES = 16384  # of one tile of a head's channels; above it tiles are half as high, for small shared memories


def mean_attention(query, key, heads: int, chosen=None, tokens=None) -> torch.Tensor:
    """See ``kernels.mean_attention``."""
    (count, positions, _), keys = query.shape, key.shape[1]
    chosen, tokens = _indices(chosen, heads, query.device), _indices(tokens, keys, query.device)
    channels = query.shape[2] // heads
    width = max(16, triton.next_power_of_2(channels))
    wide = common.wide(query, key)
    tile = TILE if TILE * width * (4 if wide else 2) <= _BYTES else TILE // 2
    strides = *query.stride()[:2], *key.stride()[:2]
    widths = wide, width, tile, tile
    down = triton.cdiv(positions, tile)
    sums = torch.empty(count, len(chosen), positions, device=query.device)
    _log_sums[(down, count * len(chosen))](
        query, key, chosen, sums, len(chosen), positions, keys, channels, channels**-0.5, *strides, *widths,
        num_stages=2,
    )  # fmt: skip
    result = torch.empty(count, positions, len(tokens), device=query.device)
    _means[(down, triton.cdiv(len(tokens), tile), count)](
        query, key, chosen, tokens, sums, result, len(chosen), positions, len(tokens), channels, channels**-0.5,
        *strides, *widths, num_stages=2,
    )  # fmt: skip
    return result


def _indices(wanted, count: int, device: torch.device) -> torch.Tensor:
    if wanted is None:
        return torch.arange(count, dtype=torch.int32, device=device)
    return torch.as_tensor(wanted, dtype=torch.int32, device=device)


@triton.jit
def _rows_of(tensor, row, rows, channels, stride, WIDE: tl.constexpr, WIDTH: tl.constexpr):
    """Rows of one head: (len(row), WIDTH), with zeros beyond its channels."""
    place = tl.arange(0, WIDTH)
    block = tl.load(tensor + row[:, None] * stride + place[None, :],
                    mask=rows[:, None] & (place < channels)[None, :], other=0)  # fmt: skip
    return block.to(tl.float32) if WIDE else block


@triton.jit
def _log_sums(query, key, chosen, sums, heads, positions, keys, channels, scale, query_row, query_stride, key_row,
              key_stride, WIDE: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr,
              COLUMNS: tl.constexpr):  # fmt: skip
    """The logarithm of the sum of exponentials over keys, for each position of each chosen head."""
    item = (tl.program_id(1) // heads).to(tl.int64)
    number = tl.program_id(1) % heads
    head = tl.load(chosen + number) * channels
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    q = _rows_of(query + item * query_row + head, row, row < positions, channels, query_stride, WIDE, WIDTH)
    largest = tl.full([ROWS], -float("inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    for first in range(0, keys, COLUMNS):
        column = (first + tl.arange(0, COLUMNS)).to(tl.int64)
        k = _rows_of(key + item * key_row + head, column, column < keys, channels, key_stride, WIDE, WIDTH)
        score = tl.dot(q, tl.trans(k), input_precision="tf32x3") * scale
        score = tl.where((column < keys)[None, :], score, -float("inf"))
        before, largest = largest, tl.maximum(largest, tl.max(score, axis=1))
        total = total * tl.exp(before - largest) + tl.sum(tl.exp(score - largest[:, None]), axis=1)
    tl.store(sums + (item * heads + number) * positions + row, largest + tl.log(total), mask=row < positions)


@triton.jit
def _means(query, key, chosen, tokens, sums, result, heads, positions, wanted, channels, scale, query_row, query_stride,
           key_row, key_stride, WIDE: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr,
           COLUMNS: tl.constexpr):  # fmt: skip
    item = tl.program_id(2).to(tl.int64)
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    token = tl.load(tokens + column, mask=column < wanted, other=0).to(tl.int64)
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    for number in range(heads):
        head = tl.load(chosen + number) * channels
        q = _rows_of(query + item * query_row + head, row, row < positions, channels, query_stride, WIDE, WIDTH)
        k = _rows_of(key + item * key_row + head, token, column < wanted, channels, key_stride, WIDE, WIDTH)
        score = tl.dot(q, tl.trans(k), input_precision="tf32x3") * scale
        log_sum = tl.load(sums + (item * heads + number) * positions + row, mask=row < positions, other=0)
        total += tl.exp(score - log_sum[:, None])
    there = (row < positions)[:, None] & (column < wanted)[None, :]
    target = result + (item * positions + row[:, None]) * wanted + column[None, :]
    tl.store(target, total / heads, mask=there)
