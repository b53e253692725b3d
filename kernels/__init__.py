"""The few operations where speed decides. Callers never ask which backend runs."""

from __future__ import annotations


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
