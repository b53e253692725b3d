"""The contact sheet: what all workflows made on one page, workflow after workflow, batches as one
tile.
"""

from __future__ import annotations

import io
import math
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from PIL import Image, ImageDraw, ImageFont

from . import paths

_WIDTH = 1960
_HEIGHT = 280  # pixels, of a row of images
_WIDEST = 700
_GAP, _LABEL, _TITLE, _CAPTION = 20, 34, 22, 20
_SMALL = 256  # pixels: images up to this side that follow each other share a tile
_ROW = _LABEL + _HEIGHT + _CAPTION + _GAP
_PAPER, _INK, _RULE = "#fbfaf7", "#22262b", "#c9543b"


class Batch(NamedTuple):
    """The images that one node made, and its title, which is written below them."""

    files: Sequence[Path]
    title: str = ""


def write(images: Sequence[tuple[str, Sequence[Path | Batch]]], target: Path) -> None:
    """Write a PNG with every image; `images` holds names and their files, or batches of files."""
    rows = list(_rows([(name, tile) for name, files in images for tile in _tiles(files)]))
    width = _GAP + max(sum(tile.width + _GAP for _, tile in row) for row in rows)
    page = Image.new("RGB", (width, _GAP + len(rows) * _ROW), _PAPER)
    draw, titled = ImageDraw.Draw(page), set()
    for index, row in enumerate(rows):
        left, top = _GAP, _GAP + index * _ROW
        for name, band in groupby(row, key=lambda cell: cell[0]):
            tiles = [tile for _, tile in band]
            length = sum(tile.width + _GAP for tile in tiles) - _GAP
            _draw_title(
                draw, (left, top), length, f"{name} (continued)" if name in titled else name
            )
            titled.add(name)
            for tile in tiles:
                page.paste(tile, (left, top + _LABEL))
                left += tile.width + _GAP
    content = io.BytesIO()
    page.save(content, "PNG", optimize=True)
    paths.write_atomically(target, content.getvalue())


def _tiles(files: Sequence[Path | Batch]) -> Iterator[Image.Image]:
    """One tile for each larger image, each batch of small ones, and untitled small ones that follow
    each other.
    """
    batches = [Batch((one,)) if isinstance(one, Path) else one for one in files]
    opened = [
        (number, _opened(file)) for number, batch in enumerate(batches) for file in batch.files
    ]

    def tile(one: tuple[int, Image.Image]) -> tuple[int, tuple[int, int]]:
        batch = batches[one[0]]
        return one[0] if len(batch.files) > 1 or batch.title else -1, one[1].size

    for (_, (width, height)), group in groupby(opened, key=tile):
        found = list(group)
        title, batch = batches[found[0][0]].title, [image for _, image in found]
        for image in batch if max(width, height) > _SMALL else [_mosaic(batch)]:
            yield _captioned(_fitted(image), title)


def _captioned(tile: Image.Image, title: str) -> Image.Image:
    """A tile over the title of the node that made it."""
    whole = Image.new("RGB", (tile.width, tile.height + _CAPTION), _PAPER)
    whole.paste(tile)
    draw, font = ImageDraw.Draw(whole), ImageFont.load_default(_CAPTION - 6)
    draw.text((0, tile.height + 2), _shortened(draw, title, font, tile.width), _INK, font)
    return whole


def _opened(file: Path) -> Image.Image:
    with Image.open(file) as opened:
        return opened.convert("RGB")


def _mosaic(batch: list[Image.Image]) -> Image.Image:
    """Images of one size side by side, in as many rows as columns or one row less."""
    columns = math.ceil(math.sqrt(len(batch)))
    width, height = batch[0].size
    tile = Image.new("RGB", (columns * width, -(-len(batch) // columns) * height), _PAPER)
    for index, image in enumerate(batch):
        tile.paste(image, (index % columns * width, index // columns * height))
    return tile


def _fitted(image: Image.Image) -> Image.Image:
    """The image at the height of a row, or smaller when it is very wide."""
    scale = min(_HEIGHT / image.height, _WIDEST / image.width)
    size = (max(round(image.width * scale), 1), max(round(image.height * scale), 1))
    return image.resize(size, Image.Resampling.LANCZOS)


def _rows(cells: list[tuple[str, Image.Image]]) -> Iterator[list[tuple[str, Image.Image]]]:
    """Cells packed into rows in their order."""
    row, used = [], 0
    for name, tile in cells:
        if row and used + tile.width > _WIDTH:
            yield row
            row, used = [], 0
        row.append((name, tile))
        used += tile.width + _GAP
    if row:
        yield row


def _draw_title(
    draw: ImageDraw.ImageDraw, corner: tuple[int, int], length: int, title: str
) -> None:
    """A rule over the tiles of one workflow, and its name, cut to their length."""
    left, top = corner
    draw.rectangle((left, top, left + length - 1, top + 2), fill=_RULE)
    font = ImageFont.load_default(_TITLE - 4)
    draw.text((left, top + 7), _shortened(draw, title, font, length), _INK, font)


def _shortened(
    draw: ImageDraw.ImageDraw, text: str, font: ImageFont.FreeTypeFont, space: float
) -> str:
    """The text, cut so that it takes at most `space` pixels."""
    if draw.textlength(text, font) <= space:
        return text
    while text and draw.textlength(text + "...", font) > space:
        text = text[:-1]
    return text.rstrip() + "..."
