"""Random input for every operation of kernels/, by its size and type."""

from __future__ import annotations

import torch

#: A size of each operation.
SIZES = {
    "nearest_drawn": (3, 9, 2),
    "assignment_cost": (70, 70, 5),
    "best_match": (130, 5, 4),
    "flat_weights": (70, 8),
    "low_rank_apply": (70, 6, 2),
    "neuron_moments": (2, 3, 70),
    "mean_attention": (1, 70, 5, 2, 8),
}


def of(operation: str, dtype: torch.dtype = torch.float32) -> dict:
    """Input of an operation's size in SIZES."""
    return globals()[operation](dtype, *SIZES[operation])


def gaussian(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def nearest_drawn(dtype, rows, size, k):
    return {
        "data": gaussian(rows, size, dtype=dtype),
        "seeds": torch.arange(rows) * 2**40 - 7,
        "k": k,
    }


def assignment_cost(dtype, rows, columns, size):
    return {
        "data": gaussian(rows, size, dtype=dtype),
        "noise": gaussian(columns, size, seed=1, dtype=dtype),
    }


def best_match(dtype, rows, columns, size, mutual=True):
    queries, targets = (
        gaussian(rows, size, dtype=dtype),
        gaussian(columns, size, seed=1, dtype=dtype),
    )
    return {"queries": queries, "targets": targets, "mutual": mutual}


def flat_weights(dtype, rows, size):
    numbers, scale = gaussian(rows, size, seed=1), None
    if dtype == torch.int8:
        scale = gaussian(rows, -(-size // 1024), seed=4).abs()
        numbers = numbers.clamp(-3, 3) * 42
    return {
        "coefficients": gaussian(rows),
        "basis": numbers.to(dtype),
        "mean": gaussian(size, seed=2),
        "deviation": gaussian(size, seed=3),
        "basis_scale": scale,
    }


def low_rank_apply(dtype, rows, columns, rank, factors=None):
    """Factors in float32 unless the weight is: kernels leave one type to PyTorch."""
    factors = factors or (torch.bfloat16 if dtype == torch.float32 else torch.float32)
    return {
        "weight": gaussian(rows, columns, dtype=dtype),
        "up": gaussian(rows, rank, seed=1, dtype=factors),
        "down": gaussian(rank, columns, seed=2, dtype=factors),
        "strength": 0.7,
    }


def neuron_moments(dtype, prompts, tokens, neurons):
    return {"values": gaussian(prompts, tokens, neurons, dtype=dtype)}


def mean_attention(
    dtype, rows, positions, keys, heads, channels, count=None, begin=0, groups=1, mask=None
):
    """As views of what projections give; ``mask``: its shape but the keys, a fourth of them
    masked.
    """
    query, key = (
        gaussian(rows, n, many * channels, seed=n, dtype=dtype)
        .unflatten(2, (many, channels))
        .transpose(1, 2)
        for n, many in ((positions, heads), (keys, heads // groups))
    )
    added = None
    if mask is not None:
        added = gaussian(*mask, keys, seed=5)
        added[gaussian(*mask, keys, seed=6) > 0.7] = -torch.inf
        added[..., begin] = 0.5  # of every position one key at least
        added = added.to(dtype)
    return {
        "query": query,
        "key": key,
        "mask": added,
        "scale": 0.2 if groups > 1 else None,
        "begin": begin,
        "count": count,
    }
