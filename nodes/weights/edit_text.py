"""Edits written as text, `beard: 0.8, glasses: -0.5`, and their sum on a point (arXiv 2406.09413, section 3.3)."""

from __future__ import annotations

from functools import partial

from ..common.named_strengths import parse, parse_names
from .directions import Debiasing, Units, direction_step
from .space import Point


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
