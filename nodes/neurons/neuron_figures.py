"""Plots of scores, searches, masks and attacks, on matplotlib figures that the caller makes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ..common.loss_curve import running_mean
from .layer_ablation import LayerEffect
from .mask import NeuronMask
from .memorization_score import PromptScore
from .nemo_search import SelectionStep
from .score_threshold import Threshold

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from torch import Tensor

    from .image_similarity import ImageSimilarity, Remains
    from .unlearning import UnlearningLosses

_OVER = "tab:red"
_UNDER = "tab:blue"
_MAX_BARS = 40
_MAX_NAMED = 10
#: Prompts side by side on the sheet of a scan, and lines of a page of it.
SHEET_COLUMNS = 2
SHEET_LINES = 12


def plot_score(figure: Figure, prompt: str, score: PromptScore, threshold: float) -> None:
    """The similarity of every pair of seeds as a matrix."""
    title = f"score {score.value:.3f} (threshold {threshold:.3f})"
    plot_similarity(figure.add_subplot(), figure, score.pairs.numpy(), title)
    figure.suptitle(_shorten(prompt, 70))


def plot_similarity(axes: Any, figure: Figure, values: np.ndarray, title: str) -> None:
    """A matrix of similarities between 0 and 1, without its diagonal."""
    shown = np.where(np.eye(len(values), dtype=bool), np.nan, values)
    image = axes.imshow(shown, vmin=0, vmax=1, cmap="magma")
    figure.colorbar(image, ax=axes, label="similarity")
    axes.set(title=title, xlabel="seed", ylabel="seed")
    for axis in (axes.xaxis, axes.yaxis):
        axis.get_major_locator().set_params(integer=True)


def plot_scores(figure: Figure, scores: dict[str, float], threshold: float) -> None:
    """One bar per prompt, the largest first, and the threshold."""
    axes = figure.add_subplot()
    shown = sorted(scores.items(), key=lambda item: -item[1])[:_MAX_BARS]
    values = [value for _, value in shown]
    axes.barh(
        range(len(shown)),
        values,
        color=[_OVER if value > threshold else _UNDER for value in values],
    )
    axes.set_yticks(range(len(shown)), [_shorten(name, 44) for name, _ in shown], fontsize=8)
    axes.invert_yaxis()
    axes.axvline(threshold, color="black", linestyle=":", label="threshold")
    more = f"; the highest {len(shown)} of {len(scores)}" if len(scores) > len(shown) else ""
    axes.set(xlabel="similarity of the two most similar seeds", title=f"Memorization score{more}")
    axes.legend()


def plot_calibration(figure: Figure, found: Threshold) -> None:
    """Scores of ordinary prompts, those of known memorized ones, and the threshold."""
    axes = figure.add_subplot()
    every = [*found.normal, *found.memorized, found.value]
    bins = np.linspace(min(every) - 0.01, max(every) + 0.01, 25).tolist()
    axes.hist(found.normal, bins, color=_UNDER, alpha=0.8, label=f"ordinary ({len(found.normal)})")
    if found.memorized:
        axes.hist(
            found.memorized,
            bins,
            color=_OVER,
            alpha=0.8,
            label=f"memorized ({len(found.memorized)})",
        )
    axes.axvline(found.value, color="black", linestyle=":", label=f"threshold {found.value:.3f}")
    axes.set(xlabel="memorization score", ylabel="prompts", title="Scores and threshold")
    axes.legend()


def plot_histogram(figure: Figure, scores: list[float], threshold: float) -> None:
    """Histogram of the scores of a scan, those over the threshold in red."""
    axes = figure.add_subplot()
    bins = np.linspace(min(*scores, threshold) - 0.01, max(*scores, threshold) + 0.01, 41).tolist()
    over = [score > threshold for score in scores]
    for color, name, chosen in ((_UNDER, "not memorized", False), (_OVER, "memorized", True)):
        values = [score for score, is_over in zip(scores, over, strict=True) if is_over is chosen]
        axes.hist(values, bins, color=color, alpha=0.8, label=f"{name} ({len(values)})")
    axes.axvline(threshold, color="black", linestyle=":", label=f"threshold {threshold:.3f}")
    axes.set(
        xlabel="memorization score", ylabel="prompts", title=f"Scores of {len(scores)} prompts"
    )
    axes.legend()


def plot_sheet(figure: Figure, images: list[list], titles: list[str], lines: int) -> None:
    """A grid of prompts, each with its images (H, W, 3) side by side: without the mask, and with it
    where there is one.

    ``images`` may be fewer than ``titles``, and fill fewer than ``lines`` of the grid.
    """
    cells = figure.subplots(max(lines, 1), SHEET_COLUMNS, squeeze=False).flatten()
    for axes in cells:
        axes.set_axis_off()
    for axes, one, title in zip(cells, images, titles, strict=False):
        axes.imshow(np.concatenate([np.asarray(image.clamp(0, 1).cpu()) for image in one], axis=1))
        axes.set_title(
            _shorten(title.partition("\n")[0], 60) + "\n" + _shorten(title.partition("\n")[2], 60),
            fontsize=9,
        )
    figure.suptitle(
        "Left: without the mask; right: with it"
        if images and len(images[0]) > 1
        else "Without a mask"
    )


def plot_ablation(
    figure: Figure, untouched: float, effects: list[LayerEffect], suggested: set[str]
) -> None:
    """The remaining score and the change of the first step with each group of layers silenced."""
    left, right = figure.subplots(1, 2, sharey=True)
    names = [effect.name for effect in effects]
    places = range(len(effects))
    chosen = [len(e.layers) == 1 and e.layers[0].path in suggested for e in effects]
    colors = [_OVER if mark else "0.6" for mark in chosen]
    left.barh(places, [effect.score for effect in effects], color=colors)
    left.axvline(untouched, color="black", linestyle=":", label=f"untouched {untouched:.3f}")
    left.set_yticks(places, names, fontsize=8)
    left.set(xlabel="remaining memorization score", xlim=(0, 1))
    left.legend(fontsize=8)
    right.barh(places, [1 - effect.same_seed for effect in effects], color=colors)
    right.set(xlabel="change of the first step at the same seed")
    left.invert_yaxis()
    figure.suptitle("Each layer silenced in turn (red: search these)")


def plot_search(
    figure: Figure, traces: dict[str, list[SelectionStep]], target_score: float
) -> None:
    """The score of each prompt over the neurons silenced in the selection, and the target score.

    Of many prompts those of the highest remaining score are named and drawn in color, all others in
    gray.
    """
    axes = figure.add_subplot()
    ends = {prompt: trace[-1].score if trace else 0.0 for prompt, trace in traces.items()}
    named = (
        [*traces]
        if len(traces) <= _MAX_NAMED
        else sorted(ends, key=lambda prompt: -ends[prompt])[:_MAX_NAMED]
    )
    if others := [
        [(step.neurons, step.score) for step in traces[prompt]]
        for prompt in traces.keys() - set(named)
    ]:
        from matplotlib.collections import LineCollection

        label = f"{len(others)} more prompts, all lower in the end"
        axes.add_collection(
            LineCollection(sorted(others), colors="0.8", linewidths=0.8, label=label)
        )
    for prompt in named:
        trace = traces[prompt]
        axes.plot(
            [step.neurons for step in trace],
            [step.score for step in trace],
            marker="o",
            label=_shorten(prompt, 40),
        )
    axes.axhline(
        target_score, color="black", linestyle=":", label=f"target score {target_score:.3f}"
    )
    axes.autoscale_view()
    axes.set(xlabel="neurons silenced", ylabel="remaining score", title="Initial selection")
    axes.set_xlim(left=0)
    axes.legend(fontsize=8)


def plot_layer_counts(axes: Any, mask: NeuronMask) -> None:
    """The number of masked neurons in each layer."""
    paths = list(mask.scales)
    names = [path.partition(".transformer_blocks.")[0] for path in paths]
    axes.barh(range(len(paths)), [len(mask.scales[path]) for path in paths], color=_UNDER)
    axes.set_yticks(range(len(paths)), names, fontsize=8)
    axes.set_ylim(max(len(paths), 4) - 0.5, -0.5)  # so that one bar does not fill the panel
    axes.set(xlabel="neurons", title=f"{mask.count} masked neurons")
    axes.xaxis.get_major_locator().set_params(integer=True)


def plot_z(axes: Any, values: list[float]) -> None:
    """Histogram of the z-scores of the found neurons."""
    axes.hist(values, 20, color=_OVER)
    axes.set(xlabel="z of the found neurons", ylabel="neurons", title="Activation on the prompts")


def plot_report(figure: Figure, mask: NeuronMask, measured: dict[str, ImageSimilarity]) -> None:
    """A mask's neurons by layer, z-scores where known, and the similarity of all pairs of each
    batch of images.
    """
    z = list(mask.largest_z().values())
    matrices = {name: found for name, found in measured.items() if found.sameness is not None}
    panels = figure.subplots(1, 1 + bool(z) + len(matrices), squeeze=False)[0]
    plot_layer_counts(panels[0], mask)
    if z:
        plot_z(panels[1], z)
    for axes, (name, found) in zip(panels[1 + bool(z) :], matrices.items(), strict=True):
        plot_similarity(axes, figure, found.between.numpy(), f"{name}, median {found.sameness:.2f}")


_CELL = 200
_MAX_SHOWN = 8
#: What the rows of a sheet are called; other batches by their own names.
_ROWS = {"before": "without the mask", "after": "with the mask"}


def sheet_size(batches: dict[str, Tensor], reference: Tensor | None) -> tuple[int, int]:
    """Width and height in pixels of ``plot_batches``."""
    return _CELL * (1 + _columns(batches)), _CELL * (len(batches) + (reference is not None))


def plot_batches(
    figure: Figure, batches: dict[str, Tensor], left: dict[str, Remains], reference: Tensor | None
) -> None:
    """Batches of images (B, H, W, 3) of 0..1 in rows, the first ones of each, with what they have
    of the reference.
    """
    rows = ({} if reference is None else {"the image": reference[:1]}) | batches
    cells = figure.subplots(len(rows), 1 + _columns(batches), squeeze=False)
    for axes in cells.flatten():
        axes.set_axis_off()
    for row, (name, images) in zip(cells, rows.items(), strict=True):
        about = f"\n\n{left[name]}".replace(", ", "\n") if name in left else ""
        row[0].text(0.0, 0.5, _ROWS.get(name, name) + about, fontsize=12, va="center")
        for axes, image in zip(row[1:], images[:_MAX_SHOWN], strict=False):
            axes.imshow(image[:, :, :3].cpu().numpy().clip(0, 1), interpolation="nearest")


def _columns(batches: dict[str, Tensor]) -> int:
    return min(max(map(len, batches.values())), _MAX_SHOWN)


def plot_attack(
    figure: Figure,
    losses: dict[str, list[float]],
    similarities: dict[str, Tensor],
    threshold: float,
) -> None:
    """The loss of the attack over its steps, and each image's similarity to its target."""
    left, right = figure.subplots(1, 2)
    for name, values in losses.items():
        left.plot(values, label="image" if name == "after" else name)
    left.set(xlabel="step of the attack", ylabel="diffusion loss", title="Attack")
    left.legend()
    for place, (name, found) in enumerate(similarities.items()):
        right.scatter(
            [place] * len(found),
            found.tolist(),
            color=_OVER if name == "after" else _UNDER,
            alpha=0.7,
        )
    right.axhline(threshold, color="black", linestyle=":", label="replication threshold")
    right.set_xticks(range(len(similarities)), list(similarities))
    right.set(ylim=(-0.05, 1), ylabel="similarity to the target", title="Did it come back?")
    right.legend(fontsize=8)


def plot_unlearning(figure: Figure, losses: UnlearningLosses) -> None:
    """Losses over a training under attack, as running means."""
    left, right = figure.subplots(1, 2)
    for name, values in (("surrogates", losses.surrogates), ("ordinary prompts", losses.ordinary)):
        left.plot(range(1, len(values) + 1), running_mean(values), label=name)
    left.set(
        xlabel="step of the training", ylabel="loss, running mean", title="Training", yscale="log"
    )
    left.legend()
    right.plot(range(1, len(losses.attack) + 1), running_mean(losses.attack), color=_OVER)
    right.set(xlabel="step of the attack", ylabel="loss, running mean", title="Attack on the image")


def plot_learning(figure: Figure, losses: list[float]) -> None:
    """Loss of each step of a mask that is learned."""
    axes = figure.add_subplot()
    axes.plot(range(1, len(losses) + 1), losses, color=_UNDER)
    axes.set(xlabel="step", ylabel="loss", title="Loss of the learned mask")


def _shorten(text: str, length: int) -> str:
    return text if len(text) <= length else f"{text[: length - 1]}…"
