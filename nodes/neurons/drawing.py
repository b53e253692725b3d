"""Figures of the family, drawn on matplotlib figures that are handed in."""

from __future__ import annotations

import numpy as np

from .ablation import Effect
from .calibration import Threshold
from .localization import Look
from .mask import NeuronMask
from .memorization import Score

_OVER, _UNDER = "tab:red", "tab:blue"
_MOST_BARS = 40


def score(figure, prompt: str, found: Score, threshold: float) -> None:
    """The similarity of every pair of seeds as a matrix."""
    matrix(figure.add_subplot(), figure, found.pairs.numpy(), f"score {found.value:.3f} (threshold {threshold:.3f})")
    figure.suptitle(_short(prompt, 70))


def matrix(axes, figure, values: np.ndarray, title: str) -> None:
    """A matrix of similarities between 0 and 1, without its diagonal."""
    shown = np.where(np.eye(len(values), dtype=bool), np.nan, values)
    image = axes.imshow(shown, vmin=0, vmax=1, cmap="magma")
    figure.colorbar(image, ax=axes, label="similarity")
    axes.set(title=title, xlabel="seed", ylabel="seed")
    for axis in (axes.xaxis, axes.yaxis):
        axis.get_major_locator().set_params(integer=True)


def scores(figure, named: dict[str, float], threshold: float) -> None:
    """One bar a prompt, the largest first, and the threshold."""
    axes = figure.add_subplot()
    shown = sorted(named.items(), key=lambda item: -item[1])[:_MOST_BARS]
    values = [value for _, value in shown]
    axes.barh(range(len(shown)), values, color=[_OVER if value > threshold else _UNDER for value in values])
    axes.set_yticks(range(len(shown)), [_short(name, 44) for name, _ in shown], fontsize=8)
    axes.invert_yaxis()
    axes.axvline(threshold, color="black", linestyle=":", label="threshold")
    more = f"; the highest {len(shown)} of {len(named)}" if len(named) > len(shown) else ""
    axes.set(xlabel="similarity of the two most alike seeds", title=f"Memorisation score{more}")
    axes.legend()


def histogram(figure, found: Threshold) -> None:
    """Scores of ordinary prompts, those of known memorised ones, and the threshold."""
    axes = figure.add_subplot()
    every = [*found.normal, *found.memorized, found.value]
    bins = np.linspace(min(every) - 0.01, max(every) + 0.01, 25)
    axes.hist(found.normal, bins, color=_UNDER, alpha=0.8, label=f"ordinary ({len(found.normal)})")
    if found.memorized:
        axes.hist(found.memorized, bins, color=_OVER, alpha=0.8, label=f"memorised ({len(found.memorized)})")
    axes.axvline(found.value, color="black", linestyle=":", label=f"threshold {found.value:.3f}")
    axes.set(xlabel="memorisation score", ylabel="prompts", title="Scores and threshold")
    axes.legend()


def ablation(figure, untouched: float, effects: list[Effect], suggested: set[str]) -> None:
    """The score that is left, and the likeness to the open network, with each group of layers silenced."""
    left, right = figure.subplots(1, 2, sharey=True)
    names, places = [effect.name for effect in effects], range(len(effects))
    chosen = [len(e.layers) == 1 and e.layers[0].path in suggested for e in effects]
    colours = [_OVER if mark else "0.6" for mark in chosen]
    left.barh(places, [effect.score for effect in effects], color=colours)
    left.axvline(untouched, color="black", linestyle=":", label=f"untouched {untouched:.3f}")
    left.set_yticks(places, names, fontsize=8)
    left.set(xlabel="memorisation score that is left", xlim=(0, 1))
    left.legend(fontsize=8)
    right.barh(places, [1 - effect.same_seed for effect in effects], color=colours)
    right.set(xlabel="change of the first step at the same seed")
    left.invert_yaxis()
    figure.suptitle("Each layer silenced in turn (red: to search)")


def search(figure, traces: dict[str, list[Look]], blocked_below: float) -> None:
    """How the score fell while the selection loosened, for each prompt, and where a prompt counts as blocked."""
    axes = figure.add_subplot()
    for prompt, trace in traces.items():
        axes.plot(
            [look.neurons for look in trace], [look.score for look in trace], marker="o", label=_short(prompt, 40)
        )
    axes.axhline(blocked_below, color="black", linestyle=":", label=f"blocked below {blocked_below:.3f}")
    axes.set(xlabel="neurons silenced", ylabel="memorisation that is left", title="Initial selection")
    axes.set_xlim(left=0)
    axes.legend(fontsize=8)


def mask_bars(axes, mask: NeuronMask) -> None:
    """How many neurons are masked in each layer."""
    paths = list(mask.scales)
    names = [path.partition(".transformer_blocks.")[0] for path in paths]
    axes.barh(range(len(paths)), [len(mask.scales[path]) for path in paths], color=_UNDER)
    axes.set_yticks(range(len(paths)), names, fontsize=8)
    axes.set_ylim(max(len(paths), 4) - 0.5, -0.5)  # one bar shall not fill the panel
    axes.set(xlabel="neurons", title=f"{mask.count} masked neurons")
    axes.xaxis.get_major_locator().set_params(integer=True)


def z_values(axes, values: list[float]) -> None:
    """How far the found neurons stood out on their prompts."""
    axes.hist(values, 20, color=_OVER)
    axes.set(xlabel="z of the found neurons", ylabel="neurons", title="How they stood out")


def attack(figure, losses: dict[str, list[float]], alike: dict[str, list[float]], replicated: float) -> None:
    """The loss of the attack over its steps, and each picture's similarity to its target."""
    left, right = figure.subplots(1, 2)
    for name, values in losses.items():
        left.plot(values, label="picture" if name == "after" else name)
    left.set(xlabel="step of the attack", ylabel="diffusion loss", title="Attack")
    left.legend()
    for place, (name, values) in enumerate(alike.items()):
        right.scatter([place] * len(values), values, color=_OVER if name == "after" else _UNDER, alpha=0.7)
    right.axhline(replicated, color="black", linestyle=":", label="replicated from here on")
    right.set_xticks(range(len(alike)), list(alike))
    right.set(ylim=(-0.05, 1), ylabel="similarity to the target", title="Did it come back?")
    right.legend(fontsize=8)


def _short(text: str, length: int) -> str:
    text = text.replace("$", r"\$")
    return text if len(text) <= length else f"{text[: length - 1]}…"
