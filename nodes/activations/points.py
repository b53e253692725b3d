"""Points on a picture as people write them, or as point editors on the canvas hand them on."""

from __future__ import annotations

import json
import re

import torch

_EXAMPLE = "write one 'x, y' a line, in pixels of the picture, such as 64, 40, or 50%, 30%"
_NUMBER = r"(-?\d+(?:\.\d+)?)\s*(%?)"
_PAIR = re.compile(rf"\(?\s*{_NUMBER}\s*[,\s]\s*{_NUMBER}\s*\)?")


def parse(text: str, size: tuple[int, int]) -> torch.Tensor:
    """Points float32 (P, 2), x and y in pixels of a picture of ``size`` (height, width).

    Reads lines (or parts between semicolons) "x, y", where "50%" is a share of the width or height, or JSON:
    [[x, y], ...] or [{"x": ..., "y": ...}, ...]. Raises ValueError for text that is none of this, for no point, and for
    a point outside of the picture.
    """
    pairs = _from_json(text) if text.strip().startswith(("[{", "[[")) else _from_lines(text, size)
    if not pairs:
        raise ValueError(f"No point is named: {_EXAMPLE}.")
    height, width = size
    for x, y in pairs:
        if not (0 <= x <= width and 0 <= y <= height):
            raise ValueError(f"The point {x:g}, {y:g} is outside of the picture, which is {width} x {height} pixels.")
    return torch.tensor(pairs, dtype=torch.float32).clamp_max(torch.tensor([width - 1.0, height - 1.0]))


def to_text(points: torch.Tensor) -> str:
    """Points as ``parse`` reads them, one a line."""
    return "\n".join(f"{x:.6g}, {y:.6g}" for x, y in points.tolist())


def _from_lines(text: str, size: tuple[int, int]) -> list[tuple[float, float]]:
    pairs = []
    for line in (part.strip() for part in re.split(r"[;\n]+", text)):
        match = _PAIR.fullmatch(line)
        if line and not match:
            raise ValueError(f"'{line}' is no point: {_EXAMPLE}.")
        if match:
            x, y = (float(match[1]), match[2]), (float(match[3]), match[4])
            pairs.append((_pixels(*x, size[1]), _pixels(*y, size[0])))
    return pairs


def _pixels(number: float, unit: str, length: int) -> float:
    return number / 100 * length if unit else number


def _from_json(text: str) -> list[tuple[float, float]]:
    try:
        listed = json.loads(text)
        pairs = [(entry["x"], entry["y"]) if isinstance(entry, dict) else entry for entry in listed]
        return [(float(x), float(y)) for x, y in pairs]
    except (ValueError, TypeError, KeyError):
        raise ValueError(f"These points cannot be read as JSON: {_EXAMPLE}.") from None
