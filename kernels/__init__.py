"""The few operations where speed decides. Callers never ask which backend runs.

Eager PyTorch is the reference. A Triton kernel runs where it has just proved itself on the very GPU: right against
eager, and faster. GLASSBOX_KERNELS=eager or =triton settles it instead; see ``use``.
"""

from __future__ import annotations

#: Numbers of a row of an int8 basis that share one scale.
BASIS_GROUP = 1024


def use(backend: str | None) -> str | None:
    """Force the backend of all operations in this process: "eager", "triton", or "auto" as without it.

    It outranks the environment variable GLASSBOX_KERNELS; None hands back to that. Returns what was set before.
    "triton" still leaves to eager what a kernel does not take. Raises ValueError for another name.
    """
    from .dispatch import use

    return use(backend)


def _run(operation: str, **arguments):
    from .dispatch import call

    return call(operation, **arguments)


def best_match(queries, targets, mutual: bool = False):
    """For each query the most similar target by cosine, without the matrix of all similarities.

    ``queries`` (N, C) and ``targets`` (M, C), any float type, on one device; products accumulate in float32. Returns
    similarity float32 (N,) and index int64 (N,), ties to the lower index. With ``mutual`` also a bool (N,): whether the
    query is in turn its target's best query. A zero vector has similarity 0 with everything; a target with NaN is the
    best match of all, and ``mutual`` then says nothing. Raises ValueError when there is no target or the widths differ.
    """
    return _run("best_match", queries=queries, targets=targets, mutual=mutual)


def assignment_cost(data, noise):
    """Cost of giving row j of ``noise`` (P, D) to row i of ``data`` (N, D): -<x_i, z_j> less row and column means.

    Any float type, on one device; the result is float32 (N, P) from float32 accumulation, the same at every call. Half
    the squared distance differs from it by terms that no assignment changes. NaN and infinity spread, as NaN. Raises
    ValueError when widths differ.
    """
    return _run("assignment_cost", data=data, noise=noise)


def least_assignment(cost, gap: float = 0.0):
    """The assignment of least total cost: the column of each row, int64 (..., N), and the total, float64 (...).

    ``cost`` (N, N) or (P, N, N), any float type, for one or P problems. ``gap``: how much a total may exceed the least,
    certified by a solution of the dual problem; 0 asks for the least, to the rounding of float64, and so does any gap
    below 1 for whole numbers. Of several that are the least any may come. Raises ValueError for a cost that is not
    square or not finite, and for a negative gap.
    """
    return _run("least_assignment", cost=cost, gap=gap)


def pair_moments(data, noise):
    """<x, z>, <x, x> and <z, z> of each row of ``data`` and ``noise`` (B, D), float32 (B,) from any float type.

    Raises ValueError when the shapes differ. NaN and infinity stay in their row.
    """
    return _run("pair_moments", data=data, noise=noise)


def blend(data, noise, along, scale):
    """scale * z + along * x for each row of ``data`` and ``noise`` (B, D) with its own numbers (B,); float32 (B, D).

    Raises ValueError when the shapes differ. NaN and infinity stay in their place.
    """
    return _run("blend", data=data, noise=noise, along=along, scale=scale)


def nearest_drawn(data, seeds, k: int):
    """Of ``k`` Gaussian noises drawn for each row of ``data`` (B, D) the nearest: float32 (B, D), and its number (B,).

    The candidates are Philox-4x32-10 numbers (Salmon et al. 2011) of the row's ``seeds`` int64 (B,) through Box-Muller:
    the same on every device to float32 rounding, whatever the other rows. Improved Immiscible Diffusion (arXiv
    2505.18521), "KNN", with distances in float32 and not rounded to half; ties to the lower index. NaN in a row takes
    candidate 0. Raises ValueError for shapes that do not fit and k below 1.
    """
    return _run("nearest_drawn", data=data, seeds=seeds, k=k)


def flat_weights(coefficients, basis, mean, deviation, basis_scale=None):
    """The flat vector of a point in a weight space: mean + deviation * (coefficients @ basis); float32 (D,).

    ``coefficients`` (K,), ``basis`` (K, D) of any float type, or int8 with ``basis_scale`` (K, ceil(D / BASIS_GROUP))
    for each BASIS_GROUP numbers of a row, ``mean`` and ``deviation`` (D,), on one device. Accumulates in float32; rows
    whose coefficient is 0 are not read. weights2weights (arXiv 2406.09413), section 3.1. Raises ValueError when shapes
    do not fit.
    """
    return _run("flat_weights", coefficients=coefficients, basis=basis, mean=mean, deviation=deviation,
                basis_scale=basis_scale)  # fmt: skip


def low_rank_apply(weight, up, down, strength: float):
    """weight + strength * up @ down in the weight's shape and dtype, accumulated in float32; a new tensor.

    ``weight`` (O, I, ...), ``up`` (O, R, ...), ``down`` (R, I, ...), brought to the weight's device. NaN and infinity
    spread along their row. Raises ValueError when shapes do not fit.
    """
    return _run("low_rank_apply", weight=weight, up=up, down=down, strength=strength)


def apply_point(weights, places, coefficients, basis, mean, deviation, strength: float, basis_scale=None):
    """Every weight with its low-rank change of one point of a weight space: a tuple of new tensors.

    weight + strength * up @ down for each of ``weights`` (O, I, ...), in its dtype, with sums in float32. All factors
    lie in the vector that ``flat_weights`` makes of the last arguments: ``places`` has for each weight the offset of
    its ``down`` (R, I, ...), which its ``up`` (O, R) follows, row by row, and the rank R. Weights and basis lie on one
    device. On a GPU it takes one launch, however many weights there are. Raises ValueError as ``flat_weights`` does,
    and for places outside of the vector.
    """
    return _run("apply_point", weights=list(weights), places=list(places), coefficients=coefficients, basis=basis,
                mean=mean, deviation=deviation, strength=strength, basis_scale=basis_scale)  # fmt: skip


def neuron_moments(values):
    """Mean, sum of squared deviations, smallest and largest activation of each neuron over prompts: float64 (4, C).

    ``values`` (prompts, tokens, C), any float type: outputs of a value layer. An activation is the mean over all tokens
    of the absolute value, taken in float32. NaN and infinity stay in their neuron. Two results merge by Chan's formula.
    Raises ValueError when there is no prompt or no token.
    """
    return _run("neuron_moments", values=values)


def mean_attention(query, key, heads: int, chosen=None, tokens=None):
    """The mean over heads of softmax(q k^T / sqrt(d)), without a head's whole map: float32 (rows, positions, tokens).

    ``query`` (rows, positions, heads * d) and ``key`` (rows, keys, heads * d), any float type, on one device, as they
    come from their projections; the softmax is over all keys. ``chosen``: indices of the heads to average, default all;
    ``tokens``: indices of the keys to return, default all. NaN in a query stays in its position, in a key it spreads.
    Raises ValueError for shapes that do not fit and indices that there are not.
    """
    return _run("mean_attention", query=query, key=key, heads=heads, chosen=chosen, tokens=tokens)
