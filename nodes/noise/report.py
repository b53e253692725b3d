"""What was paired and what it gained, in words and as a figure."""

from __future__ import annotations

import torch

from . import nearest
from .gain import Bucket, nothing
from .pairing import Pairing, View
from .rows import rows
from .settings import ASSIGN, NEAREST, OFF, POOL, Settings

_LARGE_K = 64


def describe(settings: Settings, view: View, pairing: Pairing) -> str:
    """The report of one pairing: distances before and after, gain, solver, milliseconds, and what to know."""
    before, after = pairing.before.double(), pairing.after.double()
    squared = 100 * (1 - float(after.square().sum() / before.square().sum().clamp_min(1e-30)))
    gain = 100 * (1 - float(after.sum() / before.sum().clamp_min(1e-30)))
    lines = [
        f"{_title(settings, len(before))}: {'noise is nearer to its picture' if pairing.moved else 'noise as drawn'}.",
        f"Mean L2 before {before.mean():.3f}, after {after.mean():.3f}: {gain:.2f} % less (squared {squared:.2f} %).",
        f"Solver {pairing.solver}, {pairing.milliseconds:.1f} ms in all.",
        f"Noise of each picture: {permutation(pairing)}",
    ]
    return "\n".join(lines + _remarks(settings, view, pairing))


def permutation(pairing: Pairing) -> str:
    """The number of each picture's noise in the draws of the seed, as text: "2, 0, 1"."""
    return ", ".join(map(str, pairing.numbers))


def _title(settings: Settings, count: int) -> str:
    pictures = f"{count} picture{'s' if count > 1 else ''}"
    detail = {
        OFF: "",
        ASSIGN: f" ({settings.cost})",
        POOL: f" of {settings.pool_size}, turn {settings.turn} ({settings.cost})",
        NEAREST: f" of k = {settings.k:g} ({settings.form})",
    }[settings.mode]
    return f"{settings.mode}{detail}, {pictures}"


def _remarks(settings: Settings, view: View, pairing: Pairing) -> list[str]:
    data = rows(view.parts)
    if settings.mode == NEAREST:
        return _nearest_remarks(settings, view, pairing, data)
    if settings.mode == OFF or pairing.moved:
        return []
    reason = nothing(Bucket(data), bool(view.blank.all()))
    if reason is None:
        return ["The noise as drawn is already the best assignment."]
    return [f"Nothing to gain: {reason}." + (" Nearest works for one picture too." if len(data) == 1 else "")]


def _nearest_remarks(settings: Settings, view: View, pairing: Pairing, data: torch.Tensor) -> list[str]:
    if bool(view.blank.all()):
        return ["Nothing to gain: the latents are empty."]
    deviation = float(rows(pairing.noise).square().mean().sqrt())
    remarks = [f"Standard deviation of the noise {deviation:.4f} (1 before, on average)."]
    if settings.k >= _LARGE_K and settings.form != nearest.DOT:
        remarks.append("So large a k makes the noise weaker, and alike for like pictures; fine-tuning takes 2 to 8.")
    return remarks


def draw_distances(figure, pairing: Pairing, title: str) -> None:
    """The distance of each picture from its noise before and after, on a matplotlib figure."""
    axes = figure.add_subplot()
    pictures = range(len(pairing.before))
    before, after = pairing.before.tolist(), pairing.after.tolist()
    axes.vlines(pictures, before, after, color="0.75", linewidth=2, zorder=1)
    axes.scatter(pictures, before, color="tab:gray", label="as drawn", zorder=2)
    axes.scatter(pictures, after, color="tab:blue", label="paired", zorder=3)
    for values, colour in ((before, "tab:gray"), (after, "tab:blue")):
        axes.axhline(sum(values) / len(values), color=colour, linestyle=":", linewidth=1)
    axes.set(xlabel="picture", ylabel="L2 distance to its noise", title=title)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.legend()


def draw_gains(figure, curve: list[tuple[int, float, float]], lines: list[tuple[str, float]]) -> None:
    """Gain over batch size, (batch, measured, predicted) a point, and named levels across it."""
    axes = figure.add_subplot()
    sizes, measured, predicted = zip(*curve, strict=True)
    axes.plot(sizes, measured, "o-", color="tab:blue", label="assign, measured")
    axes.plot(sizes, predicted, ":", color="tab:gray", label="assign, if the latents were white")
    for index, (name, level) in enumerate(lines):
        axes.axhline(level, color=f"C{index + 1}", linestyle="--", linewidth=1, label=name)
    axes.set_xscale("log", base=2)
    axes.set_xticks(sizes, [str(size) for size in sizes])
    axes.set(xlabel="pictures assigned at once", ylabel="L2 less by %", title="What pairing would gain")
    axes.legend()
