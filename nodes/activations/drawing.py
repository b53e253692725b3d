"""Pictures with something drawn on them: heat maps, points, named contact sheets."""

from __future__ import annotations

import colorsys

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont

_TEXT, _GAP = 13, 6
_READABLE = 512  # pixels of the longer side
_PAPER, _INK = (250, 250, 250), (30, 30, 30)


def enlarged(picture: torch.Tensor, side: int) -> torch.Tensor:
    """Pictures (B, H, W, 3) with a longer side of ``side`` pixels, nearest, so that every position stays a square."""
    height, width = picture.shape[1:3]
    scale = side / max(height, width)
    size = (max(round(height * scale), 1), max(round(width * scale), 1))
    return torch.nn.functional.interpolate(picture.movedim(-1, 1), size=size, mode="nearest-exact").movedim(1, -1)


def heat(values: torch.Tensor) -> torch.Tensor:
    """Values (..., ) in 0..1 as colours (..., 3): matplotlib's viridis."""
    from matplotlib import colormaps

    return torch.from_numpy(colormaps["viridis"](values.cpu().numpy())[..., :3].astype(np.float32))


def overlay(picture: torch.Tensor, values: torch.Tensor, strength: float) -> torch.Tensor:
    """A heat map (B, h, w) in 0..1 over pictures (B, H, W, 3), of which ``strength`` (0..1) hides the picture."""
    size = picture.shape[1:3]
    colours = heat(torch.nn.functional.interpolate(values[:, None].float(), size=size, mode="bilinear")[:, 0])
    return picture.float() * (1 - strength) + colours * strength


def coloured(
    picture: torch.Tensor, labels: torch.Tensor, strength: float, names: tuple[str, ...] = ()
) -> torch.Tensor:
    """Pictures (B, H, W, 3), enlarged when small, with a colour a label (B, H, W) as far as ``strength`` (0..1) says.

    Labels below 0 stay as they are. With ``names`` a legend is written into the corner.
    """
    count = max(len(names), int(labels.max()) + 1, 1)
    palette = torch.tensor([_colour(number, count) for number in range(count)]).float() / 255
    share = strength * (labels >= 0)[..., None]
    mixed, factor = magnified(picture[..., :3].float() * (1 - share) + palette[labels.clamp_min(0)] * share)
    edges = _borders(labels.repeat_interleave(factor, 1).repeat_interleave(factor, 2))
    mixed = torch.where(edges[..., None], mixed * 0.4, mixed)
    return torch.stack([_with_legend(one, names) for one in mixed]) if names else mixed


def _borders(labels: torch.Tensor) -> torch.Tensor:
    """Whether a label (B, H, W) differs from its right or lower neighbour."""
    edges = torch.zeros_like(labels, dtype=torch.bool)
    edges[:, :-1] |= labels[:, :-1] != labels[:, 1:]
    edges[:, :, :-1] |= labels[:, :, :-1] != labels[:, :, 1:]
    return edges


def _with_legend(picture: torch.Tensor, names: tuple[str, ...]) -> torch.Tensor:
    canvas, draw = _canvas(picture)
    font = ImageFont.load_default(_TEXT)
    for number, name in enumerate(names):
        top = _GAP + number * (_TEXT + _GAP)
        draw.rectangle([_GAP, top, _GAP + _TEXT, top + _TEXT], fill=_colour(number, len(names)), outline=_INK)
        draw.text((2 * _GAP + _TEXT, top - 1), name, fill=(255, 255, 255), font=font, stroke_width=2,
                  stroke_fill=(0, 0, 0))  # fmt: skip
    return _tensor(canvas)


def magnified(picture: torch.Tensor) -> tuple[torch.Tensor, int]:
    """Pictures (B, H, W, 3), small ones enlarged so that what is drawn on them can be read, and the whole factor."""
    factor = max(round(_READABLE / max(picture.shape[1:3])), 1)
    return picture.repeat_interleave(factor, 1).repeat_interleave(factor, 2), factor


