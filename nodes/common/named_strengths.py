"""Names with strengths written as text, `beard: 0.8, glasses: -0.5`: what panels of sliders read and write."""

from __future__ import annotations

import math
import re

EXAMPLE = "beard: 0.8, glasses: -0.5"


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
            raise ValueError(f"{part!r} is not an edit: write a name, a colon and a strength, such as {EXAMPLE}.")
        edits.append((name.strip(), strength))
    return edits


def parse_names(text: str) -> list[str]:
    """Names separated by commas or lines."""
    return [part for part in (piece.strip() for piece in re.split(r"[,\n;]", text)) if part]
