"""An inversion as a figure and in words."""

from __future__ import annotations

from ...common.curves import SMOOTH, running_mean
from ..inversion import Inversion


def draw(figure, run: Inversion) -> None:
    """Loss of each step, and its mean over the last 25."""
    axes = figure.add_subplot()
    steps = range(1, run.done + 1)
    axes.plot(steps, run.losses, color="tab:blue", alpha=0.3, linewidth=1, label="each step")
    axes.plot(steps, running_mean(run.losses), color="tab:blue", label=f"mean of {SMOOTH}")
    axes.set(xlabel="step", ylabel="loss", title="Inversion")
    axes.grid(alpha=0.3)
    axes.legend()


def describe(run: Inversion, seconds: float) -> str:
    """Numbers trained, steps, time, and the loss at both ends."""
    first, last = run.losses[:SMOOTH], run.losses[-SMOOTH:]
    return (
        f"{len(run.model.coefficients):,} coefficients, {run.done} steps{' (stopped early)' if run.stopped else ''}, "
        f"{seconds:.2f} s each. Loss {sum(first) / len(first):.4f} in the first {len(first)} steps, "
        f"{sum(last) / len(last):.4f} in the last: single steps vary with their noise level."
    )
