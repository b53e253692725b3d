"""Attention probabilities averaged over heads; no head's map exists beyond a tile.

With few keys (a prompt's) one pass: a program takes a tile of positions through all heads, the softmax over all keys in
registers. With many, two: first what every row of every head sums to, then the mean tile by tile, of wanted keys only.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from . import common

FEW, COLUMNS = 128, 64  # keys of one tile, and of one of many tiles
_LOG2_E = 1.4426950408889634


def launch(target: str, wide: bool, few: bool) -> dict:
    """Tile, precision and warps; ``wide``: whether products are of float32, ``few``: whether all keys fit one tile."""
    return {
        "ROWS": 32 if wide or few else 64,
        "DEPTH": 32 if wide or target != common.NVIDIA else 64,
        "WIDE": wide,
        "PRECISION": common.precision(target),
        "num_warps": 4 if target == common.CDNA else 8,
    }


def mean_attention(query, key, heads: int, first: int | None = None) -> torch.Tensor:
    """See ``kernels.mean_attention``."""
    (count, positions, width), keys = query.shape, key.shape[1]
    wanted, channels = first or keys, width // heads
    few = keys <= FEW
    columns = FEW if few else COLUMNS
    shape = heads, positions, keys, channels, channels**-0.5 * _LOG2_E
    strides = *query.stride()[:2], *key.stride()[:2]
    tile = launch(common.target(query), common.wide(query, key), few) | {"COLUMNS": columns}
    down = triton.cdiv(positions, tile["ROWS"])
    result = torch.empty(count, positions, wanted, device=query.device)
    if few:
        _one_pass[(down, count)](query, key, result, *shape, wanted, *strides, **tile)
        return result
    sums = torch.empty(count, heads, positions, device=query.device)
    _log_sums[(down, count * heads)](query, key, sums, *shape, *strides, **tile)
    _means[(down, triton.cdiv(wanted, columns), count)](query, key, sums, result, *shape, wanted, *strides, **tile)
    return result


@triton.jit
def _scores(
    query,
    key,
    row,
    positions,
    column,
    keys,
    channels,
    scale,
    query_stride,
    key_stride,
    WIDE: tl.constexpr,
    PRECISION: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
):
    """Products of rows of one head of the query with columns of the key, times the scale."""
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    query_rows = query + row.to(tl.int64)[:, None] * query_stride
    key_rows = key + column.to(tl.int64)[:, None] * key_stride
    for start in range(0, channels, DEPTH):
        place = start + tl.arange(0, DEPTH)[None, :]
        q = tl.load(query_rows + place, mask=(row < positions)[:, None] & (place < channels), other=0)
        k = tl.load(key_rows + place, mask=(column < keys)[:, None] & (place < channels), other=0)
        if WIDE:
            q, k = q.to(tl.float32), k.to(tl.float32)
        total = tl.dot(q, tl.trans(k), total, input_precision=PRECISION)
    return total * scale


@triton.jit
def _one_pass(
    query,
    key,
    result,
    heads,
    positions,
    keys,
    channels,
    scale,
    wanted,
    query_row,
    query_stride,
    key_row,
    key_stride,
    WIDE: tl.constexpr,
    PRECISION: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
):
    item = tl.program_id(1).to(tl.int64)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, COLUMNS)
    query += item * query_row
    key += item * key_row
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    for head in range(heads):
        score = _scores(
            query + head * channels,
            key + head * channels,
            row,
            positions,
            column,
            keys,
            channels,
            scale,
            query_stride,
            key_stride,
            WIDE,
            PRECISION,
            ROWS,
            COLUMNS,
            DEPTH,
        )
        score = tl.where((column < keys)[None, :], score, -float("inf"))
        power = tl.exp2(score - tl.max(score, axis=1)[:, None])
        total += power / tl.sum(power, axis=1)[:, None]
    target = result + (item * positions + row.to(tl.int64)[:, None]) * wanted + column[None, :]
    tl.store(target, total / heads, mask=(row < positions)[:, None] & (column < wanted)[None, :])


@triton.jit
def _log_sums(
    query,
    key,
    sums,
    heads,
    positions,
    keys,
    channels,
    scale,
    query_row,
    query_stride,
    key_row,
    key_stride,
    WIDE: tl.constexpr,
    PRECISION: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
):
    """The base-2 logarithm of the sum of exponentials over keys, for each position of each head."""
    item, head = (tl.program_id(1) // heads).to(tl.int64), tl.program_id(1) % heads
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    query += item * query_row + head * channels
    key += item * key_row + head * channels
    largest = tl.full([ROWS], -float("inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    for first in range(0, keys, COLUMNS):
        column = first + tl.arange(0, COLUMNS)
        score = _scores(
            query,
            key,
            row,
            positions,
            column,
            keys,
            channels,
            scale,
            query_stride,
            key_stride,
            WIDE,
            PRECISION,
            ROWS,
            COLUMNS,
            DEPTH,
        )
        score = tl.where((column < keys)[None, :], score, -float("inf"))
        before, largest = largest, tl.maximum(largest, tl.max(score, axis=1))
        total = total * tl.exp2(before - largest) + tl.sum(tl.exp2(score - largest[:, None]), axis=1)
    tl.store(sums + (item * heads + head) * positions + row, largest + tl.log2(total), mask=row < positions)


@triton.jit
def _means(
    query,
    key,
    sums,
    result,
    heads,
    positions,
    keys,
    channels,
    scale,
    wanted,
    query_row,
    query_stride,
    key_row,
    key_stride,
    WIDE: tl.constexpr,
    PRECISION: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
):
    item = tl.program_id(2).to(tl.int64)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    query += item * query_row
    key += item * key_row
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    for head in range(heads):
        score = _scores(
            query + head * channels,
            key + head * channels,
            row,
            positions,
            column,
            keys,
            channels,
            scale,
            query_stride,
            key_stride,
            WIDE,
            PRECISION,
            ROWS,
            COLUMNS,
            DEPTH,
        )
        log_sum = tl.load(sums + (item * heads + head) * positions + row, mask=row < positions, other=0)
        total += tl.exp2(score - log_sum[:, None])
    target = result + (item * positions + row.to(tl.int64)[:, None]) * wanted + column[None, :]
    tl.store(target, total / heads, mask=(row < positions)[:, None] & (column < wanted)[None, :])
