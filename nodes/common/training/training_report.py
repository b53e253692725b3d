"""The run as a figure and as text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..loss_curve import SMOOTH, running_mean
from .training_loop import History

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw_losses(figure: Figure, history: History, accumulation: int, title: str) -> None:
    """Training loss, its running mean, and the validation loss over optimizer steps, on a
    matplotlib figure.
    """
    axes = figure.add_subplot()
    losses = history.losses
    steps = [(number + 1) / accumulation for number in range(len(losses))]
    axes.plot(
        steps, losses, color="tab:blue", alpha=0.25, linewidth=1, label="training, each batch"
    )
    axes.plot(steps, running_mean(losses), color="tab:blue", label=f"training, mean of {SMOOTH}")
    if history.validation:
        axes.plot(
            *zip(*history.validation, strict=True),
            color="tab:orange",
            marker="o",
            label="held-out images",
        )
    axes.set(xlabel="step", ylabel="loss", title=title)
    axes.grid(alpha=0.3)
    axes.legend()


def describe_losses(history: History) -> list[str]:
    """Lines with the losses at the start and the end, of the training and of the held-out
    images.
    """
    lines = []
    if history.losses:
        tail = history.losses[-SMOOTH:]
        lines.append(
            f"Training loss {history.losses[0]:.4f} at first, {sum(tail) / len(tail):.4f} in the "
            "last batches."
        )
    if history.validation:
        first = history.validation[0]
        last = history.validation[-1]
        lines.append(
            f"Held-out loss {first[1]:.4f} at step {first[0]}, {last[1]:.4f} at step {last[0]}."
        )
    return lines
