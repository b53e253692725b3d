"""Attention probabilities averaged over heads, all heads of some positions at a time: whole maps would not fit."""

from __future__ import annotations

import torch

from . import block_bytes

#: Bytes of the probabilities that exist at a time on a CPU.
BLOCK = 1 << 20


def mean_attention(query, key, heads: int, first: int | None = None) -> torch.Tensor:
    """See ``kernels.mean_attention``."""
    (rows, positions, width), keys = query.shape, key.shape[1]
    channels, wanted = width // heads, first or keys
    key = (key.float() * channels**-0.5).view(rows, keys, heads, channels).permute(0, 2, 3, 1).contiguous()
    query = query.unflatten(2, (heads, channels)).transpose(1, 2)
    result = query.new_empty(rows, positions, wanted, dtype=torch.float32)
    size = max(block_bytes(query.device, BLOCK) // (4 * heads * keys), 1)  # positions of any rows
    height, parts = max(size // max(positions, 1), 1), max(-(-positions // size), 1)
    length = max(-(-positions // parts), 1)  # parts of equal length
    for row in range(0, rows, height):
        some = slice(row, row + height)
        for start in range(0, positions, length):
            part = slice(start, start + length)
            scores = query[some, :, part].float() @ key[some]
            result[some, part] = scores.softmax(dim=-1)[..., :wanted].mean(dim=1)
    return result
