"""What was paired and what it gained, as text and as a figure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..common.training.training_loop import History
from ..common.training.training_report import describe_losses
from .batch_matrix import flatten_batch
from .gain import Bucket
from .nearest import NearestForm
from .pairing import Batch, Pairing, PairingMode, PairingSettings

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_LARGE_K = 64


def describe_pairing(settings: PairingSettings, batch: Batch, pairing: Pairing) -> str:
    """The report of one pairing: distances before and after, gain, milliseconds, and what to
    know.
    """
    before = pairing.before.double()
    after = pairing.after.double()
    squared = 100 * (1 - float(after.square().sum() / before.square().sum().clamp_min(1e-30)))
    gain = 100 * (1 - float(after.sum() / before.sum().clamp_min(1e-30)))
    count = len(before)
    detail = {
        PairingMode.OFF: "",
        PairingMode.ASSIGN: f" ({settings.cost})",
        PairingMode.POOL: f" of {settings.pool_size}, pool_index {settings.pool_index}"
        f" ({settings.cost})",
        PairingMode.NEAREST: f" of k = {settings.k:g} ({settings.nearest_form})",
    }[settings.pairing]
    effect = "noise moved nearer to its image" if pairing.moved else "noise as drawn"
    lines = [
        f"{settings.pairing}{detail}, {count} image{'s' if count > 1 else ''}: {effect}.",
        f"Mean L2 before {before.mean():.3f}, after {after.mean():.3f}: {gain:.2f} % less (squared "
        f"{squared:.2f} %).",
        f"{pairing.milliseconds:.1f} ms in all.",
        f"Noise sample of each image: {list_numbers(pairing)}",
    ]
    return "\n".join(lines + _remarks(settings, batch, pairing))


def list_numbers(pairing: Pairing) -> str:
    """The number of each image's noise sample in the draws of the seed, as text: "2, 0, 1"."""
    return ", ".join(map(str, pairing.numbers))


def _remarks(settings: PairingSettings, batch: Batch, pairing: Pairing) -> list[str]:
    data = flatten_batch(batch.parts)
    is_blank = bool(batch.blank.all())
    if settings.pairing == PairingMode.NEAREST:
        if is_blank:
            return ["No gain: the latents are empty."]
        deviation = float(flatten_batch(pairing.noise).square().mean().sqrt())
        remarks = [f"Standard deviation of the noise {deviation:.4f} (1 before, on average)."]
        if settings.k >= _LARGE_K and settings.nearest_form != NearestForm.DOT_PRODUCT:
            remarks.append(
                "So large a k makes noise weaker, and similar for similar images; fine-tuning "
                "uses 2 to 8."
            )
        return remarks
    if settings.pairing == PairingMode.OFF or pairing.moved:
        return []
    reason = Bucket(data, is_blank=is_blank).no_gain_reason
    if reason is None:
        return ["The noise as drawn is already the best assignment."]
    return [
        f"No gain: {reason}." + (" Nearest works for a single image too." if len(data) == 1 else "")
    ]


def draw_distances(figure: Figure, pairing: Pairing, title: str) -> None:
    """The distance of each image from its noise before and after, on a matplotlib figure."""
    axes = figure.add_subplot()
    images = range(len(pairing.before))
    before = pairing.before.tolist()
    after = pairing.after.tolist()
    axes.vlines(images, before, after, color="0.75", linewidth=2, zorder=1)
    axes.scatter(images, before, color="tab:gray", label="as drawn", zorder=2)
    axes.scatter(images, after, color="tab:blue", label="paired", zorder=3)
    for values, color in ((before, "tab:gray"), (after, "tab:blue")):
        axes.axhline(sum(values) / len(values), color=color, linestyle=":", linewidth=1)
    axes.set(xlabel="image", ylabel="L2 distance to its noise", title=title)
    axes.locator_params(axis="x", integer=True)
    axes.legend()


def draw_gains(
    figure: Figure, curve: list[tuple[int, float, float]], k: float, nearest: float
) -> None:
    """Gain over batch size, (batch, measured, predicted) per point, and that of the nearest of k
    across it.
    """
    axes = figure.add_subplot()
    sizes, measured, predicted = zip(*curve, strict=True)
    axes.plot(sizes, measured, "o-", color="tab:blue", label="assign, measured")
    axes.plot(sizes, predicted, ":", color="tab:gray", label="assign, predicted for white latents")
    axes.axhline(nearest, color="C1", linestyle="--", linewidth=1, label=f"nearest of {k:g}")
    axes.set_xscale("log", base=2)
    axes.set_xticks(sizes, [str(size) for size in sizes])
    axes.set(
        xlabel="images assigned at once",
        ylabel="reduction of L2 in %",
        title="Estimated gain of pairing",
    )
    axes.legend()


def describe_training(settings: PairingSettings, history: History, counts: str, steps: int) -> str:
    """What was trained, the losses, what pairing gained and cost, and what the losses do not
    show.
    """
    pairing = {
        PairingMode.OFF: "Noise as drawn.",
        PairingMode.ASSIGN: "Noise assigned within each batch.",
        PairingMode.POOL: f"Noise from pools of {settings.pool_size}.",
        PairingMode.NEAREST: f"The nearest of {settings.k:g} noise samples"
        f" ({settings.nearest_form}).",
    }[settings.pairing]
    length = (
        f"{steps} steps"
        if history.finished_at is None
        else "finished at {} of {} steps".format(*history.finished_at)
    )
    lines = [f"{counts}, {length}. {pairing}"]
    if settings.pairing == PairingMode.OFF:
        return "\n".join([*lines, *describe_losses(history)])
    lines.append(
        f"L2 between noise and image {history.gain:.2f} % shorter; pairing took "
        f"{history.pairing:.0f} ms in all, and the model waited {history.waiting_percent:.2f} % of "
        "the time."
    )
    last = (
        "Paired noise lowers the training loss by itself: compare held-out losses and samples "
        "instead."
    )
    return "\n".join([*lines, *describe_losses(history), last])
