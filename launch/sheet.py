"""The contact sheet: pictures of all workflows on one page, each enlarged and titled."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

from . import paths

_CELL = 320  # pixels, the side of the square that a picture is fitted into
_GAP = 24
_LABEL = 44
_COLUMNS = 4
_PAPER, _INK, _FAINT = "#fbfaf7", "#22262b", "#7b828a"


def write(pictures: Sequence[tuple[str, Sequence[Path]]], target: Path) -> None:
    """Write a PNG with every picture; `pictures` holds a workflow's name and its files."""
    cells = list(_cells(pictures))
    columns = min(_COLUMNS, len(cells))
    rows = -(-len(cells) // columns)
    size = (_GAP + columns * (_CELL + _GAP), _GAP + rows * (_CELL + _LABEL + _GAP))
    page = Image.new("RGB", size, _PAPER)
    for index, (title, note, file) in enumerate(cells):
        row, column = divmod(index, columns)
        corner = (_GAP + column * (_CELL + _GAP), _GAP + row * (_CELL + _LABEL + _GAP))
        _draw_cell(page, corner, title, note, file)
    content = io.BytesIO()
    page.save(content, "PNG")
    paths.write_atomically(target, content.getvalue())


def _cells(pictures: Sequence[tuple[str, Sequence[Path]]]) -> Iterator[tuple[str, str, Path]]:
    for name, files in pictures:
        title = name.removeprefix("demo_").replace("_", " ")
        for number, file in enumerate(files, start=1):
            yield title, f"{number}/{len(files)}" if len(files) > 1 else "", file


def _draw_cell(page: Image.Image, corner: tuple[int, int], title: str, note: str, file: Path) -> None:
    """Paste a picture at the foot of its square, as large as it fits, with its title below."""
    picture = _fitted(file)
    left, top = corner
    page.paste(picture, (left + (_CELL - picture.width) // 2, top + _CELL - picture.height))
    draw = ImageDraw.Draw(page)
    font = ImageFont.load_default(20)
    space = _CELL - (draw.textlength(note, font) + 12 if note else 0)
    draw.text((left, top + _CELL + 10), _shortened(draw, title, font, space), _INK, font)
    draw.text((left + _CELL, top + _CELL + 10), note, _FAINT, font, anchor="ra")


def _fitted(file: Path) -> Image.Image:
    with Image.open(file) as opened:
        picture = opened.convert("RGB")
    scale = min(_CELL / picture.width, _CELL / picture.height)
    size = (max(round(picture.width * scale), 1), max(round(picture.height * scale), 1))
    return picture.resize(size, Image.Resampling.LANCZOS)


def _shortened(draw: ImageDraw.ImageDraw, text: str, font: ImageFont.FreeTypeFont, space: float) -> str:
    """The text, cut so that it takes at most `space` pixels."""
    if draw.textlength(text, font) <= space:
        return text
    while text and draw.textlength(text + "...", font) > space:
        text = text[:-1]
    return text.rstrip() + "..."
