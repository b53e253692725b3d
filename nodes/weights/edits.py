"""Edits written as text, `beard: 0.8, glasses: -0.5`, and their sum on a point (arXiv 2406.09413, section 3.3)."""

from __future__ import annotations

import math
import re

from .directions import JOINT, along
from .space import Point, Space, Step

EXAMPLE = "beard: 0.8, glasses: -0.5"
LARGEST, RAW = UNITS = ("largest projection of a member", "raw (official files)")


def parse(text: str) -> list[tuple[str, float]]:
    """Names and strengths in their order; raises ValueError with an example for what is no edit."""
    edits = []
    for part in filter(None, (piece.strip() for piece in re.split(r"[,\n;]", text))):
        name, colon, value = part.rpartition(":")
        try:
            strength = float(value)
        except ValueError:
            strength = math.nan
        if not colon or not name.strip() or not math.isfinite(strength):
            raise ValueError(f"'{part}' is no edit: write a name, a colon and a strength, such as {EXAMPLE}.")
        edits.append((name.strip(), strength))
    return edits


def names(text: str) -> list[str]:
    """Names separated by commas or lines."""
    return [part for part in (piece.strip() for piece in re.split(r"[,\n;]", text)) if part]


def edit(point: Point, text: str, keep: str = "", units: str = LARGEST, debiasing: str = JOINT) -> Point:
    """The point with all edits added, one after another: beta + sum of strength_i * n_i.

    Each direction is first made orthogonal to the attributes in ``keep``. Edits add up in coefficients, before weights
    are rebuilt: the weights are a product of factors, so that adding two edited LoRAs is not the same.
    """
    for name, strength in parse(text):
        step = _step(point.space, name, tuple(names(keep)), units == RAW, debiasing)
        if strength:
            point = point.moved(step, strength, f"{point.name}, {name} {strength:+g}")
    return point


def _step(space: Space, *asked) -> Step:
    """The step for a strength of 1, kept with the space: see ``along`` for what is asked."""
    if asked not in space.steps:
        space.steps[asked] = Step(space, along(space, *asked))
    return space.steps[asked]
