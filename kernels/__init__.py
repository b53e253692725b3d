"""The few operations where speed decides. Callers never ask which backend runs.

Eager PyTorch is the reference. A kernel (Triton, or CUDA C++ through NVRTC) runs on a GPU on which
it has agreed with eager. GLASSBOX_KERNELS or ``use`` settles it instead.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Any

    import torch

#: Numbers of a row of an int8 basis that share one scale.
BASIS_GROUP = 1024


def use(backend: str | None) -> str | None:
    """Force the backend of all operations in this process: "eager", "triton", "cuda", or "auto" as
    without it.

    It outranks the environment variable GLASSBOX_KERNELS; None hands back to that. Returns what was
    set before. "triton" and "cuda" still leave to eager what a kernel does not take. Raises
    ValueError for another name.
    """
    from . import dispatch

    return dispatch.use(backend)


def _run(operation: str, **arguments: Any) -> Any:
    from .dispatch import call

    return call(operation, **arguments)


def best_match(
    queries: torch.Tensor, targets: torch.Tensor, mutual: bool = False
) -> tuple[torch.Tensor, ...]:
    """For each query the most similar target by cosine, without the matrix of all similarities.

    ``queries`` (N, C) and ``targets`` (M, C), any float type, on one device; products accumulate in
    float32. Returns similarity float32 (N,) and index int64 (N,), ties to the lower index. With
    ``mutual`` also a bool (N,): whether the query is in turn its target's best query. A zero vector
    has similarity 0 with everything; a target with NaN is the best match of all, and ``mutual`` is
    then undefined. Raises ValueError when there is no target or the widths differ.
    """
    return _run("best_match", queries=queries, targets=targets, mutual=mutual)


def assignment_cost(data: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
    """Cost of giving row j of ``noise`` (P, D) to row i of ``data`` (N, D): -<x_i, z_j> less row
    and column means.

    Any float type, on one device; the result is float32 (N, P) from float32 accumulation, the same
    at every call. A kernel multiplies numbers rounded to bfloat16, which costs at most 0.1 % of
    what an assignment gains. Half the squared distance differs from it by terms that no assignment
    changes. NaN and infinity spread, as NaN. Raises ValueError when widths differ.
    """
    return _run("assignment_cost", data=data, noise=noise)


def nearest_drawn(data: torch.Tensor, seeds: torch.Tensor, k: int) -> torch.Tensor:
    """Of ``k`` Gaussian noise samples for each row of ``data`` (B, D) the nearest: float32 (B, D),
    and its index (B,).

    The candidates are Philox-4x32-7 numbers (Salmon et al. 2011) of the row's ``seeds`` int64 (B,)
    through Box-Muller: the same on every device to float32 rounding, whatever the other rows.
    Improved Immiscible Diffusion (arXiv 2505.18521), "KNN", with distances in float32 and not
    rounded to half; ties to the lower index. NaN in a row takes candidate 0. Raises ValueError for
    shapes that do not fit and k below 1.
    """
    return _run("nearest_drawn", data=data, seeds=seeds, k=k)


def flat_weights(
    coefficients: torch.Tensor,
    basis: torch.Tensor,
    mean: torch.Tensor,
    deviation: torch.Tensor,
    basis_scale: torch.Tensor | None = None,
) -> torch.Tensor:
    """The flat vector of a point in a weight space: mean + deviation * (coefficients @ basis);
    float32 (D,).

    ``coefficients`` (K,), ``basis`` (K, D) of any float type, or int8 with ``basis_scale`` (K,
    ceil(D / BASIS_GROUP)) for each BASIS_GROUP numbers of a row, ``mean`` and ``deviation`` (D,),
    on one device. Accumulates in float32; rows whose coefficient is 0 are not read. Of several
    points (N, K), each with the mean or with one of its own (N, D), the basis is read once:
    float32 (N, D), in eager PyTorch the same numbers as point by point. weights2weights (arXiv
    2406.09413), section 3.1. Raises ValueError when shapes do not fit.
    """
    return _run(
        "flat_weights",
        coefficients=coefficients,
        basis=basis,
        mean=mean,
        deviation=deviation,
        basis_scale=basis_scale,
    )


def low_rank_apply(
    weight: torch.Tensor, up: torch.Tensor, down: torch.Tensor, strength: float
) -> torch.Tensor:
    """weight + strength * up @ down in the weight's shape and dtype, accumulated in float32; a new
    tensor.

    ``weight`` (O, I, ...), ``up`` (O, R, ...), ``down`` (R, I, ...), brought to the weight's
    device. NaN and infinity spread along their row. Raises ValueError when shapes do not fit.
    """
    return _run("low_rank_apply", weight=weight, up=up, down=down, strength=strength)


def neuron_moments(values: torch.Tensor) -> torch.Tensor:
    """Of each neuron's activation over prompts the mean, the sum of squared deviations, the least
    and the largest, and the largest absolute value of any token: float64 (5, C).

    ``values`` (prompts, tokens, C), any float type: outputs of a value layer. An activation is the
    mean over all tokens of the absolute value, taken in float32. NaN and infinity stay in their
    neuron. Two results merge by Chan's formula. Raises ValueError when there is no prompt or no
    token.
    """
    return _run("neuron_moments", values=values)


def mean_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    mask: torch.Tensor | None = None,
    scale: float | None = None,
    begin: int = 0,
    count: int | None = None,
) -> torch.Tensor:
    """The mean over heads of softmax(scale q k^T + mask), without a head's whole map: float32
    (rows, positions, count).

    ``query`` (rows, heads, positions, d) and ``key`` (rows, heads or a fraction of them, keys, d),
    any float type, on one device, as views of what projections give; each key's head serves as many
    heads of the query in a row. ``mask``: added to the logits, any float type, (rows or 1, heads or
    1, positions or 1, keys). ``scale``: 1 / sqrt(d) if None. The softmax is over all keys; of them
    ``count`` are returned from ``begin`` on, all if None. NaN in a query stays in its position, in
    a key it spreads; a position whose keys are all masked has no mean. Raises ValueError for shapes
    that do not fit.
    """
    return _run(
        "mean_attention",
        query=query,
        key=key,
        mask=mask,
        scale=scale,
        begin=begin,
        count=count,
    )
