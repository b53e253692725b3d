"""Attention probabilities averaged over heads; no head's map exists beyond a tile.

With few keys (a prompt's) one pass: a program takes a tile of positions through all heads, the
softmax over all keys in registers. With many, two: first what every row of every head sums to, then
the mean tile by tile, of wanted keys only.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from . import common

# keys of one tile, and of one of many tiles
FEW = 128
COLUMNS = 64
_LOG2_E = 1.4426950408889634


def launch(target: str, wide: bool, few: bool, masked: bool) -> dict:
    """Tile, precision and warps; ``wide``: whether products are of float32, ``few``: whether all
    keys fit one tile, ``masked``: whether a mask is added. The tiles are the largest of which
    nothing spills from a thread's registers.
    """
    amd = target != common.NVIDIA
    rows = 32 if wide or few else 64
    depth = 32 if wide or amd else 64
    warps = 4 if target == common.CDNA else 8
    if wide and amd:
        rows = 16
    if masked and (target == common.CDNA or (wide and few)):
        rows = 16
        depth = 32
        warps = 8
    return {
        "ROWS": rows,
        "DEPTH": depth,
        "WIDE": wide,
        "PRECISION": common.precision(target),
        "num_warps": warps,
    }


def mean_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    mask: torch.Tensor | None = None,
    scale: float | None = None,
    begin: int = 0,
    count: int | None = None,
) -> torch.Tensor:
    """See ``kernels.mean_attention``."""
    rows, heads, positions, channels = query.shape
    groups = heads // key.shape[1]
    keys = key.shape[2]
    wanted = keys if count is None else count
    few = keys <= FEW
    columns = FEW if few else COLUMNS
    factor = (channels**-0.5 if scale is None else scale) * _LOG2_E
    shape = heads, groups, positions, keys, channels, factor
    strides = *query.stride()[:3], *key.stride()[:3], *_mask_strides(mask)
    masked = mask is not None
    tile = launch(common.target(query), common.wide(query, key), few, masked)
    tile |= {"COLUMNS": columns, "MASKED": masked}
    added = query if mask is None else mask
    down = triton.cdiv(positions, tile["ROWS"])
    result = torch.empty(rows, positions, wanted, device=query.device)
    if few:
        _one_pass[(down, rows)](query, key, added, result, *shape, begin, wanted, *strides, **tile)
        return result
    sums = torch.empty(rows, heads, positions, device=query.device)
    _log_sums[(down, rows * heads)](query, key, added, sums, *shape, *strides, **tile)
    _means[(down, triton.cdiv(wanted, columns), rows)](
        query, key, added, sums, result, *shape, begin, wanted, *strides, **tile
    )
    return result


def _mask_strides(mask: torch.Tensor | None) -> tuple[int, int, int]:
    """From row to row, head to head, and position to position: 0 where one is for all."""
    if mask is None:
        return 0, 0, 0
    row, head, position = (
        0 if size == 1 else stride
        for size, stride in zip(mask.shape[:3], mask.stride()[:3], strict=True)
    )
    return row, head, position


@triton.jit
def _scores(
    query,
    key,
    mask,
    row,
    positions,
    column,
    keys,
    channels,
    scale,
    query_stride,
    key_stride,
    mask_stride,
    MASKED: tl.constexpr,
    WIDE: tl.constexpr,
    PRECISION: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
):
    """Products of rows of one head of the query with columns of the key, times the scale, plus the
    mask in base 2; the lowest finite number where a key is masked or none.

    So a tile without any key adds nothing to the sum of one with keys.
    """
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    query_rows = query + row.to(tl.int64)[:, None] * query_stride
    key_rows = key + column.to(tl.int64)[:, None] * key_stride
    for start in range(0, channels, DEPTH):
        place = start + tl.arange(0, DEPTH)[None, :]
        q = tl.load(
            query_rows + place, mask=(row < positions)[:, None] & (place < channels), other=0
        )
        k = tl.load(key_rows + place, mask=(column < keys)[:, None] & (place < channels), other=0)
        if WIDE:
            q = q.to(tl.float32)
            k = k.to(tl.float32)
        total = tl.dot(q, tl.trans(k), total, input_precision=PRECISION)
    total = total * scale
    inside = (row < positions)[:, None] & (column < keys)[None, :]
    if MASKED:
        places = row.to(tl.int64)[:, None] * mask_stride + column[None, :]
        added = tl.load(mask + places, mask=inside, other=0).to(tl.float32)
        added *= 1.4426950408889634
        total = tl.where(added < -1e38, -1e38, total + added)
    return tl.where((column < keys)[None, :], total, -float("inf"))


@triton.jit
def _one_pass(
    query,
    key,
    mask,
    result,
    heads,
    groups,
    positions,
    keys,
    channels,
    scale,
    begin,
    wanted,
    query_row,
    query_head,
    query_stride,
    key_row,
    key_head,
    key_stride,
    mask_row,
    mask_head,
    mask_stride,
    MASKED: tl.constexpr,
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
    mask += item * mask_row
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    for head in range(heads):
        score = _scores(
            query + head * query_head,
            key + (head // groups) * key_head,
            mask + head * mask_head,
            row=row,
            positions=positions,
            column=column,
            keys=keys,
            channels=channels,
            scale=scale,
            query_stride=query_stride,
            key_stride=key_stride,
            mask_stride=mask_stride,
            MASKED=MASKED,
            WIDE=WIDE,
            PRECISION=PRECISION,
            ROWS=ROWS,
            COLUMNS=COLUMNS,
            DEPTH=DEPTH,
        )
        power = tl.exp2(score - tl.max(score, axis=1)[:, None])
        total += power / tl.sum(power, axis=1)[:, None]
    place = column - begin
    target = result + (item * positions + row.to(tl.int64)[:, None]) * wanted + place[None, :]
    kept = (place >= 0) & (place < wanted)
    tl.store(target, total / heads, mask=(row < positions)[:, None] & kept[None, :])


@triton.jit
def _log_sums(
    query,
    key,
    mask,
    sums,
    heads,
    groups,
    positions,
    keys,
    channels,
    scale,
    query_row,
    query_head,
    query_stride,
    key_row,
    key_head,
    key_stride,
    mask_row,
    mask_head,
    mask_stride,
    MASKED: tl.constexpr,
    WIDE: tl.constexpr,
    PRECISION: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
):
    """The base-2 logarithm of the sum of exponentials over keys, for each position of each head."""
    item = (tl.program_id(1) // heads).to(tl.int64)
    head = tl.program_id(1) % heads
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    query += item * query_row + head * query_head
    key += item * key_row + (head // groups) * key_head
    mask += item * mask_row + head * mask_head
    largest = tl.full([ROWS], -float("inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    for first in range(0, keys, COLUMNS):
        column = first + tl.arange(0, COLUMNS)
        score = _scores(
            query,
            key,
            mask,
            row=row,
            positions=positions,
            column=column,
            keys=keys,
            channels=channels,
            scale=scale,
            query_stride=query_stride,
            key_stride=key_stride,
            mask_stride=mask_stride,
            MASKED=MASKED,
            WIDE=WIDE,
            PRECISION=PRECISION,
            ROWS=ROWS,
            COLUMNS=COLUMNS,
            DEPTH=DEPTH,
        )
        before = largest
        largest = tl.maximum(largest, tl.max(score, axis=1))
        total = total * tl.exp2(before - largest) + tl.sum(
            tl.exp2(score - largest[:, None]), axis=1
        )
    tl.store(
        sums + (item * heads + head) * positions + row,
        largest + tl.log2(total),
        mask=row < positions,
    )


@triton.jit
def _means(
    query,
    key,
    mask,
    sums,
    result,
    heads,
    groups,
    positions,
    keys,
    channels,
    scale,
    begin,
    wanted,
    query_row,
    query_head,
    query_stride,
    key_row,
    key_head,
    key_stride,
    mask_row,
    mask_head,
    mask_stride,
    MASKED: tl.constexpr,
    WIDE: tl.constexpr,
    PRECISION: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
):
    item = tl.program_id(2).to(tl.int64)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    place = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    column = begin + place
    query += item * query_row
    key += item * key_row
    mask += item * mask_row
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    for head in range(heads):
        score = _scores(
            query + head * query_head,
            key + (head // groups) * key_head,
            mask + head * mask_head,
            row=row,
            positions=positions,
            column=column,
            keys=keys,
            channels=channels,
            scale=scale,
            query_stride=query_stride,
            key_stride=key_stride,
            mask_stride=mask_stride,
            MASKED=MASKED,
            WIDE=WIDE,
            PRECISION=PRECISION,
            ROWS=ROWS,
            COLUMNS=COLUMNS,
            DEPTH=DEPTH,
        )
        log_sum = tl.load(
            sums + (item * heads + head) * positions + row, mask=row < positions, other=0
        )
        total += tl.exp2(score - log_sum[:, None])
    target = result + (item * positions + row.to(tl.int64)[:, None]) * wanted + place[None, :]
    tl.store(target, total / heads, mask=(row < positions)[:, None] & (place < wanted)[None, :])
