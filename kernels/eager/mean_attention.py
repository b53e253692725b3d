"""Attention probabilities averaged over heads, all heads of some positions at a time: whole maps
would not fit.
"""

from __future__ import annotations

import torch

from . import block_bytes

#: Bytes of the probabilities that exist at a time on a CPU.
BLOCK = 1 << 20


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
    key = (key.float() * factor).transpose(2, 3).contiguous()
    if shared < heads:  # by views: (rows, heads of keys, queries of each, positions, d)
        query = query.unflatten(1, (shared, -1))
        key = key[:, :, None]
    result = query.new_empty(rows, positions, end - begin, dtype=torch.float32)
    size = max(block_bytes(query.device, BLOCK) // (4 * heads * keys), 1)  # positions of any rows
    height = max(size // max(positions, 1), 1)
    parts = max(-(-positions // size), 1)
    length = max(-(-positions // parts), 1)  # parts of equal length
    for row in range(0, rows, height):
        some = slice(row, row + height)
        for start in range(0, positions, length):
            part = slice(start, start + length)
            scores = query[some, ..., part, :].float() @ key[some]
            if shared < heads:
                scores = scores.flatten(1, 2)
            if mask is not None:
                scores = scores + _of(mask, some, part)
            result[some, part] = scores.softmax(dim=-1)[..., begin:end].mean(dim=1)
    return result


def _of(mask: torch.Tensor, rows: slice, positions: slice) -> torch.Tensor:
    """A mask's part for some rows and positions, which may be one for all."""
    if len(mask) > 1:
        mask = mask[rows]
    return (mask[:, :, positions] if mask.shape[2] > 1 else mask).float()
