"""Drawings on images: heat maps, labels, points, matches, contact sheets."""

from __future__ import annotations

import colorsys
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont
from torch.nn import functional as F

from ..common.fonts import draw_text, text_length
from ..common.pil_images import from_pil, rgb, to_pil

_TEXT = 13
_GAP = 6
_PAGE_ROWS = 40
_ROWS = 256  # of an enlarged image at a time
_READABLE = 512  # pixels of the longer side
_POINTED = 256  # pixels of an image on which points are drawn once as large
_FAINT = 0.3  # of the opacity, where a heat map is zero
_PAPER = (250, 250, 250)
_INK = (30, 30, 30)
Watch = Callable[[Iterable[int]], Iterator[int]]


def resize_nearest(image: torch.Tensor, side: int, watch: Watch = iter) -> torch.Tensor:
    """Images (B, H, W, 3) with a longer side of ``side`` pixels, nearest, so that every position is
    a square.

    ``watch`` wraps the range of parts of the work and may stop it by raising.
    """
    height, width = image.shape[1:3]
    scale = side / max(height, width)
    size = (max(round(height * scale), 1), max(round(width * scale), 1))
    rows, columns = (
        F.interpolate(torch.arange(float(length))[None, None], size=new, mode="nearest-exact")
        .flatten()
        .long()
        for length, new in zip((height, width), size, strict=True)
    )
    result = torch.empty(len(image), *size, image.shape[3], dtype=image.dtype)
    for first in watch(range(0, size[0], _ROWS)):
        result[:, first : first + _ROWS] = image[:, rows[first : first + _ROWS]][:, :, columns]
    return result


def viridis(values: torch.Tensor) -> torch.Tensor:
    """Values (...) in 0..1 as colors (..., 3) of matplotlib's viridis; RuntimeError without
    matplotlib.
    """
    try:
        from matplotlib import colormaps
    except ImportError as error:
        from ..common.packages import missing_package

        raise RuntimeError(missing_package("Drawing heat maps", "matplotlib", error)) from error

    return torch.from_numpy(colormaps["viridis"](values.cpu().numpy())[..., :3].astype(np.float32))


def overlay(image: torch.Tensor, values: torch.Tensor, opacity: float) -> torch.Tensor:
    """Heat maps (B, h, w) in 0..1 over images (B, H, W, 3), with ``opacity`` where they are 1 and
    less where cold.
    """
    size = image.shape[1:3]
    heat = F.interpolate(values[:, None].float(), size=size, mode="bilinear")[:, 0]
    alpha = (opacity * (_FAINT + (1 - _FAINT) * heat))[..., None].to(image.device)
    return image.float() * (1 - alpha) + viridis(heat) * alpha


def draw_labels(
    image: torch.Tensor, labels: torch.Tensor, opacity: float, names: tuple[str, ...] = ()
) -> torch.Tensor:
    """Images (B, H, W, 3), enlarged when small, under one color per label (B, H, W) with an opacity
    of 0..1.

    Labels below 0 get no color. With ``names`` a legend is drawn in the corner.
    """
    count = max(len(names), int(labels.max()) + 1, 1)
    palette = torch.tensor([_color(number, count) for number in range(count)]).float() / 255
    alpha = opacity * (labels >= 0)[..., None]
    mixed, factor = magnify(rgb(image).float() * (1 - alpha) + palette[labels.clamp_min(0)] * alpha)
    edges = _borders(labels.repeat_interleave(factor, 1).repeat_interleave(factor, 2))
    mixed = torch.where(edges[..., None], mixed * 0.4, mixed)
    return torch.stack([_with_legend(one, names) for one in mixed]) if names else mixed


def _borders(labels: torch.Tensor) -> torch.Tensor:
    """Whether a label (B, H, W) differs from its right or lower neighbor."""
    edges = torch.zeros_like(labels, dtype=torch.bool)
    edges[:, :-1] |= labels[:, :-1] != labels[:, 1:]
    edges[:, :, :-1] |= labels[:, :, :-1] != labels[:, :, 1:]
    return edges


def _with_legend(image: torch.Tensor, names: tuple[str, ...]) -> torch.Tensor:
    canvas, draw = _canvas(image)
    scale = _mark_scale(image)
    text = _TEXT * scale
    gap = _GAP * scale
    for number, name in enumerate(names):
        top = gap + number * (text + gap)
        draw.rectangle(
            [gap, top, gap + text, top + text],
            fill=_color(number, len(names)),
            outline=_INK,
            width=scale,
        )
        place = (2 * gap + text, top - scale)
        edge = 2 * scale
        draw_text(
            draw, place, name, text, fill=(255, 255, 255), stroke_width=edge, stroke_fill=(0, 0, 0)
        )
    return from_pil(canvas)


def magnify(image: torch.Tensor, side: int = 0) -> tuple[torch.Tensor, int]:
    """Images (B, H, W, 3), small ones enlarged so that drawings on them are readable, and the
    integer factor.

    To about ``side`` pixels, such as those of a larger image beside them.
    """
    factor = max(round(max(side, _READABLE) / max(image.shape[1:3])), 1)
    return image.repeat_interleave(factor, 1).repeat_interleave(factor, 2), factor


