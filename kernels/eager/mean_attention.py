"""Attention probabilities averaged over heads, made one row and head at a time: whole maps would not fit."""

from __future__ import annotations

import torch


def mean_attention(query, key, heads: int, chosen=None, tokens=None) -> torch.Tensor:
    """See ``kernels.mean_attention``."""
    chosen = range(heads) if chosen is None else chosen
    query, key = (tensor.unflatten(2, (heads, -1)).transpose(1, 2) for tensor in (query, key))
    wanted = slice(None) if tokens is None else torch.as_tensor(tokens, device=query.device)
    size = key.shape[2] if tokens is None else len(tokens)
    result = torch.zeros(query.shape[0], query.shape[2], size, device=query.device)
    for row in range(query.shape[0]):
        for head in chosen:
            result[row] += _probabilities(query[row, head], key[row, head])[:, wanted]
    return result / len(chosen)


def _probabilities(query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    return (query.float() @ key.float().T * query.shape[-1] ** -0.5).softmax(-1)
