"""Random input for every operation of kernels/, by its size and type."""

from __future__ import annotations

import torch

#: A size that every operation takes; of others than these (20, 9).
SIZES = {"nearest_drawn": (3, 9, 2), "assignment_cost": (70, 70, 5), "least_assignment": (20,),
         "best_match": (130, 5, 4), "flat_weights": (70, 8), "apply_point": (70, *[3] * 20),
         "low_rank_apply": (70, 6, 2), "neuron_moments": (2, 3, 70), "mean_attention": (1, 70, 5, 2, 8)}  # fmt: skip


def of(operation: str, dtype: torch.dtype = torch.float32) -> dict:
    """Input of an operation's size in SIZES."""
    return globals()[operation](dtype, *SIZES.get(operation, (20, 9)))


def gaussian(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def pair_moments(dtype, rows, size):
    return {"data": gaussian(rows, size, dtype=dtype), "noise": gaussian(rows, size, seed=1)}


def blend(dtype, rows, size):
    return pair_moments(dtype, rows, size) | {"along": gaussian(rows, seed=2), "scale": gaussian(rows, seed=3).double()}


def nearest_drawn(dtype, rows, size, k):
    return {"data": gaussian(rows, size, dtype=dtype), "seeds": torch.arange(rows) * 2**40 - 7, "k": k}


def assignment_cost(dtype, rows, columns, size):
    return {"data": gaussian(rows, size, dtype=dtype), "noise": gaussian(columns, size, seed=1, dtype=dtype)}


def least_assignment(dtype, *shape, gap=0.0):
    return {"cost": gaussian(*shape, shape[-1], dtype=dtype), "gap": gap}


def best_match(dtype, rows, columns, size, mutual=True):
    queries, targets = gaussian(rows, size, dtype=dtype), gaussian(columns, size, seed=1, dtype=dtype)
    return {"queries": queries, "targets": targets, "mutual": mutual}


def flat_weights(dtype, rows, size):
    numbers, scale = gaussian(rows, size, seed=1), None
    if dtype == torch.int8:
        scale = gaussian(rows, -(-size // 1024), seed=4).abs()
        numbers = numbers.clamp(-3, 3) * 42
    return {"coefficients": gaussian(rows), "basis": numbers.to(dtype), "mean": gaussian(size, seed=2),
            "deviation": gaussian(size, seed=3), "basis_scale": scale}  # fmt: skip


def apply_point(dtype, rows, *sizes, rank=2):
    """Weights of the given numbers of rows and columns in turn, with two numbers that are no one's between them."""
    weights, places, offset = [], [], 2
    number = torch.float32 if dtype == torch.int8 else dtype
    for seed, shape in enumerate(zip(sizes[::2], sizes[1::2], strict=True)):
        weights.append(gaussian(*shape, seed=10 + seed, dtype=number))
        places.append((offset, rank))
        offset += rank * sum(shape) + 2
    return {"weights": weights, "places": places, **flat_weights(dtype, rows, offset), "strength": 0.7}


def low_rank_apply(dtype, rows, columns, rank):
    return {"weight": gaussian(rows, columns, dtype=dtype), "up": gaussian(rows, rank, seed=1, dtype=dtype),
            "down": gaussian(rank, columns, seed=2, dtype=dtype), "strength": 0.7}  # fmt: skip


def neuron_moments(dtype, prompts, tokens, neurons):
    return {"values": gaussian(prompts, tokens, neurons, dtype=dtype)}


def mean_attention(dtype, rows, positions, keys, heads, channels, chosen=None, tokens=None):
    return {"query": gaussian(rows, positions, heads * channels, dtype=dtype),
            "key": gaussian(rows, keys, heads * channels, seed=1, dtype=dtype), "heads": heads, "chosen": chosen,
            "tokens": tokens}  # fmt: skip