def shrink(image: torch.Tensor, side: int) -> torch.Tensor:
    """Images (B, H, W, 3) with a longer side of at most ``side`` pixels, each the mean of those
    that it stands for.
    """
    height, width = image.shape[1:3]
    scale = side / max(height, width)
    if scale >= 1:
        return image
    size = (max(round(height * scale), 1), max(round(width * scale), 1))
    return F.interpolate(image.movedim(-1, 1).float(), size=size, mode="area").movedim(1, -1)


def draw_points(image: torch.Tensor, points: torch.Tensor) -> torch.Tensor:
    """One image (H, W, 3) with numbered points (P, 2), x and y in its pixels."""
    canvas, draw = _canvas(image)
    for number, point in enumerate(points.tolist()):
        _draw_point(
            draw, point, number=number, count=len(points), scale=_point_scale(image), hollow=False
        )
    return from_pil(canvas)


def draw_matches(
    source: torch.Tensor,
    target: torch.Tensor,
    from_: torch.Tensor,
    to: torch.Tensor,
    mutual: torch.Tensor,
) -> torch.Tensor:
    """Two images (H, W, 3) side by side, lines between their points (P, 2), and hollow ends where
    not ``mutual``.
    """
    height = max(source.shape[0], target.shape[0])
    canvas = Image.new("RGB", (source.shape[1] + _GAP + target.shape[1], height), _PAPER)
    canvas.paste(to_pil(source), (0, 0))
    canvas.paste(to_pil(target), (source.shape[1] + _GAP, 0))
    draw = ImageDraw.Draw(canvas)
    moved = to + torch.tensor([source.shape[1] + _GAP, 0])
    scale = max(_point_scale(source), _point_scale(target))
    for number, (a, b, good) in enumerate(
        zip(from_.tolist(), moved.tolist(), mutual.tolist(), strict=True)
    ):
        draw.line([*a, *b], fill=_color(number, len(from_)), width=2 * scale)
        _draw_point(draw, a, number=number, count=len(from_), scale=scale, hollow=False)
        _draw_point(draw, b, number=number, count=len(from_), scale=scale, hollow=not good)
    return from_pil(canvas)


def _point_scale(image: torch.Tensor) -> int:
    """How many times larger points are on an image (H, W, 3) than on a small one."""
    return max(round(max(image.shape[:2]) / _POINTED), 1)


def contact_sheet(
    lines: list[tuple[str, torch.Tensor]], side: int, columns: int = 1
) -> torch.Tensor:
    """A contact sheet (pages, H, W, 3): named lines of images (B, h, w, 3), each image with a
    longer side of ``side``.

    ``columns``: how many lines are placed side by side. A page takes 40 of these rows, and all
    pages have one size.
    """
    tiles = [(name, resize_nearest(images.float(), side)) for name, images in lines]
    text = max(_TEXT, side // 12)
    width = max(
        max(len(tile) * (tile.shape[2] + _GAP) for _, tile in tiles),
        max(int(text_length(name, text)) for name, _ in tiles) + 2 * _GAP,
    )
    height = max(tile.shape[1] for _, tile in tiles) + text + 3 * _GAP
    pages = []
    rows = min(-(-len(tiles) // columns), _PAGE_ROWS)
    for first in range(0, len(tiles), columns * rows):
        canvas = Image.new("RGB", (columns * (width + _GAP) + _GAP, rows * height + _GAP), _PAPER)
        draw = ImageDraw.Draw(canvas)
        for number, (name, images) in enumerate(tiles[first : first + columns * rows]):
            left = _GAP + number % columns * (width + _GAP)
            top = _GAP + number // columns * height
            draw_text(draw, (left, top), name, text, fill=_INK)
            for index, image in enumerate(images):
                canvas.paste(
                    to_pil(image), (left + index * (image.shape[1] + _GAP), top + text + _GAP)
                )
        pages.append(from_pil(canvas))
    return torch.stack(pages)


def _mark_scale(image: torch.Tensor) -> int:
    """How many times larger marks are on an image (H, W, 3) than on one of readable size."""
    return max(round(max(image.shape[:2]) / _READABLE), 1)


def _draw_point(
    draw: ImageDraw.ImageDraw,
    point: Sequence[float],
    number: int,
    count: int,
    scale: int,
    hollow: bool,
) -> None:
    x, y = point
    color = _color(number, count)
    radius = 6 * scale
    box = [x - radius, y - radius, x + radius, y + radius]
    draw.ellipse(
        box,
        fill=None if hollow else color,
        outline=color if hollow else (255, 255, 255),
        width=2 * scale,
    )
    draw.text(
        (x + radius + 1, y - radius - 2),
        str(number + 1),
        fill=(255, 255, 255),
        font=ImageFont.load_default(_TEXT * scale),
        stroke_width=2 * scale,
        stroke_fill=(0, 0, 0),
    )


def _color(number: int, count: int) -> tuple[int, ...]:
    return tuple(
        round(255 * value) for value in colorsys.hsv_to_rgb(number / max(count, 1), 0.9, 1.0)
    )


def _canvas(image: torch.Tensor) -> tuple[Image.Image, ImageDraw.ImageDraw]:
    canvas = to_pil(image)
    return canvas, ImageDraw.Draw(canvas)
