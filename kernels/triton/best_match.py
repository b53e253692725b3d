"""Best match by cosine similarity, both ways in one pass over tiles of the similarity matrix.

A similarity and its index make one 64-bit number that orders by similarity and then by the lower index. The largest of
such numbers is the same in whatever order they come, so atomic maxima stay deterministic.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from . import common

ROWS, COLUMNS, DEPTH = 64, 64, 64
_LEAST = -(2**63)
_LOW = 0xFFFFFFFF


def best_match(queries: torch.Tensor, targets: torch.Tensor, mutual: bool = False):
    """See ``kernels.best_match``."""
    rows, columns = len(queries), len(targets)
    best_target = torch.full((rows,), _LEAST, device=queries.device)
    best_query = torch.full((columns if mutual else 1,), _LEAST, device=queries.device)
    down, across = triton.cdiv(rows, ROWS), triton.cdiv(columns, COLUMNS)
    length, count = common.pieces(across, 1, down, common.PROGRAMS)
    _best[(down, count)](
        queries, targets, _inverse_norm(queries), _inverse_norm(targets), best_target, best_query,
        rows, columns, queries.shape[1], queries.stride(0), targets.stride(0), length,
        common.wide(queries, targets), mutual, ROWS, COLUMNS, DEPTH,
    )  # fmt: skip
    similarity, index = _parts(best_target)
    if not mutual:
        return similarity, index
    return similarity, index, _parts(best_query)[1][index] == torch.arange(rows, device=queries.device)


def _inverse_norm(vectors: torch.Tensor) -> torch.Tensor:
    return torch.linalg.vector_norm(vectors, dim=1, dtype=torch.float32).clamp_min(1e-12).reciprocal()


def _parts(keys: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Similarity and index of packed numbers."""
    order = (keys >> 32).to(torch.int32)
    bits = torch.where(order >= 0, order, order ^ 0x7FFFFFFF)
    return bits.view(torch.float32), _LOW - (keys & _LOW)


@triton.jit
def _best(queries, targets, query_norms, target_norms, best_target, best_query, rows, columns, size, query_stride,
          target_stride, length, WIDE: tl.constexpr, MUTUAL: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
          DEPTH: tl.constexpr):  # fmt: skip
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    row_norm = tl.load(query_norms + row, mask=row < rows, other=0)
    best = tl.full([ROWS], -(2**63), tl.int64)
    first = tl.program_id(1) * length
    for tile in range(first, tl.minimum(first + length, tl.cdiv(columns, COLUMNS))):
        column = (tile * COLUMNS + tl.arange(0, COLUMNS)).to(tl.int64)
        total = tl.zeros([ROWS, COLUMNS], tl.float32)
        for start in range(0, size, DEPTH):
            place = start + tl.arange(0, DEPTH)
            x = tl.load(queries + row[:, None] * query_stride + place[None, :],
                        mask=(row < rows)[:, None] & (place < size)[None, :], other=0)  # fmt: skip
            y = tl.load(targets + column[None, :] * target_stride + place[:, None],
                        mask=(column < columns)[None, :] & (place < size)[:, None], other=0)  # fmt: skip
            if WIDE:
                x, y = x.to(tl.float32), y.to(tl.float32)
            total = tl.dot(x, y, total, input_precision="tf32x3")
        column_norm = tl.load(target_norms + column, mask=column < columns, other=0)
        order = _ordered(total * row_norm[:, None] * column_norm[None, :]) << 32
        there = (row < rows)[:, None] & (column < columns)[None, :]
        key = tl.where(there, order | (0xFFFFFFFF - column)[None, :], -(2**63))
        best = tl.maximum(best, tl.max(key, axis=1))
        if MUTUAL:
            key = tl.where(there, order | (0xFFFFFFFF - row)[:, None], -(2**63))
            tl.atomic_max(best_query + column, tl.max(key, axis=0), mask=column < columns)
    tl.atomic_max(best_target + row, best, mask=row < rows)


@triton.jit
def _ordered(value):
    """Integers in the order of float32 numbers, with both zeros equal and NaN above all."""
    bits = tl.where(value == 0, 0.0, value).to(tl.int32, bitcast=True)
    order = tl.where(bits >= 0, bits, bits ^ 0x7FFFFFFF)
    return tl.where(value != value, 0x7FC00000, order).to(tl.int64)
