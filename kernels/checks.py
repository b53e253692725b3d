"""Validation of every operation's input, whichever backend runs: a ValueError with one sentence, or
nothing.
"""

from __future__ import annotations

import torch

from . import BASIS_GROUP


def best_match(queries: torch.Tensor, targets: torch.Tensor, mutual: bool) -> None:
    """(N, C) and (M, C), M >= 1."""
    if queries.ndim != 2 or targets.ndim != 2 or queries.shape[1] != targets.shape[1]:
        raise ValueError(
            f"Best match needs (N, C) and (M, C), not {tuple(queries.shape)} and "
            f"{tuple(targets.shape)}."
        )
    if not len(targets):
        raise ValueError("Best match needs at least one target.")


def assignment_cost(data: torch.Tensor, noise: torch.Tensor) -> None:
    """(N, D) and (P, D)."""
    if data.ndim != 2 or noise.ndim != 2 or data.shape[1] != noise.shape[1]:
        raise ValueError(
            f"Assignment cost needs (N, D) and (P, D), not {tuple(data.shape)} and "
            f"{tuple(noise.shape)}."
        )


def nearest_drawn(data: torch.Tensor, seeds: torch.Tensor, k: int) -> None:
    """(B, D), int64 (B,), and at least one candidate."""
    if data.ndim != 2 or seeds.shape != data.shape[:1] or seeds.dtype != torch.int64:
        raise ValueError(
            f"Nearest noise needs (B, D) and an int64 seed for each row, not {tuple(data.shape)} "
            f"and {seeds.dtype} {tuple(seeds.shape)}."
        )
    if k < 1:
        raise ValueError(f"k is {k}: it counts the noise samples to choose from and is at least 1.")


def flat_weights(
    coefficients: torch.Tensor,
    basis: torch.Tensor,
    mean: torch.Tensor,
    deviation: torch.Tensor,
    basis_scale: torch.Tensor | None,
) -> None:
    """(K,) or (N, K), (K, D), (D,) or (N, D), (D,), and scales with int8 alone."""
    count = coefficients.shape[:-1]
    fits = (
        basis.ndim == 2
        and coefficients.ndim in (1, 2)
        and coefficients.shape[-1:] == basis.shape[:1]
        and mean.shape in (basis.shape[1:], count + basis.shape[1:])
    )
    if not fits:
        raise ValueError(
            f"A basis {tuple(basis.shape)} needs a coefficient for each row and a mean as long as "
            f"a row, not {tuple(coefficients.shape)} and {tuple(mean.shape)}."
        )
    if deviation.shape != basis.shape[1:]:
        raise ValueError(
            f"The deviation {tuple(deviation.shape)} must be as long as the mean "
            f"{tuple(basis.shape[1:])}."
        )
    if (basis.dtype == torch.int8) != (basis_scale is not None):
        raise ValueError("An int8 basis needs its scales, and no other has any.")
    groups = (len(basis), -(-basis.shape[1] // BASIS_GROUP))
    if basis_scale is not None and tuple(basis_scale.shape) != groups:
        raise ValueError(
            f"An int8 basis {tuple(basis.shape)} needs scales {groups}, not "
            f"{tuple(basis_scale.shape)}."
        )


def low_rank_apply(
    weight: torch.Tensor, up: torch.Tensor, down: torch.Tensor, strength: float
) -> None:
    """(O, I, ...), (O, R, ...), (R, I, ...)."""
    if (
        up.shape[0] != weight.shape[0]
        or up.flatten(1).shape[1] != down.shape[0]
        or weight.shape[1:].numel() != down.shape[1:].numel()
    ):
        raise ValueError(
            f"Factors {tuple(up.shape)} and {tuple(down.shape)} make no change of "
            f"{tuple(weight.shape)}."
        )


def neuron_moments(values: torch.Tensor) -> None:
    """(prompts, tokens, C) with a prompt and a token."""
    if values.ndim != 3 or not len(values) or not values.shape[1]:
        raise ValueError(
            "Neuron moments need (prompts, tokens, neurons) with one or more, not "
            f"{tuple(values.shape)}."
        )


def mean_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    mask: torch.Tensor | None,
    scale: float | None,
    begin: int,
    count: int | None,
) -> None:
    """(rows, heads, positions, d) and (rows, heads or a fraction, keys, d)."""
    shapes = f"not {tuple(query.shape)} and {tuple(key.shape)}"
    fits = query.ndim == key.ndim == 4 and len(query) == len(key)
    if not fits or query.shape[3] != key.shape[3]:
        raise ValueError(
            f"Attention needs (rows, heads, positions, d) and (rows, heads, keys, d), {shapes}."
        )
    if not key.shape[1] or query.shape[1] % key.shape[1] or not key.shape[2]:
        raise ValueError(
            f"Attention needs a key and heads of keys that divide those of queries, {shapes}."
        )
    keys = key.shape[2]
    end = keys if count is None else begin + count
    if begin < 0 or not begin < end <= keys:
        raise ValueError(
            f"There are {keys} keys: return from 1 to all of them, not {count} from {begin} on."
        )
    whole = (*query.shape[:3], keys)
    if mask is not None and (
        mask.ndim != 4
        or mask.shape[3] != keys
        or any(size not in (1, full) for size, full in zip(mask.shape, whole, strict=True))
    ):
        raise ValueError(f"A mask of {tuple(mask.shape)} does not fit attention of {whole}.")
