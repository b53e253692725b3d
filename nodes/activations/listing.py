"""The catalog of a network as a table and as a drawing."""

from __future__ import annotations

import re

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont

from . import published
from .entries import Entry
from .published import architecture

_CELL, _GAP, _TEXT, _MARGIN, _LEGEND = 11, 3, 11, 16, 26
_COLOURS = {"chosen": (230, 97, 1), "filter": (94, 160, 90), "pool": (120, 160, 210), "other": (215, 215, 215)}
_WORDS = {"chosen": "chosen here", "filter": "in the paper's filter", "pool": "in the paper's pool", "other": "other"}
_PLACE = re.compile(
    r"(down|mid|up)(-level\d+)?(-(repeat\d+|vit|downsampler|upsampler))?|vit-(block|refiner)\d+"
)


def table(entries: list[Entry], chosen: set[str], size: tuple[int, int]) -> str:
    """One line an activation: ID, module, channels x height x width at a latent of ``size``, marks, published mIoU."""
    rows = _published(entries)
    lines = [
        f"{len(entries)} activations, {len(chosen)} chosen; model: {architecture(entries) or 'not one of the paper'}"
    ]
    for entry in entries:
        marks = ["chosen"] if entry.id in chosen else []
        row = rows.get(entry.id, {})
        marks += [flag for flag in published.FLAGS if row.get(flag) == "1"]
        marks += [f"{name}={value}" for name, value in row.items() if name not in published.FLAGS and value]
        lines.append("  ".join([entry.id, entry.module or "(network)", _shape(entry, size), *marks]))
    return "\n".join(lines)


def network_map(entries: list[Entry], chosen: set[str]) -> torch.Tensor:
    """The network as a U (1, H, W, 3): down-stage left, up-stage right, a line a module, a box an activation.

    A transformer is one column, its first block at the bottom.
    """
    columns = {"down": [], "mid": [], "up": []}
    for entry in entries:
        if place := place_of(entry):
            column = columns[place.split("-")[0].replace("vit", "up")]
            if not column or column[-1][0] != place:
                column.append((place, []))
            column[-1][1].append(entry)
    rows = _published(entries)
    # The stages as an U: the down-stage begins at the top and the up-stage ends there.
    blocks = {"down": columns["down"], "mid": columns["mid"], "up": columns["up"][::-1]}
    depth = max(_height(blocks["down"]), _height(blocks["up"]))
    width = {stage: _width(lines) for stage, lines in blocks.items()}
    total = sum(width.values()) + 4 * _MARGIN
    canvas = Image.new("RGB", (total, max(depth, 0) + _height(blocks["mid"]) + _LEGEND + 3 * _MARGIN), (255, 255, 255))
    draw = ImageDraw.Draw(canvas)
    left = _MARGIN
    for stage, lines in blocks.items():
        top = _LEGEND + _MARGIN + (depth + _MARGIN if stage == "mid" else 0)
        for place, members in lines:
            top = _draw_line(draw, left, top, place, members, chosen, rows)
        left += width[stage] + _MARGIN
    _legend(draw)
    return torch.from_numpy(np.asarray(canvas, dtype=np.float32) / 255)[None]


def place_of(entry: Entry) -> str | None:
    """The module of the network that an activation is in, such as up-level1-repeat0; None for the network itself."""
    found = _PLACE.match(entry.id)
    return found[0] if found else None


_PER_LINE = 20


def _height(lines: list) -> int:
    return sum(_TEXT + _GAP + -(-len(members) // _PER_LINE) * (_CELL + _GAP) + 2 * _GAP for _, members in lines)


def _width(lines: list) -> int:
    longest = max((min(len(members), _PER_LINE) for _, members in lines), default=0)
    return max(longest * (_CELL + _GAP), 150)


def _draw_line(draw, left: int, top: int, place: str, members: list[Entry], chosen: set[str], rows: dict) -> int:
    sizes = sorted({entry.scale for entry in members})
    draw.text((left, top), f"{place}  1/{sizes[0]}", fill=(40, 40, 40), font=ImageFont.load_default(_TEXT))
    top += _TEXT + _GAP
    for index, entry in enumerate(members):
        x = left + index % _PER_LINE * (_CELL + _GAP)
        y = top + index // _PER_LINE * (_CELL + _GAP)
        draw.rectangle([x, y, x + _CELL, y + _CELL], fill=_COLOURS[_mark(entry, chosen, rows)])
    return top + -(-len(members) // _PER_LINE) * (_CELL + _GAP) + 2 * _GAP


def _mark(entry: Entry, chosen: set[str], rows: dict) -> str:
    if entry.id in chosen:
        return "chosen"
    row = rows.get(entry.id, {})
    return next((flag for flag in ("filter", "pool") if row.get(flag) == "1"), "other")


def _legend(draw) -> None:
    font, left = ImageFont.load_default(_TEXT), _MARGIN
    for mark, colour in _COLOURS.items():
        draw.rectangle([left, _MARGIN // 2, left + _CELL, _MARGIN // 2 + _CELL], fill=colour)
        draw.text((left + _CELL + _GAP, _MARGIN // 2 - 1), _WORDS[mark], fill=(40, 40, 40), font=font)
        left += _CELL + 4 * _GAP + int(font.getlength(_WORDS[mark]))


def _published(entries: list[Entry]) -> dict[str, dict[str, str]]:
    name = architecture(entries)
    return published.table(name) if name else {}


def _shape(entry: Entry, size: tuple[int, int]) -> str:
    height, width = (-(-length // entry.scale) for length in size)
    if entry.members:
        return f"tokens x {height} x {width}"
    if entry.kind != "map":
        return f"{entry.channels}x{height}x{width}"
    positions = height * width
    return f"heads x {positions} x {positions if entry.id.endswith('self-map') else 'tokens'}"
