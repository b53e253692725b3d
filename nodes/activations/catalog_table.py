"""The catalog of a network as a table, as a drawing, and as plain data for the network map on the
canvas.
"""

from __future__ import annotations

import re

import torch
from PIL import Image, ImageDraw, ImageFont

from ..common.pil_images import from_pil
from . import paper_tables, select_ids
from .activation_spec import ActivationSpec, Kind
from .overlays import viridis
from .paper_tables import architecture

_CELL = 11
_GAP = 3
_TEXT = 11
_MARGIN = 16
_LEGEND = 26
_CELLS_PER_LINE = 20
_COLORS = {
    "chosen": (230, 97, 1),
    "filter": (94, 160, 90),
    "pool": (120, 160, 210),
    "other": (215, 215, 215),
}
_LABELS = {
    "chosen": "selected",
    "filter": "in the paper's filter",
    "pool": "in the paper's pool",
    "other": "other",
}
_PLACE = re.compile(
    r"(down|mid|up)(-level\d+)?(-(repeat\d+|vit|downsampler|upsampler))?|vit-(block|refiner)\d+"
)


def table(specs: list[ActivationSpec], chosen: set[str], size: tuple[int, int]) -> str:
    """One line per activation: ID, module, channels x height x width at a latent of ``size``,
    marks, published mIoU.
    """
    rows = _published(specs)
    lines = [
        f"{len(specs)} activations, {len(chosen)} selected; model: "
        f"{architecture(specs) or 'not in the paper'}"
    ]
    for spec in specs:
        marks = ["selected"] if spec.id in chosen else []
        row = rows.get(spec.id, {})
        marks += [flag for flag in paper_tables.FLAGS if row.get(flag) == "1"]
        marks += [
            f"{name}={value}"
            for name, value in row.items()
            if name not in paper_tables.FLAGS and value
        ]
        lines.append("  ".join([spec.id, spec.module or "(network)", _shape(spec, size), *marks]))
    return "\n".join(lines)


def outline(specs: list[ActivationSpec]) -> dict:
    """The catalog as plain data.

    ``activations``: [ID, channels or None, scale, "filter", "pool" or ""] in forward order;
    ``groups``: the module of each ("" for the network itself) with the indices of its activations;
    ``presets``: their indices by preset, or a sentence where a preset is not for this network;
    ``architecture``: the paper's name of it, or None.
    """
    name = architecture(specs)
    rows = _published(specs)
    activations: list[list] = []
    groups: dict[str, list[int]] = {}
    for number, spec in enumerate(specs):
        activations.append(
            [spec.id, spec.channels, spec.scale, _published_mark(rows.get(spec.id, {}))]
        )
        groups.setdefault(place_of(spec) or "", []).append(number)
    indices = {spec.id: number for number, spec in enumerate(specs)}
    presets: dict[str, list[int] | str] = {}
    for preset in select_ids.Preset:
        if preset == select_ids.Preset.CUSTOM_IDS:
            continue
        try:
            presets[preset.value] = [
                indices[id_] for id_ in select_ids.preset_ids(specs, preset, name)
            ]
        except select_ids.NoSuchActivationError as error:
            presets[preset.value] = str(error)
    modules = [{"place": place, "members": members} for place, members in groups.items()]
    return {"architecture": name, "activations": activations, "groups": modules, "presets": presets}


def network_map(specs: list[ActivationSpec], chosen: set[str]) -> torch.Tensor:
    """The network (1, H, W, 3), one box per activation: which are chosen, and which the paper's
    filter and pool have.

    A U-Net is a U, down-stage left, up-stage right, one line per module; a transformer is one
    column, its first block at the bottom.
    """
    rows = _published(specs)
    marks = {
        spec.id: "chosen"
        if spec.id in chosen
        else _published_mark(rows.get(spec.id, {})) or "other"
        for spec in specs
    }
    fills = {id_: _COLORS[mark] for id_, mark in marks.items()}
    return _draw_network(specs, fills, [(color, _LABELS[mark]) for mark, color in _COLORS.items()])


def value_map(
    specs: list[ActivationSpec], values: dict[str, float], bounds: tuple[float, float] | None = None
) -> torch.Tensor:
    """The same with one color per activation (viridis), over ``bounds`` or from the smallest to the
    largest value.
    """
    low, high = bounds or (min(values.values()), max(values.values()))
    scaled = torch.tensor(
        [(value - low) / ((high - low) or 1.0) for value in (*values.values(), low, high)]
    )
    colors = [tuple(color) for color in (viridis(scaled) * 255).round().int().tolist()]
    fills = dict.fromkeys((spec.id for spec in specs), _COLORS["other"]) | dict(
        zip(values, colors, strict=False)
    )
    legend = [
        (colors[-2], f"{low:.3f}"),
        (colors[-1], f"{high:.3f}"),
        (_COLORS["other"], "not measured"),
    ]
    return _draw_network(specs, fills, legend)


