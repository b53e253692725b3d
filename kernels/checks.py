"""Validation of every operation's input, whichever backend runs: a ValueError with one sentence, or nothing."""

from __future__ import annotations

import torch

from . import BASIS_GROUP


def best_match(queries, targets, mutual) -> None:
    """(N, C) and (M, C), M >= 1."""
    if queries.ndim != 2 or targets.ndim != 2 or queries.shape[1] != targets.shape[1]:
        raise ValueError(f"Best match needs (N, C) and (M, C), not {tuple(queries.shape)} and {tuple(targets.shape)}.")
    if not len(targets):
        raise ValueError("Best match needs at least one target.")


def assignment_cost(data, noise) -> None:
    """(N, D) and (P, D)."""
    if data.ndim != 2 or noise.ndim != 2 or data.shape[1] != noise.shape[1]:
        raise ValueError(f"Assignment cost needs (N, D) and (P, D), not {tuple(data.shape)} and {tuple(noise.shape)}.")


def nearest_drawn(data, seeds, k) -> None:
    """(B, D), int64 (B,), and at least one candidate."""
    if data.ndim != 2 or seeds.shape != data.shape[:1] or seeds.dtype != torch.int64:
        raise ValueError(
            f"Nearest noise needs (B, D) and an int64 seed for each row, not {tuple(data.shape)} and "
            f"{seeds.dtype} {tuple(seeds.shape)}."
        )
    if k < 1:
        raise ValueError(f"k is {k}: it counts the noise samples to choose from and is at least 1.")


def flat_weights(coefficients, basis, mean, deviation, basis_scale) -> None:
    """(K,), (K, D), (D,), (D,), and scales with int8 alone."""
    if basis.ndim != 2 or coefficients.shape != basis.shape[:1] or mean.shape != basis.shape[1:]:
        raise ValueError(
            f"A basis {tuple(basis.shape)} needs a coefficient for each row and a mean as long as a row, "
            f"not {tuple(coefficients.shape)} and {tuple(mean.shape)}."
        )
    if deviation.shape != mean.shape:
        raise ValueError(f"The deviation {tuple(deviation.shape)} must be as long as the mean {tuple(mean.shape)}.")
    if (basis.dtype == torch.int8) != (basis_scale is not None):
        raise ValueError("An int8 basis needs its scales, and no other has any.")
    groups = (len(basis), -(-basis.shape[1] // BASIS_GROUP))
    if basis_scale is not None and tuple(basis_scale.shape) != groups:
        raise ValueError(f"An int8 basis {tuple(basis.shape)} needs scales {groups}, not {tuple(basis_scale.shape)}.")


def low_rank_apply(weight, up, down, strength) -> None:
    """(O, I, ...), (O, R, ...), (R, I, ...)."""
    if (
        up.shape[0] != weight.shape[0]
        or up.flatten(1).shape[1] != down.shape[0]
        or weight.shape[1:].numel() != down.shape[1:].numel()
    ):
        raise ValueError(f"Factors {tuple(up.shape)} and {tuple(down.shape)} make no change of {tuple(weight.shape)}.")


def neuron_moments(values) -> None:
    """(prompts, tokens, C) with a prompt and a token."""
    if values.ndim != 3 or not len(values) or not values.shape[1]:
        raise ValueError(f"Neuron moments need (prompts, tokens, neurons) with one or more, not {tuple(values.shape)}.")


def mean_attention(query, key, heads, first) -> None:
    """(rows, positions, heads * d) and (rows, keys, heads * d)."""
    shapes = f"not {tuple(query.shape)} and {tuple(key.shape)} with {heads} heads"
    if query.ndim != 3 or key.ndim != 3 or len(query) != len(key) or query.shape[2] != key.shape[2]:
        raise ValueError(f"Attention needs (rows, positions, C) and (rows, keys, C), {shapes}.")
    if heads < 1 or query.shape[2] % heads or not key.shape[1]:
        raise ValueError(f"Attention needs a key and heads that divide the channels evenly, {shapes}.")
    if first is not None and not 1 <= first <= key.shape[1]:
        raise ValueError(f"There are {key.shape[1]} keys: keep from 1 to all of them, not {first}.")
