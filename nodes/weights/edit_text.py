"""Edits written as text, `beard: 0.8, glasses: -0.5`, and their sum on a point (arXiv 2406.09413,
section 3.3).
"""

from __future__ import annotations

from ..common.named_strengths import parse, parse_names
from .directions import Debiasing, Units, direction_steps
from .space import Point


def edit(
    point: Point,
    text: str,
    preserved: str = "",
    units: str = Units.MAX_PROJECTION,
    debiasing: str = Debiasing.JOINT,
) -> Point:
    """The point with all edits added in order: beta + sum of strength_i * n_i.

    Each direction is first made orthogonal to the ``preserved`` attributes. Edits add up in
    coefficients, before weights are rebuilt: the weights are a product of factors, so adding two
    edited LoRAs is not the same.
    """
    space = point.space
    names = tuple(parse_names(preserved))
    edits = parse(text)
    if not edits:
        return point
    steps = space.cached_steps(
        [(name, names, units == Units.RAW, debiasing) for name, _ in edits],
        lambda keys: direction_steps(space, [key[0] for key in keys], *keys[0][1:]),
    )
    applied = [
        (name, strength, step)
        for (name, strength), step in zip(edits, steps, strict=True)
        if strength
    ]
    if not applied:
        return point
    labels = [f"{name} {strength:+g}" for name, strength, _ in applied]
    return point.with_steps(
        [(step, strength) for _, strength, step in applied], ", ".join([point.name, *labels])
    )
