"""One number for each activation: as a bar chart in forward order, as a table, as a list of the
best IDs.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_BEST, _OTHER = "#e66101", "#b8c4d0"
# of a bar; bars that count for the width
_INCHES = 0.16
_MOST_BARS = 120
# names on an axis at most, and the points of their text
_FEW = 24
_NAME = 9
_SEEN = 100  # a family is named that takes this part of the axis or more


def chart_width(count: int) -> int:
    """Width in pixels of the figure for a number of activations."""
    return max(700, min(round(count * _INCHES * 100), round(_MOST_BARS * _INCHES * 100)))


def name_axis(axis: Any, ids: list[str]) -> None:
    """Name the bars of a matplotlib axis: each, where they are few, else the families of layers
    that they belong to.

    A family is what follows each other with the same first two parts of the ID, such as up-level1.
    """
    if len(ids) <= _FEW:
        axis.set_xticks(range(len(ids)), ids, rotation=30, ha="right", fontsize=_NAME)
        return
    families = [
        (name, len(list(group)))
        for name, group in itertools.groupby("-".join(id_.split("-")[:2]) for id_ in ids)
    ]
    starts = [0, *itertools.accumulate(count for _, count in families)]
    for start in starts[1:-1]:
        for one in axis.figure.axes:
            one.axvline(start - 0.5, color="#909090", linewidth=0.6)
    named = [
        (start + (count - 1) / 2, name)
        for start, (name, count) in zip(starts, families, strict=False)
        if count * _SEEN >= len(ids)
    ]
    middles = [place for place, _ in named]
    names = [name for _, name in named]
    step = -(-len(names) // _FEW)
    axis.set_xticks(middles[::step], names[::step], rotation=30, ha="right", fontsize=_NAME)


def best(values: dict[str, float], count: int) -> list[str]:
    """The IDs with the largest values, largest first; of equal values the first in forward
    order.
    """
    return sorted(values, key=lambda id_: -values[id_])[:count]


def draw_bars(
    figure: Figure,
    charts: dict[str, dict[str, float]],
    highlighted: Iterable[str],
    baseline: float | None,
) -> None:
    """One chart per title on a matplotlib figure, one above the other, IDs in forward order.

    Some IDs are highlighted; a dashed line lies at ``baseline``.
    """
    highlighted = set(highlighted)
    axes = figure.subplots(len(charts), 1, sharex=True, squeeze=False)[:, 0]
    for axis, (title, values) in zip(axes, charts.items(), strict=True):
        colors = [_BEST if id_ in highlighted else _OTHER for id_ in values]
        axis.bar(range(len(values)), list(values.values()), color=colors, width=0.8)
        if baseline is not None:
            axis.axhline(baseline, color="#404040", linestyle="--", linewidth=1)
        axis.set_title(title, loc="left", fontsize=10)
        axis.grid(axis="y", alpha=0.3)
        axis.margins(x=0.005)
    name_axis(axes[-1], list(values))


def draw_lines(figure: Figure, charts: dict[str, dict[str, dict[str, float]]]) -> None:
    """One chart per title as ``draw_bars``, each with a named line for several models, first dark,
    last light.
    """
    from matplotlib import colormaps

    axes = figure.subplots(len(charts), 1, sharex=True, squeeze=False)[:, 0]
    for axis, (title, models) in zip(axes, charts.items(), strict=True):
        for number, (name, values) in enumerate(models.items()):
            color = colormaps["viridis"](0.9 * number / max(len(models) - 1, 1))
            axis.plot(list(values.values()), color=color, linewidth=1.5, label=name)
        axis.set_title(title, loc="left", fontsize=10)
        axis.grid(axis="y", alpha=0.3)
        axis.margins(x=0.005)
    axes[0].legend(fontsize=8)
    name_axis(axes[-1], list(values))


def table(columns: dict[str, dict[str, float]]) -> str:
    """One line per activation in forward order, one column per name, each number with three
    decimals.
    """
    ids = list(next(iter(columns.values())))
    width = max(map(len, ids))
    lines = ["  ".join([f"{'ID':{width}}", *(f"{name:>6}" for name in columns)])]
    for id_ in ids:
        numbers = [f"{values[id_]:{max(len(name), 6)}.3f}" for name, values in columns.items()]
        lines.append("  ".join([f"{id_:{width}}", *numbers]))
    return "\n".join(lines)
