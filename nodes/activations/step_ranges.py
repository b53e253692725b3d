"""Which steps of a sampling run: ``"0, 5-9, 50%, last"``."""

from __future__ import annotations

import re
from collections.abc import Callable

EXAMPLE = "all, steps such as 0, 5-9, last, or fractions of the run such as 25%, 50%"
_NUMBER, _RANGE, _PERCENT = re.compile(r"\d+"), re.compile(r"(\d+)\s*-\s*(\d+)"), re.compile(r"(\d+(?:\.\d+)?)\s*%")

StepPredicate = Callable[[int, int], bool]


def parse_steps(text: str) -> StepPredicate:
    """A predicate of step (from 0) and number of steps: whether the text selects that step.

    A fraction of the run is the step that contains it: 0% the first, 100% the last. Raises ValueError for other text.
    """
    predicates = [_parse(part.strip().lower(), text) for part in re.split(r"[,;\n]+", text) if part.strip()]
    if not predicates:
        raise ValueError(f"No step is selected. Enter {EXAMPLE}.")
    return lambda step, steps: any(selects(step, steps) for selects in predicates)


def _parse(part: str, text: str) -> StepPredicate:
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
        fraction = float(match[1]) / 100
        return lambda step, steps: step == min(int(fraction * steps), steps - 1)
    raise ValueError(f"'{part}' in '{text.strip()}' is not a step. Enter {EXAMPLE}.")
