"""Plots of all activations in forward order: scores, filters, and the three properties."""

from __future__ import annotations

from pathlib import Path

from .measure import RECIPE, Found

_STAGES = {"unet": "#888888", "down": "#4c78a8", "mid": "#54a24b", "up": "#e66101"}


def draw(found: Found, folder: Path) -> None:
    """Write scores.png, properties.png and levels.png."""
    _scores(found).savefig(folder / "scores.png")
    _properties(found).savefig(folder / "properties.png")
    _levels(found).savefig(folder / "levels.png")


def _figure(width: float, height: float):
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), dpi=100, layout="constrained")


def _scores(found: Found):
    figure = _figure(13, 7)
    kept = found.filters["general rule"]
    rows = (
        (f"PCK@0.1, t = {RECIPE}", [found.hits[RECIPE][id_].mean() for id_ in found.ids]),
        ("few-shot mIoU", [found.miou[id_] for id_ in found.ids]),
    )
    for axis, (title, values) in zip(figure.subplots(2, 1, sharex=True), rows, strict=True):
        bars = axis.bar(
            range(len(values)), values, color=[_STAGES[id_.split("-")[0]] for id_ in found.ids]
        )
        for bar, id_ in zip(bars, found.ids, strict=True):
            bar.set_alpha(1.0 if id_ in kept else 0.3)
        axis.set_title(f"{title}; full color: kept by the general rule", loc="left", fontsize=10)
        axis.grid(axis="y", alpha=0.3)
        axis.margins(x=0.005)
    _names(axis, found.ids)
    return figure


def _properties(found: Found):
    figure = _figure(13, 8)
    for axis, name in zip(
        figure.subplots(3, 1, sharex=True), ("noise", "granularity", "locality"), strict=True
    ):
        values = [getattr(found.quality[id_], name) for id_ in found.ids]
        axis.bar(
            range(len(values)), values, color=[_STAGES[id_.split("-")[0]] for id_ in found.ids]
        )
        axis.set_title(name, loc="left", fontsize=10)
        axis.grid(axis="y", alpha=0.3)
        axis.margins(x=0.005)
    _names(axis, found.ids)
    return figure


def _levels(found: Found):
    figure = _figure(7, 4)
    axis, levels = figure.subplots(), sorted(found.hits)
    for name in found.sets:
        axis.plot(
            levels,
            [found.set_hits[t][name].mean() for t in levels],
            marker="o",
            label=f"set {name}",
        )
    axis.plot(
        levels,
        [max(hits.mean() for hits in found.hits[t].values()) for t in levels],
        "--",
        label="best single",
    )
    axis.axhline(found.guess.mean(), color="#888888", label="same place, no model")
    axis.set_xlabel("t")
    axis.set_ylabel("PCK@0.1")
    axis.grid(alpha=0.3)
    axis.legend()
    return figure


def _names(axis, ids: list[str]) -> None:
    axis.set_xticks(range(len(ids)), ids, rotation=90, fontsize=4)
