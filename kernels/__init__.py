"""The few operations where speed decides. Callers never ask which backend runs."""

from __future__ import annotations

#: Numbers of a row of an int8 basis that share one scale.
BASIS_GROUP = 1024


def best_match(queries, targets, mutual: bool = False):
    """For each query the most similar target by cosine, without the matrix of all similarities.

    ``queries`` (N, C) and ``targets`` (M, C), any float type, on one device; products accumulate in float32. Returns
    similarity float32 (N,) and index int64 (N,), ties to the lower index. With ``mutual`` also a bool (N,): whether the
    query is in turn its target's best query. A zero vector has similarity 0 with everything. Raises ValueError when
    there is no target or the widths differ.
    """
    from .eager.best_match import best_match

    return best_match(queries, targets, mutual)


def assignment_cost(data, noise):
    """Cost of giving row j of ``noise`` (P, D) to row i of ``data`` (N, D): -<x_i, z_j> less row and column means.

    Any float type, on one device; the result is float32 (N, P) from float32 accumulation. Half the squared distance
    differs from it by terms that no assignment changes. NaN and infinity spread. Raises ValueError when widths differ.
    """
    from .eager.assignment_cost import assignment_cost

    return assignment_cost(data, noise)


def pair_moments(data, noise):
    """<x, z>, <x, x> and <z, z> of each row of ``data`` and ``noise`` (B, D), float32 (B,) from any float type.

    Raises ValueError when the shapes differ. NaN and infinity stay in their row.
    """
    from .eager.nearest_noise import pair_moments

    return pair_moments(data, noise)


def blend(data, noise, along, scale):
    """scale * z + along * x for each row of ``data`` and ``noise`` (B, D) with its own numbers (B,); float32 (B, D).

    Raises ValueError when the shapes differ.
    """
    from .eager.nearest_noise import blend

    return blend(data, noise, along, scale)


def flat_weights(coefficients, basis, mean, deviation, basis_scale=None):
    """The flat vector of a point in a weight space: mean + deviation * (coefficients @ basis); float32 (D,).

    ``coefficients`` (K,), ``basis`` (K, D) of any float type, or int8 with ``basis_scale`` (K, ceil(D / BASIS_GROUP))
    for each BASIS_GROUP numbers of a row, ``mean`` and ``deviation`` (D,), on one device. Accumulates in float32; rows
    whose coefficient is 0 are not read. weights2weights (arXiv 2406.09413), section 3.1. Raises ValueError when shapes
    do not fit.
    """
    from .eager.low_rank import flat_weights

    return flat_weights(coefficients, basis, mean, deviation, basis_scale)


def low_rank_apply(weight, up, down, strength: float):
    """weight + strength * up @ down in the weight's shape and dtype, accumulated in float32; a new tensor.

    ``weight`` (O, I, ...), ``up`` (O, R, ...), ``down`` (R, I, ...), brought to the weight's device. NaN and infinity
    spread along their row. Raises ValueError when shapes do not fit.
    """
    from .eager.low_rank import low_rank_apply

    return low_rank_apply(weight, up, down, strength)


def neuron_moments(values):
    """Mean, sum of squared deviations, smallest and largest activation of each neuron over prompts: float64 (4, C).

    ``values`` (prompts, tokens, C), any float type: outputs of a value layer. An activation is the mean over all tokens
    of the absolute value, taken in float32. Raises ValueError when there is no prompt or no token.
    """
    from .eager.neuron_moments import neuron_moments

    return neuron_moments(values)
