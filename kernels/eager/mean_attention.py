"""Attention probabilities averaged over heads, some heads of some positions at a time: whole maps
would not fit.
"""

from __future__ import annotations

import functools

import torch

from . import block_bytes

#: Bytes of the probabilities that exist at a time on a CPU.
BLOCK = 1 << 20
#: Positions for which the keys of a head are read once, at least: with fewer, reading them takes
#: longer than multiplying them.
POSITIONS = 64


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
    shared, keys = key.shape[1:3]
    end = keys if count is None else begin + count
    factor = channels**-0.5 if scale is None else scale
    key = (key.float() * factor).transpose(2, 3).contiguous()[:, :, None]
    query = query.unflatten(1, (shared, -1))  # (rows, heads of keys, queries of each, positions, d)
    queries_each = query.shape[2]
    result = query.new_empty(rows, positions, end - begin, dtype=torch.float32)
    lines = max(block_bytes(query.device, BLOCK) // (4 * keys), 1)  # positions of one head
    together = min(max(lines // (POSITIONS * queries_each), 1), shared)  # heads of keys
    size = max(lines // (together * queries_each), 1)  # positions of any rows
    height = max(size // max(positions, 1), 1)
    parts = max(-(-positions // size), 1)
    length = max(-(-positions // parts), 1)  # parts of equal length
    for row in range(0, rows, height):
        some = slice(row, row + height)
        for start in range(0, positions, length):
            part = slice(start, start + length)
            sums = (
                _sum_over_heads(
                    query[some, head : head + together, :, part],
                    key[some, head : head + together],
                    None if mask is None else _of(mask, some, head * queries_each, part),
                    slice(begin, end),
                )
                for head in range(0, shared, together)
            )
            torch.mul(functools.reduce(torch.add, sums), 1 / heads, out=result[some, part])
    return result


def _sum_over_heads(
    query: torch.Tensor, key: torch.Tensor, mask: torch.Tensor | None, read: slice
) -> torch.Tensor:
    """Of some heads; ``read``: the keys whose probabilities are returned."""
    scores = (query.float() @ key).flatten(1, 2)
    if mask is not None:
        scores = scores + mask[:, : scores.shape[1]]
    return scores.softmax(dim=-1)[..., read].sum(dim=1)


def _of(mask: torch.Tensor, rows: slice, head: int, positions: slice) -> torch.Tensor:
    """A mask's part for some rows and positions, from a head on; each may be one for all."""
    if len(mask) > 1:
        mask = mask[rows]
    if mask.shape[1] > 1:
        mask = mask[:, head:]
    return (mask[:, :, positions] if mask.shape[2] > 1 else mask).float()
