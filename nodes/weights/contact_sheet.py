"""One labeled image of many: an XY sheet where labels say a row and a column, else a label over
each image.
"""

from __future__ import annotations

import math
import textwrap
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_ROW = 6
_MOST = 256
_GRID = 12  # points of the titles of rows and columns, and of the whole
_LETTERS = 34  # in a line of a label at most
# points of the labels' text, which is large where all lines are short
_SMALLEST = 8
_LARGEST = 14


def grid_labels(labels: list[str], columns: int) -> tuple[list[str], list[str]] | None:
    """Titles of columns and of rows when every label is "COLUMN, ROW" of such a grid, as W2W Sweep
    makes them.
    """
    if len(labels) % columns:
        return None
    pairs = [tuple(label.rpartition(", ")[::2]) for label in labels]
    across = [pair[0] for pair in pairs[:columns]]
    down = [pair[1] for pair in pairs[::columns]]
    fits = all(
        pairs[number] == (across[number % columns], down[number // columns])
        for number in range(len(pairs))
    )
    return (across, down) if fits and all(across) and len(down) > 1 else None


def column_count(labels: list[str], columns: int) -> int:
    """The columns of a sheet: as set; for 0 the grid of W2W Sweep, else one row of up to six, else
    near a square.
    """
    if columns:
        return min(columns, len(labels))
    rows = [label.rpartition(", ")[2] for label in labels]
    run = next((number for number, row in enumerate(rows) if row != rows[0]), len(rows))
    if 1 < run < len(rows):
        return run
    return len(rows) if len(rows) <= _ROW else math.ceil(math.sqrt(len(rows)))


def draw_sheet(
    figure: Figure,
    images: list[torch.Tensor],
    labels: list[str],
    columns: int,
    title: str,
    larger: float = 1.0,
) -> None:
    """Images (H, W, 3) on a matplotlib figure, row by row; raises ValueError unless each has a
    label.

    ``larger``: how many times as large as usual the texts over images are.
    """
    if len(images) != len(labels):
        raise ValueError(
            f"There are {len(images)} images and {len(labels)} labels: connect one label for each "
            "image."
        )
    if len(images) > _MOST:
        raise ValueError(f"There are {len(images)} images: a sheet takes up to {_MOST}.")
    rows = -(-len(images) // columns)
    titles = grid_labels(labels, columns)
    panels = figure.subplots(rows, columns, squeeze=False).flatten()
    for axes in panels[len(images) :]:
        axes.set_axis_off()
    wrapped = [
        [line for part in label.split("\n") for line in textwrap.wrap(part, _LETTERS)]
        for label in labels
    ]
    longest = max((len(line) for lines in wrapped for line in lines), default=1)
    points = min(max(_SMALLEST * _LETTERS / longest, _SMALLEST), _LARGEST)
    for number, (axes, image, lines) in enumerate(zip(panels, images, wrapped, strict=False)):
        axes.imshow(image.clamp(0, 1).float().cpu().numpy())
        axes.set(xticks=[], yticks=[])
        if titles is None:
            axes.set_title("\n".join(lines), fontsize=points * larger)
        elif number < columns:
            axes.set_title(titles[0][number], fontsize=_GRID * larger)
        if titles is not None and number % columns == 0:
            axes.set_ylabel(titles[1][number // columns], fontsize=_GRID * larger)
    if title:
        figure.suptitle(title, fontsize=_GRID * larger)