def _draw_network(
    specs: list[ActivationSpec], fills: dict[str, tuple], legend: list[tuple[tuple, str]]
) -> torch.Tensor:
    columns: dict[str, list] = {"down": [], "mid": [], "up": []}
    for spec in specs:
        if place := place_of(spec):
            column = columns[place.split("-")[0].replace("vit", "up")]
            if not column or column[-1][0] != place:
                column.append((place, []))
            column[-1][1].append(spec)
    # The stages as a U: the down-stage begins at the top and the up-stage ends there.
    blocks = {"down": columns["down"], "mid": columns["mid"], "up": columns["up"][::-1]}
    depth = max(_height(blocks["down"]), _height(blocks["up"]))
    width = {stage: _width(lines) for stage, lines in blocks.items()}
    total = sum(width.values()) + 4 * _MARGIN
    canvas = Image.new(
        "RGB",
        (total, max(depth, 0) + _height(blocks["mid"]) + _LEGEND + 3 * _MARGIN),
        (255, 255, 255),
    )
    draw = ImageDraw.Draw(canvas)
    left = _MARGIN
    for stage, lines in blocks.items():
        top = _LEGEND + _MARGIN + (depth + _MARGIN if stage == "mid" else 0)
        for place, members in lines:
            top = _draw_line(draw, left, top=top, place=place, members=members, fills=fills)
        left += width[stage] + _MARGIN
    _draw_legend(draw, legend)
    return from_pil(canvas)[None]


def place_of(spec: ActivationSpec) -> str | None:
    """The module of the network that an activation is in, such as up-level1-repeat0; None for the
    network itself.
    """
    match = _PLACE.match(spec.id)
    return match[0] if match else None


def _height(lines: list) -> int:
    return sum(
        _TEXT + _GAP + -(-len(members) // _CELLS_PER_LINE) * (_CELL + _GAP) + 2 * _GAP
        for _, members in lines
    )


def _width(lines: list) -> int:
    longest = max((min(len(members), _CELLS_PER_LINE) for _, members in lines), default=0)
    return max(longest * (_CELL + _GAP), 150)


def _draw_line(
    draw: ImageDraw.ImageDraw,
    left: int,
    top: int,
    place: str,
    members: list[ActivationSpec],
    fills: dict,
) -> int:
    scale = min(spec.scale for spec in members)
    draw.text(
        (left, top), f"{place}  1/{scale}", fill=(40, 40, 40), font=ImageFont.load_default(_TEXT)
    )
    top += _TEXT + _GAP
    for index, spec in enumerate(members):
        x = left + index % _CELLS_PER_LINE * (_CELL + _GAP)
        y = top + index // _CELLS_PER_LINE * (_CELL + _GAP)
        draw.rectangle([x, y, x + _CELL, y + _CELL], fill=fills[spec.id])
    return top + -(-len(members) // _CELLS_PER_LINE) * (_CELL + _GAP) + 2 * _GAP


def _published_mark(row: dict[str, str]) -> str:
    return next((flag for flag in ("filter", "pool") if row.get(flag) == "1"), "")


def _draw_legend(draw: ImageDraw.ImageDraw, entries: list[tuple[tuple, str]]) -> None:
    font = ImageFont.load_default(_TEXT)
    left = _MARGIN
    for color, label in entries:
        draw.rectangle([left, _MARGIN // 2, left + _CELL, _MARGIN // 2 + _CELL], fill=color)
        draw.text((left + _CELL + _GAP, _MARGIN // 2 - 1), label, fill=(40, 40, 40), font=font)
        left += _CELL + 4 * _GAP + int(font.getlength(label))


def _published(specs: list[ActivationSpec]) -> dict[str, dict[str, str]]:
    name = architecture(specs)
    return paper_tables.table(name) if name else {}


def _shape(spec: ActivationSpec, size: tuple[int, int]) -> str:
    height, width = (-(-length // spec.scale) for length in size)
    if spec.members:
        return f"tokens x {height} x {width}"
    if spec.kind != Kind.MAP:
        return f"{spec.channels}x{height}x{width}"
    positions = height * width
    return f"heads x {positions} x {positions if spec.id.endswith('self-map') else 'tokens'}"
