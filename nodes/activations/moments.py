"""Which steps of a sampling run: ``"0, 5-9, 50%, last"``."""

from __future__ import annotations

import re
from collections.abc import Callable

EXAMPLE = "all, or steps such as 0, 5-9, last, or shares of the run such as 25%, 50%"
_NUMBER, _RANGE, _PERCENT = re.compile(r"\d+"), re.compile(r"(\d+)\s*-\s*(\d+)"), re.compile(r"(\d+(?:\.\d+)?)\s*%")

Chooser = Callable[[int, int], bool]


def chooser(text: str) -> Chooser:
    """A function (step from 0, number of steps) -> whether the text chooses it.

    Raises ValueError for what it cannot read.
    A share of the run means the step that holds it: 0% the first, 100% the last.
    """
    wishes = [_wish(part.strip().lower(), text) for part in re.split(r"[,;\n]+", text) if part.strip()]
    if not wishes:
        raise ValueError(f"No step is named: write {EXAMPLE}.")
    return lambda step, steps: any(wish(step, steps) for wish in wishes)


def _wish(part: str, text: str) -> Chooser:
    if part == "all":
        return lambda step, steps: True
    if part == "last":
        return lambda step, steps: step == steps - 1
    if _NUMBER.fullmatch(part):
        return lambda step, steps: step == int(part)
    if match := _RANGE.fullmatch(part):
        first, last = int(match[1]), int(match[2])
        return lambda step, steps: first <= step <= last
    if (match := _PERCENT.fullmatch(part)) and float(match[1]) <= 100:
        share = float(match[1]) / 100
        return lambda step, steps: step == min(int(share * steps), steps - 1)
    raise ValueError(f"'{part}' in '{text.strip()}' names no step: write {EXAMPLE}.")
