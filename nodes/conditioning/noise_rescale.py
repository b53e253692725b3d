"""How much stronger noise must be when an image has more pixels: arXiv 2411.03177, on changing
resolution.

Averaging s x s independently noised observations of a patch divides the noise's deviation by s.
Keeping what is known of the patch at a time t as it was takes sigma' = s sigma (noise over signal),
that is SNR' = SNR / s^2: the logSNR shift of simple diffusion (arXiv 2301.11093) and the resolution
shift of SD3 (arXiv 2403.03206).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: A base size this many times the trained one, or less than its inverse, is reported as unlikely.
_FAR = 1.75
#: Above this relative error a scheduler does not follow the law; core's normal scheduler rounds to
#: about 1e-3.
LAW_TOLERANCE = 0.01


def sigma_scale(width: int, height: int, base_width: int, base_height: int) -> float:
    """s, the linear ratio of the sizes: sqrt(pixels / base pixels). Raises ValueError for a size of
    zero.
    """
    if min(width, height, base_width, base_height) <= 0:
        raise ValueError(
            f"The sizes are {width} x {height} and {base_width} x {base_height}: set sizes of at "
            "least one pixel."
        )
    return math.sqrt(width * height / (base_width * base_height))


def scaled_sigma(factor: float, sigma: torch.Tensor) -> torch.Tensor:
    """sigma' = s sigma, for sigmas that are noise over signal."""
    return factor * sigma


def scaled_time(factor: float, time: torch.Tensor) -> torch.Tensor:
    """t' = s t / (1 + (s - 1) t), the same law for times t of flow models: the noise in (1 - t) x +
    t noise.
    """
    return factor * time / (1 + (factor - 1) * time)


def describe_rescale(
    factor: float,
    size: tuple[int, int],
    base: tuple[int, int],
    mode: str,
    before: tuple[float, float],
    after: tuple[float, float],
) -> str:
    """The rescaling as text; `before` and `after` are the smallest and the largest sigma."""
    effect = "unchanged"
    if factor != 1:
        effect = "stronger" if factor > 1 else "weaker"
    return "\n".join(
        [
            f"{size[0]} x {size[1]} against {base[0]} x {base[1]}: s = {factor:.4f}, noise "
            f"{effect} ({mode}).",
            f"Log signal-to-noise ratio shifted by {-2 * math.log(factor):+.3f}; a flow model's mu "
            f"by {math.log(factor):+.4f}.",
            f"Sigmas from {before[0]:.4g} to {before[1]:.4g} before, {after[0]:.4g} to "
            f"{after[1]:.4g} after.",
        ]
    )


def law_errors(schedules: dict[str, tuple[torch.Tensor, torch.Tensor]]) -> dict[str, float]:
    """For each scheduler the largest relative error of its sigmas against the law; of pairs
    (sigmas, law).
    """
    return {
        name: float(((sigmas - law).abs() / law.clamp_min(1e-12))[:-1].max())
        for name, (sigmas, law) in schedules.items()
    }


def describe_schedulers(errors: dict[str, float]) -> str:
    """Which schedulers follow the law on the patched model, and which need the `sigmas` of the
    node.
    """
    wrong = {name: error for name, error in errors.items() if error > LAW_TOLERANCE}
    right = [name for name in errors if name not in wrong]
    lines = [f"Schedulers that follow the law on this model: {', '.join(right)}."]
    if wrong:
        some = ", ".join(
            f"{name} (off by up to {100 * error:.0f} %)" for name, error in wrong.items()
        )
        lines.append(
            f"Not: {some}. They use the ends of the schedule only: connect their SIGMAS of the "
            "unpatched model to this node, and its sigmas to SamplerCustomAdvanced."
        )
    return "\n".join(lines)


def describe_shift(now: float, trained: float) -> str:
    """A warning that the schedule is shifted already."""
    return (
        f"The model's schedule is shifted already ({now:.4g} instead of {trained:.4g}), as by "
        "ModelSamplingFlux, ModelSamplingSD3 or ModelSamplingAuraFlow. If that shift was chosen "
        "for the image size, the size now counts twice: remove one of the two nodes."
    )


def describe_base(base: int, trained: int | None) -> list[str]:
    """One sentence about a base size far from the size (pixels a side) that the model was trained
    at; else nothing.
    """
    if trained is None or trained / _FAR <= base <= trained * _FAR:
        return []
    return [
        f"Base size {base} is far from {trained}, the size that this kind of model was trained at: "
        f"set it to 0 for {trained}, unless your checkpoint was trained at another size."
    ]


def draw_sigmas(
    figure: Figure, before: list[float], after: list[float], factor: float, title: str
) -> None:
    """The sigmas of a sampling run before and after."""
    axes = figure.add_subplot()
    numbers = range(1, len(before) + 1)
    axes.semilogy(numbers, before, "o-", color="tab:gray", label="trained schedule")
    axes.semilogy(numbers, after, "o-", color="tab:blue", label=f"for this size (s = {factor:.3f})")
    axes.set(xlabel="step", ylabel="sigma", title=f"Noise level at each step: {title}")
    axes.locator_params(axis="x", integer=True)
    axes.legend()
