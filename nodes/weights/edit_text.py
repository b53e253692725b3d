"""Edits written as text, `beard: 0.8, glasses: -0.5`, and their sum on a point (arXiv 2406.09413, section 3.3)."""

from __future__ import annotations

import math
import re
from enum import StrEnum
from functools import partial

from .directions import Debiasing, direction_step
from .space import Point

EXAMPLE = "beard: 0.8, glasses: -0.5"


class Units(StrEnum):
    """What a strength of 1 is: the largest projection of a member, or the vector as fitted (official notebooks)."""

    MAX_PROJECTION = "max_projection"
    RAW = "raw"


def parse(text: str) -> list[tuple[str, float]]:
    """Names and strengths in their order; raises ValueError with an example for anything else."""
    edits = []
    for part in parse_names(text):
        name, colon, value = part.rpartition(":")
        try:
            strength = float(value)
        except ValueError:
            strength = math.nan
        if not colon or not name.strip() or not math.isfinite(strength):
            raise ValueError(f"'{part}' is not an edit: write a name, a colon and a strength, such as {EXAMPLE}.")
        edits.append((name.strip(), strength))
    return edits


def parse_names(text: str) -> list[str]:
    """Names separated by commas or lines."""
    return [part for part in (piece.strip() for piece in re.split(r"[,\n;]", text)) if part]


def edit(
    point: Point,
    text: str,
    preserved: str = "",
    units: str = Units.MAX_PROJECTION,
    debiasing: str = Debiasing.JOINT,
) -> Point:
    """The point with all edits added in order: beta + sum of strength_i * n_i.

    Each direction is first made orthogonal to the ``preserved`` attributes. Edits add up in coefficients, before
    weights are rebuilt: the weights are a product of factors, so adding two edited LoRAs is not the same.
    """
    space, names = point.space, tuple(parse_names(preserved))
    for name, strength in parse(text):
        key = (name, names, units == Units.RAW, debiasing)
        step = space.cached_step(key, partial(direction_step, space, *key))
        if strength:
            point = point.step_along(step, strength, f"{point.name}, {name} {strength:+g}")
    return point
