"""Points on an image as text: lines in pixels or percent, or the JSON of point editors on the
canvas.
"""

from __future__ import annotations

import json
import re

import torch

_EXAMPLE = "Enter one 'x, y' per line, in pixels of the image, such as 64, 40, or 50%, 30%"
_NUMBER = r"(-?\d+(?:\.\d+)?) ?(%?)"
_PAIR = re.compile(rf"\(? ?{_NUMBER} ?[, ] ?{_NUMBER} ?\)?")
_MAX_TEXT = 100_000
_MAX_LINE = 80


def parse(text: str, size: tuple[int, int]) -> torch.Tensor:
    """Points float32 (P, 2), x and y in pixels of an image of ``size`` (height, width).

    Reads lines (or parts between semicolons) "x, y", where "50%" is a fraction of the width or
    height, or JSON: [[x, y], ...] or [{"x": ..., "y": ...}, ...]. Takes time linear in the length
    of the text. Raises ValueError for other text, for no point, and for a point outside of the
    image.
    """
    if len(text) > _MAX_TEXT:
        raise ValueError(
            f"The points have {len(text)} characters, and at most {_MAX_TEXT} are allowed."
        )
    pairs = _from_json(text) if text.strip().startswith(("[{", "[[")) else _from_lines(text, size)
    if not pairs:
        raise ValueError(f"There is no point. {_EXAMPLE}.")
    height, width = size
    for x, y in pairs:
        if not (0 <= x <= width and 0 <= y <= height):
            raise ValueError(
                f"The point {x:g}, {y:g} is outside of the image, which has {width} x {height} "
                "pixels."
            )
    return torch.tensor(pairs, dtype=torch.float32).clamp_max(
        torch.tensor([width - 1.0, height - 1.0])
    )


def to_text(points: torch.Tensor) -> str:
    """Points in the form that ``parse`` reads, one per line."""
    return "\n".join(f"{x:.6g}, {y:.6g}" for x, y in points.tolist())


def _from_lines(text: str, size: tuple[int, int]) -> list[tuple[float, float]]:
    pairs = []
    for line in (
        " ".join(part.split()) for part in re.split(r"[;\n]+", text)
    ):  # single spaces: the pattern is linear
        if not line:
            continue
        match = _PAIR.fullmatch(line) if len(line) <= _MAX_LINE else None
        if not match:
            raise ValueError(f"'{line[:_MAX_LINE]}' is not a point. {_EXAMPLE}.")
        numbers = zip((match[1], match[3]), (match[2], match[4]), (size[1], size[0]), strict=True)
        x, y = (
            float(number) / 100 * side if unit else float(number) for number, unit, side in numbers
        )
        pairs.append((x, y))
    return pairs


def _from_json(text: str) -> list[tuple[float, float]]:
    try:
        pairs = [
            (entry["x"], entry["y"]) if isinstance(entry, dict) else entry
            for entry in json.loads(text)
        ]
        return [(float(x), float(y)) for x, y in pairs]
    except (ValueError, TypeError, KeyError, RecursionError):
        raise ValueError(f"These points are not valid JSON. {_EXAMPLE}.") from None
