"""The run as a figure and as text."""

from __future__ import annotations

from ...common.loss_curve import SMOOTH, running_mean
from ..pairing import PairingMode, PairingSettings
from .training_loop import History


def draw_losses(figure, history: History, accumulation: int, title: str) -> None:
    """Training loss, its running mean, and the validation loss over optimizer steps, on a matplotlib figure."""
    axes = figure.add_subplot()
    losses = history.losses
    steps = [(number + 1) / accumulation for number in range(len(losses))]
    axes.plot(steps, losses, color="tab:blue", alpha=0.25, linewidth=1, label="training, each batch")
    axes.plot(steps, running_mean(losses), color="tab:blue", label=f"training, mean of {SMOOTH}")
    if history.validation:
        axes.plot(*zip(*history.validation, strict=True), color="tab:orange", marker="o", label="held-out images")
    axes.set(xlabel="step", ylabel="loss", title=title)
    axes.grid(alpha=0.3)
    axes.legend()


def describe_training(settings: PairingSettings, history: History, counts: str, steps: int) -> str:
    """What was trained, the losses, what pairing gained and cost, and what the losses do not show."""
    pairing = {
        PairingMode.OFF: "Noise as drawn.",
        PairingMode.ASSIGN: "Noise assigned within each batch.",
        PairingMode.POOL: f"Noise from pools of {settings.pool_size}.",
        PairingMode.NEAREST: f"The nearest of {settings.k:g} noise samples ({settings.nearest_form}).",
    }[settings.pairing]
    length = (
        f"{steps} steps" if history.finished_at is None else "finished at {} of {} steps".format(*history.finished_at)
    )
    lines = [f"{counts}, {length}. {pairing}"]
    is_paired = settings.pairing != PairingMode.OFF
    if is_paired:
        lines.append(
            f"L2 between noise and image {history.gain:.2f} % shorter; pairing took {history.pairing:.0f} ms in all, "
            f"and the model waited {history.waiting_percent:.2f} % of the time."
        )
    if history.losses:
        tail = history.losses[-SMOOTH:]
        lines.append(
            f"Training loss {history.losses[0]:.4f} at first, {sum(tail) / len(tail):.4f} in the last batches."
        )
    if history.validation:
        first, last = history.validation[0], history.validation[-1]
        lines.append(f"Held-out loss {first[1]:.4f} at step {first[0]}, {last[1]:.4f} at step {last[0]}.")
    if is_paired:
        lines.append("Paired noise lowers the training loss by itself: compare held-out losses and samples instead.")
    return "\n".join(lines)
