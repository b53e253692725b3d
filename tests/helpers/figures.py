"""What a matplotlib figure shows, read off before it becomes an image."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import torch
from glassbox.nodes.common.loss_curve import SMOOTH
from matplotlib.collections import LineCollection, PathCollection
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle


def new(width: float = 8, height: float = 5) -> Figure:
    """An empty figure, as the pack's nodes hand one to what draws."""
    return Figure(figsize=(width, height), layout="constrained")


@dataclass
class Panel:
    """One pair of axes. Numbers are as drawn; what a line, bar or point is called is in
    ``legend``.
    """

    title: str
    xlabel: str
    ylabel: str
    xlim: tuple[float, float]
    ylim: tuple[float, float]
    scales: tuple[str, str]
    visible: bool
    #: Label (matplotlib's own "_child0" where there is none) -> points (n, 2).
    lines: dict[str, np.ndarray] = field(default_factory=dict)
    styles: dict[str, str] = field(default_factory=dict)
    points: dict[str, np.ndarray] = field(default_factory=dict)
    #: One (left, bottom, width, height) a bar, and its color.
    bars: np.ndarray = field(default_factory=lambda: np.empty((0, 4)))
    colors: list[str] = field(default_factory=list)
    #: Of vertical segments their two ends each, and of filled areas the greatest height at each
    #: place, from 0.
    segments: list[np.ndarray] = field(default_factory=list)
    areas: list[list[float]] = field(default_factory=list)
    #: Width and color of the frame.
    frame: tuple[float, str] = (0, "")
    images: list[np.ndarray] = field(default_factory=list)
    legend: list[str] = field(default_factory=list)
    xticks: list[str] = field(default_factory=list)
    yticks: list[str] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)

    def verticals(self) -> dict[str, float]:
        """Label -> place of each line that crosses the panel from below."""
        return {
            name: float(xy[0, 0])
            for name, xy in self.lines.items()
            if xy[0, 0] == xy[-1, 0] and len(xy) == 2
        }

    def horizontals(self) -> dict[str, float]:
        """Label -> height of each line that crosses the panel from the left."""
        return {
            name: float(xy[0, 1])
            for name, xy in self.lines.items()
            if len(xy) == 2 and xy[0, 1] == xy[1, 1] and tuple(xy[:, 0]) == (0, 1)
        }


@dataclass
class Drawing:
    """A whole figure: its panels in the order in which they were made."""

    title: str
    panels: list[Panel]
    legend: list[str]


def read(figure: Figure) -> Drawing:
    """What a figure shows."""
    return Drawing(
        figure.get_suptitle(),
        [_panel(axes) for axes in figure.axes],
        [text.get_text() for legend in figure.legends for text in legend.get_texts()],
    )


def _panel(axes) -> Panel:
    legend = axes.get_legend()
    panel = Panel(
        axes.get_title() or axes.get_title(loc="left"),
        axes.get_xlabel(),
        axes.get_ylabel(),
        axes.get_xlim(),
        axes.get_ylim(),
        (axes.get_xscale(), axes.get_yscale()),
        axes.axison,
        legend=[text.get_text() for text in legend.get_texts()] if legend else [],
        xticks=[text.get_text() for text in axes.get_xticklabels()],
        yticks=[text.get_text() for text in axes.get_yticklabels()],
        texts=[text.get_text() for text in axes.texts],
    )
    for line in axes.lines:
        panel.lines[line.get_label()] = np.asarray(line.get_xydata(), dtype=float)
        panel.styles[line.get_label()] = line.get_linestyle()
    for drawn in axes.collections:
        if isinstance(drawn, LineCollection):
            panel.segments += [np.asarray(one) for one in drawn.get_segments()]
        elif isinstance(drawn, PathCollection):
            panel.points[drawn.get_label()] = np.asarray(drawn.get_offsets(), dtype=float)
        else:
            panel.areas += [_heights(path.vertices) for path in drawn.get_paths()]
    bars = [patch for patch in axes.patches if isinstance(patch, Rectangle)]
    panel.bars = np.array(
        [(*bar.get_xy(), bar.get_width(), bar.get_height()) for bar in bars]
    ).reshape(-1, 4)
    panel.colors = [to_hex(bar.get_facecolor()) for bar in bars]
    spine = axes.spines["left"]
    panel.frame = (spine.get_linewidth(), to_hex(spine.get_edgecolor()))
    panel.images = [
        np.ma.filled(np.ma.asarray(image.get_array(), dtype=float), math.nan)
        for image in axes.images
    ]
    return panel


def _heights(outline: np.ndarray) -> list[float]:
    heights: dict[float, float] = {}
    for x, y in outline:
        heights[float(x)] = max(heights.get(float(x), 0.0), float(y))
    return [heights[x] for x in sorted(heights)]


def drawn(draw, *given, size=(8, 5), axes=False):
    """What a function of the pack draws on an empty figure; ``axes``: it takes a panel of one."""
    figure = new(*size)
    draw(figure.add_subplot() if axes else figure, *given)
    return read(figure)


def pairs(xs, ys):
    return np.stack([np.asarray(list(one), dtype=float) for one in (xs, ys)], axis=1)


def assert_line(panel, label, xs, ys):
    np.testing.assert_allclose(panel.lines[label], pairs(xs, ys), rtol=1e-6, err_msg=label)


def assert_bars(panel, lefts, heights, width=0.8):
    """Upright bars of one width around or from their places."""
    np.testing.assert_allclose(panel.bars[:, 0], lefts, atol=1e-6)
    np.testing.assert_allclose(panel.bars[:, 3], heights, rtol=1e-6)
    np.testing.assert_allclose(panel.bars[:, 2], width, rtol=1e-6)


def assert_flat_bars(panel, widths):
    """Bars to the right of 0, one below the other."""
    np.testing.assert_allclose(panel.bars[:, 0], 0, atol=1e-9)
    np.testing.assert_allclose(
        panel.bars[:, 1] + panel.bars[:, 3] / 2, range(len(widths)), atol=1e-6
    )
    np.testing.assert_allclose(panel.bars[:, 2], widths, rtol=1e-6)
    assert panel.ylim[0] > panel.ylim[1], "the first one is above"


def image(number, height=3, width=5):
    return torch.rand(height, width, 3, generator=torch.Generator().manual_seed(number))


def running(values):
    return [
        sum(values[max(0, i + 1 - SMOOTH) : i + 1]) / min(i + 1, SMOOTH) for i in range(len(values))
    ]


def wavy(count, seed=0):
    return np.random.default_rng(seed).uniform(0.1, 0.9, count).tolist()
