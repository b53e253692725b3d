"""Names with strengths written as text, `beard: 0.8, glasses: -0.5`: what panels of sliders read
and write. `beard = 0.8` and `beard 0.8` say the same.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

EXAMPLE = "beard: 0.8, glasses: -0.5"
WORDS_EXAMPLE = "brown hair -> red hair: 2, glasses: 1"
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", re.ASCII | re.IGNORECASE)
_COMPONENT = re.compile(r"PC\s+\d+", re.IGNORECASE)  # a name with a number, without a strength


def parse(text: str, example: str = EXAMPLE) -> list[tuple[str, float]]:
    """Names and strengths in their order; raises ValueError with the example for anything else."""
    edits = []
    for part in parse_names(text):
        name, value = _halves(part)
        strength = float(value) if _NUMBER.fullmatch(value) else math.nan
        if not name or not math.isfinite(strength):
            raise ValueError(
                f"{part!r} is not an edit: write a name, a colon and a strength, such as {example}."
            )
        edits.append((name, strength))
    return edits


def _halves(part: str) -> tuple[str, str]:
    """Name and strength, between which stand a colon, "=" or a blank; nothing where none does."""
    if _COMPONENT.fullmatch(part):
        return "", ""
    for mark in (":", "="):
        if mark in part:
            name, _, value = part.rpartition(mark)
            return name.strip(), value.strip()
    words = part.rsplit(maxsplit=1)
    return (words[0], words[1]) if len(words) == 2 else ("", "")


def matching_name(written: str, names: Iterable[str]) -> str | None:
    """The name that is written so, or else so but for upper and lower case; None when none or
    several are.
    """
    names = list(names)
    if written in names:
        return written
    alike = [name for name in names if name.lower() == written.lower()]
    return alike[0] if len(alike) == 1 else None


def parse_names(text: str) -> list[str]:
    """Names separated by commas or lines."""
    return [part for part in (piece.strip() for piece in re.split(r"[,\n;]", text)) if part]
