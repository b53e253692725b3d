"""What every operation demands of its input, whichever backend runs: a ValueError with one sentence, or nothing."""

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


def least_assignment(cost, gap) -> None:
    """(N, N) or (P, N, N), finite."""
    if cost.ndim not in (2, 3) or cost.shape[-1] != cost.shape[-2]:
        raise ValueError(f"An assignment needs a cost (N, N) or (P, N, N), not {tuple(cost.shape)}.")
    if not cost.isfinite().all():
        raise ValueError("The cost of an assignment holds NaN or infinity.")
    if not gap >= 0:
        raise ValueError(f"The gap is {gap}: it says how far a total may lie above the least, and is 0 or more.")


def pair_moments(data, noise) -> None:
    """(B, D) twice."""
    if data.ndim != 2 or data.shape != noise.shape:
        raise ValueError(f"Data and noise must both be (B, D), not {tuple(data.shape)} and {tuple(noise.shape)}.")


def blend(data, noise, along, scale) -> None:
    """(B, D) twice and (B,) twice."""
    pair_moments(data, noise)
    if along.shape != data.shape[:1] or scale.shape != data.shape[:1]:
        raise ValueError(f"Each of {len(data)} rows needs its own two numbers, not {tuple(along.shape)} and "
                         f"{tuple(scale.shape)}.")  # fmt: skip


def nearest_drawn(data, seeds, k) -> None:
    """(B, D), int64 (B,), and at least one candidate."""
    if data.ndim != 2 or seeds.shape != data.shape[:1] or seeds.dtype != torch.int64:
        raise ValueError(f"Nearest noise needs (B, D) and an int64 seed for each row, not {tuple(data.shape)} and "
                         f"{seeds.dtype} {tuple(seeds.shape)}.")  # fmt: skip
    if k < 1:
        raise ValueError(f"k is {k}: it counts the noises to choose from and is at least 1.")


def flat_weights(coefficients, basis, mean, deviation, basis_scale) -> None:
    """(K,), (K, D), (D,), (D,), and scales with int8 alone."""
    if basis.ndim != 2 or coefficients.shape != basis.shape[:1] or mean.shape != basis.shape[1:]:
        raise ValueError(f"A basis {tuple(basis.shape)} needs a coefficient for each row and a mean as long as a row, "
                         f"not {tuple(coefficients.shape)} and {tuple(mean.shape)}.")  # fmt: skip
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


def apply_point(weights, places, coefficients, basis, mean, deviation, strength, basis_scale) -> None:
    """A place inside the vector for each weight."""
    flat_weights(coefficients, basis, mean, deviation, basis_scale)
    if len(weights) != len(places):
        raise ValueError(f"Each weight needs its place: there are {len(weights)} weights and {len(places)} places.")
    for weight, (offset, rank) in zip(weights, places, strict=True):
        if weight.ndim < 2 or not weight.numel():
            raise ValueError(f"A weight must be (O, I, ...) and not empty, not {tuple(weight.shape)}.")
        end = offset + rank * (len(weight) + weight.numel() // len(weight))
        if offset < 0 or rank < 1 or end > len(mean):
            raise ValueError(f"Factors of rank {rank} at {offset} for {tuple(weight.shape)} do not lie in a vector of "
                             f"{len(mean)} numbers.")  # fmt: skip


def neuron_moments(values) -> None:
    """(prompts, tokens, C) with a prompt and a token."""
    if values.ndim != 3 or not len(values) or not values.shape[1]:
        raise ValueError(f"Neuron moments need (prompts, tokens, neurons) with one or more, not {tuple(values.shape)}.")


def mean_attention(query, key, heads, chosen, tokens) -> None:
    """(rows, positions, heads * d) and (rows, keys, heads * d); indices inside."""
    shapes = f"not {tuple(query.shape)} and {tuple(key.shape)} with {heads} heads"
    if query.ndim != 3 or key.ndim != 3 or len(query) != len(key) or query.shape[2] != key.shape[2]:
        raise ValueError(f"Attention needs (rows, positions, C) and (rows, keys, C), {shapes}.")
    if heads < 1 or query.shape[2] % heads or not key.shape[1]:
        raise ValueError(f"Attention needs a key and heads that share the channels evenly, {shapes}.")
    for name, indices, count in (("head", chosen, heads), ("token", tokens, key.shape[1])):
        if indices is not None and (not len(indices) or min(indices) < 0 or max(indices) >= count):
            raise ValueError(f"There are {count} {name}s: choose at least one, from 0 to {count - 1}, "
                             f"not {list(indices)}.")  # fmt: skip