def marked(picture: torch.Tensor, points: torch.Tensor) -> torch.Tensor:
    """One picture (H, W, 3) with numbered points (P, 2), x and y in its pixels."""
    canvas, draw = _canvas(picture)
    for number, (x, y) in enumerate(points.tolist()):
        _mark(draw, x, y, number, len(points), hollow=False)
    return _tensor(canvas)


def matched(
    source: torch.Tensor, target: torch.Tensor, from_: torch.Tensor, to: torch.Tensor, sure: torch.Tensor
) -> torch.Tensor:
    """Two pictures (H, W, 3) side by side, lines between their points (P, 2), and hollow ends where not ``sure``."""
    height = max(source.shape[0], target.shape[0])
    canvas = Image.new("RGB", (source.shape[1] + _GAP + target.shape[1], height), _PAPER)
    canvas.paste(_image(source), (0, 0))
    canvas.paste(_image(target), (source.shape[1] + _GAP, 0))
    draw = ImageDraw.Draw(canvas)
    moved = to + torch.tensor([source.shape[1] + _GAP, 0])
    for number, (a, b, good) in enumerate(zip(from_.tolist(), moved.tolist(), sure.tolist(), strict=True)):
        draw.line([*a, *b], fill=_colour(number, len(from_)), width=2)
        _mark(draw, *a, number, len(from_), hollow=False)
        _mark(draw, *b, number, len(from_), hollow=not good)
    return _tensor(canvas)


def sheet(lines: list[tuple[str, torch.Tensor]], side: int, columns: int = 1) -> torch.Tensor:
    """A contact sheet (1, H, W, 3): named lines of pictures (B, h, w, 3), each picture with a longer side of ``side``.

    ``columns``: how many lines stand beside each other.
    """
    tiles = [(name, enlarged(pictures.float(), side)) for name, pictures in lines]
    font = ImageFont.load_default(_TEXT)
    width = max(
        max(len(tile) * (tile.shape[2] + _GAP) for _, tile in tiles),
        max(int(font.getlength(name)) for name, _ in tiles) + 2 * _GAP,
    )
    height = max(tile.shape[1] for _, tile in tiles) + _TEXT + 3 * _GAP
    canvas = Image.new("RGB", (columns * (width + _GAP) + _GAP, -(-len(tiles) // columns) * height + _GAP), _PAPER)
    draw = ImageDraw.Draw(canvas)
    for number, (name, pictures) in enumerate(tiles):
        left, top = _GAP + number % columns * (width + _GAP), _GAP + number // columns * height
        draw.text((left, top), name, fill=_INK, font=font)
        for index, picture in enumerate(pictures):
            canvas.paste(_image(picture), (left + index * (picture.shape[1] + _GAP), top + _TEXT + _GAP))
    return _tensor(canvas)[None]


def _mark(draw: ImageDraw.ImageDraw, x: float, y: float, number: int, count: int, hollow: bool) -> None:
    colour, radius = _colour(number, count), 6
    box = [x - radius, y - radius, x + radius, y + radius]
    draw.ellipse(box, fill=None if hollow else colour, outline=colour if hollow else (255, 255, 255), width=2)
    draw.text((x + radius + 1, y - radius - 2), str(number), fill=(255, 255, 255), font=ImageFont.load_default(_TEXT),
              stroke_width=2, stroke_fill=(0, 0, 0))  # fmt: skip


def _colour(number: int, count: int) -> tuple[int, int, int]:
    return tuple(round(255 * value) for value in colorsys.hsv_to_rgb(number / max(count, 1), 0.9, 1.0))


def _canvas(picture: torch.Tensor) -> tuple[Image.Image, ImageDraw.ImageDraw]:
    canvas = _image(picture)
    return canvas, ImageDraw.Draw(canvas)


def _image(picture: torch.Tensor) -> Image.Image:
    return Image.fromarray((picture[..., :3].clamp(0, 1) * 255).round().to(torch.uint8).cpu().numpy())


def _tensor(canvas: Image.Image) -> torch.Tensor:
    return torch.from_numpy(np.asarray(canvas, dtype=np.float32) / 255)
