"""One sheet over a field of the size metadata: its values, their conditioning entries, and the
labeled images.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

import torch

from .size_metadata import FieldGroup

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MOST = 12


class SweptField(StrEnum):
    """What changes from column to column."""

    ORIGINAL_SIZE = "original_size"
    TARGET_SIZE = "target_size"
    CROP_LEFT = "crop_left"
    CROP_TOP = "crop_top"

    @property
    def gated_fields(self) -> FieldGroup:
        """The fields that a gate on this one acts on."""
        groups = {
            SweptField.ORIGINAL_SIZE: FieldGroup.ORIGINAL_SIZE,
            SweptField.TARGET_SIZE: FieldGroup.ORIGINAL_AND_TARGET_SIZE,
        }
        return groups.get(self, FieldGroup.SIZES_AND_CROP)


def parse_multiples(text: str) -> list[float]:
    """Comma-separated multiples of the image's side, 0 to 16; raises ValueError for anything
    else.
    """
    try:
        values = [float(part) for part in text.split(",") if part.strip()]
    except ValueError:
        values = []
    if not 1 <= len(values) <= _MOST or not all(0 <= value <= 16 for value in values):
        raise ValueError(
            f"values is {text!r}: write 1 to {_MOST} numbers from 0 to 16, comma-separated: 0.25, "
            "0.5, 1, 2."
        )
    return values


def swept_entries(field: str, multiple: float, canvas: tuple[int, int]) -> dict[str, float]:
    """The conditioning entries of one column, for an image of `canvas` = (width, height) pixels."""
    width, height = (max(round(multiple * side), 0) for side in canvas)
    match SweptField(field):
        case SweptField.ORIGINAL_SIZE:
            return {"width": max(width, 1), "height": max(height, 1)}
        case SweptField.TARGET_SIZE:
            return {"target_width": max(width, 1), "target_height": max(height, 1)}
        case SweptField.CROP_LEFT:
            return {"crop_w": width}
    return {"crop_h": height}


def draw_sheet(
    figure: Figure, rows: dict[str, list[torch.Tensor]], columns: list[str], title: str
) -> None:
    """Images (H, W, 3) in labeled rows and columns on a matplotlib figure."""
    panels = figure.subplots(len(rows), len(columns), squeeze=False)
    for line, (name, images) in zip(panels, rows.items(), strict=True):
        for axes, image in zip(line, images, strict=True):
            axes.imshow(image.clamp(0, 1).float().numpy())
            axes.set(xticks=[], yticks=[])
        line[0].set_ylabel(name)
    for axes, column in zip(panels[0], columns, strict=True):
        axes.set_title(column)
    figure.suptitle(title)
