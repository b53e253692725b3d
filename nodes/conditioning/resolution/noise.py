"""How much stronger noise must be when a picture has more pixels: arXiv 2411.03177, on changing resolution.

Averaging s x s independently noised observations of a patch divides the noise's deviation by s. Keeping what is known
of the patch at a time t as it was asks for sigma' = s sigma (noise over signal), that is SNR' = SNR / s^2. The paper's
own formula was not open to us; this one is also the logSNR shift of simple diffusion (arXiv 2301.11093) and the
resolution shift of SD3 (arXiv 2403.03206).
"""

from __future__ import annotations

import math


def scale(width: int, height: int, base_width: int, base_height: int) -> float:
    """s, the linear ratio of the sizes: sqrt(pixels / base pixels). Raises ValueError for a size of nothing."""
    if min(width, height, base_width, base_height) <= 0:
        raise ValueError(
            f"The sizes are {width} x {height} and {base_width} x {base_height}: give sizes of at least one pixel."
        )
    return math.sqrt(width * height / (base_width * base_height))


def describe(factor: float, size: tuple[int, int], base: tuple[int, int], mode: str, before: tuple[float, float],
             after: tuple[float, float]) -> str:  # fmt: skip
    """The rescaling in words; ``before`` and ``after`` are the smallest and the largest sigma."""
    effect = "stronger" if factor > 1 else "weaker" if factor < 1 else "unchanged"
    return "\n".join([
        f"{size[0]} x {size[1]} against {base[0]} x {base[1]}: s = {factor:.4f}, noise {effect} ({mode}).",
        f"Log signal-to-noise ratio shifted by {-2 * math.log(factor):+.3f}; a flow model's mu by "
        f"{math.log(factor):+.4f}.",
        f"Sigmas from {before[0]:.4g} to {before[1]:.4g} before, {after[0]:.4g} to {after[1]:.4g} after.",
    ])  # fmt: skip


def draw(figure, before: list[float], after: list[float], factor: float) -> None:
    """The sigmas of a sampling run before and after."""
    axes = figure.add_subplot()
    numbers = range(1, len(before) + 1)
    axes.semilogy(numbers, before, "o-", color="tab:gray", label="as trained")
    axes.semilogy(numbers, after, "o-", color="tab:blue", label=f"for this size (s = {factor:.3f})")
    axes.set(xlabel="step", ylabel="sigma", title="Noise level at each step of a normal schedule")
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.legend()
