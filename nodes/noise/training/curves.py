"""The run as a figure and in words."""

from __future__ import annotations

from ...common.curves import SMOOTH, running_mean
from ..settings import NEAREST, OFF, POOL, Settings
from .history import History


def draw(figure, history: History, accumulation: int, title: str) -> None:
    """Training loss, its running mean, and the validation loss over optimizer steps, on a matplotlib figure."""
    axes = figure.add_subplot()
    losses = history.losses
    steps = [(number + 1) / accumulation for number in range(len(losses))]
    axes.plot(steps, losses, color="tab:blue", alpha=0.25, linewidth=1, label="training, each batch")
    axes.plot(steps, running_mean(losses), color="tab:blue", label=f"training, mean of {SMOOTH}")
    if history.validation:
        axes.plot(*zip(*history.validation, strict=True), color="tab:orange", marker="o", label="held-out pictures")
    axes.set(xlabel="step", ylabel="loss", title=title)
    axes.grid(alpha=0.3)
    axes.legend()


def describe(settings: Settings, history: History, counts: str, steps: int) -> str:
    """What was trained, the losses, what pairing gained and cost, and what the losses do not tell."""
    pairing = {
        OFF: "Noise as drawn.",
        POOL: f"Noise from pools of {settings.pool_size}.",
        NEAREST: f"The nearest of {settings.k:g} noises ({settings.form}).",
    }.get(settings.mode, "Noise assigned within each batch.")
    lines = [f"{counts}, {steps} steps{' (stopped early)' if history.stopped else ''}. {pairing}"]
    if settings.mode != OFF:
        lines.append(
            f"L2 between noise and picture {history.gain:.2f} % shorter; pairing took {history.pairing:.0f} ms in all, "
            f"and the model waited {history.visible_share:.2f} % of the time."
        )
    if history.losses:
        tail = history.losses[-SMOOTH:]
        mean = sum(tail) / len(tail)
        lines.append(f"Training loss {history.losses[0]:.4f} at first, {mean:.4f} in the last batches.")
    if history.validation:
        first, last = history.validation[0], history.validation[-1]
        lines.append(f"Held-out loss {first[1]:.4f} at step {first[0]}, {last[1]:.4f} at step {last[0]}.")
    if settings.mode != OFF:
        lines.append("Paired noise lowers the training loss by itself: compare held-out losses and samples instead.")
    return "\n".join(lines)
