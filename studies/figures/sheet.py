"""A figure of labeled images over bars: one column for each way, and what the studies measured of
it below.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..common import host, results

FOLDER = host.ROOT / "docs" / "images" / "figures"
KEY = "Numbers"


@dataclass(frozen=True)
class Bars:
    """What is measured, and the name of each column's number in a result; columns without one stay
    empty.
    """

    title: str
    result: str
    names: Mapping[str, str]

    def numbers(self) -> dict[str, dict]:
        """The numbers by column."""
        found = json.loads((results.RESULTS / f"{self.result}.json").read_text("utf-8"))["numbers"]
        return {column: found[name] for column, name in self.names.items()}


def digest(bars: Sequence[Bars]) -> str:
    """A hash of all numbers that a figure shows."""
    shown = [[each.title, each.numbers()] for each in bars]
    return hashlib.sha256(json.dumps(shown, sort_keys=True).encode()).hexdigest()


def draw(
    columns: Sequence[str], rows: Mapping[str, Sequence[np.ndarray | None]], bars: Sequence[Bars]
):
    """A matplotlib figure; ``rows``: label -> one image uint8 (H, W, 3) a column, None where there
    is none.
    """
    from matplotlib.figure import Figure

    width, height = 1.75 * len(columns) + 1.4, 1.75 * len(rows) + 1.25 * len(bars) + 0.5
    figure = Figure(figsize=(width, height))
    grid = figure.add_gridspec(
        len(rows) + len(bars),
        len(columns),
        height_ratios=[1.75] * len(rows) + [1.1] * len(bars),
        left=1.35 / width,
        right=1 - 0.05 / width,
        top=1 - 0.5 / height,
        bottom=0.05 / height,
        wspace=0.04,
        hspace=0.08,
    )
    for row, (label, images) in enumerate(rows.items()):
        for column, image in enumerate(images):
            axes = figure.add_subplot(grid[row, column])
            axes.set(xticks=[], yticks=[])
            axes.spines[:].set_visible(False)
            if image is not None:
                axes.imshow(image, interpolation="bicubic")
            if row == 0:
                axes.set_title(columns[column], fontsize=10)
            if column == 0:
                axes.set_ylabel(label, fontsize=9, rotation=0, ha="right", va="center")
    for row, measured in enumerate(bars, len(rows)):
        axes = figure.add_subplot(grid[row, :])
        axes.set(xlim=(-0.5, len(columns) - 0.5), xticks=[], yticks=[])
        axes.set_ylabel(measured.title, fontsize=9, rotation=0, ha="right", va="center")
        axes.spines[:].set_visible(False)
        axes.axhline(0, color="#999999", linewidth=0.8)
        _bars(axes, columns, measured.numbers())
    return figure


def _bars(axes, columns: Sequence[str], numbers: dict[str, dict]) -> None:
    top = max(number.get("high", number["value"]) for number in numbers.values())
    low = min(0.0, *(number.get("low", number["value"]) for number in numbers.values()))
    axes.set_ylim(low, 1.35 * top)
    for column, number in numbers.items():
        place, value = list(columns).index(column), number["value"]
        axes.bar(place, value, 0.5, color="#4c78a8")
        if "low" in number:
            axes.vlines(place, number["low"], number["high"], color="black", linewidth=1.2)
        text = f"{value:.2f}" if abs(value) < 10 else f"{value:.0f}"
        axes.text(
            place, max(number.get("high", value), 0) + 0.05 * top, text, ha="center", fontsize=10
        )


def save(figure, name: str, bars: Sequence[Bars]) -> Path:
    """Write docs/images/figures/NAME.png; its metadata name the numbers that it shows."""
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=120, metadata={KEY: digest(bars)})
    FOLDER.mkdir(parents=True, exist_ok=True)
    path = FOLDER / f"{name}.png"
    path.write_bytes(content.getvalue())
    return path
