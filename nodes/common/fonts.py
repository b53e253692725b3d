"""Texts of figures in every script: letters that a font lacks are drawn with another one of the
system's.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any

from PIL import ImageDraw, ImageFont


def draw_text(
    draw: ImageDraw.ImageDraw, place: tuple[float, float], text: str, size: int, **how: Any
) -> None:
    """Draw a text of ``size`` pixels from its top left corner; ``how``: as for PIL's ``text``."""
    left, top = place
    for font, part in _runs(text, size):
        draw.text((left, top), part, font=font, **how)
        left += font.getlength(part)


def text_length(text: str, size: int) -> float:
    """The width in pixels of a text that ``draw_text`` draws."""
    return sum(font.getlength(part) for font, part in _runs(text, size))


def families(text: str) -> list[str]:
    """The names of matplotlib's fonts that have a text's letters, its own first; a warning names
    letters without.
    """
    from matplotlib.font_manager import FontProperties, findfont

    own = Path(findfont(FontProperties()))
    paths = dict.fromkeys([own, *filter(None, (font_with(letter) for letter in sorted(set(text))))])
    return [FontProperties(fname=str(path)).get_name() for path in paths]


@cache
def font_with(letter: str) -> Path | None:
    """A font file of the system that has a letter; None, and a warning, where none has it."""
    if letter.isspace() or not letter.isprintable():
        return None
    for path in _files():
        if ord(letter) in _letters_of(path):
            return path
    logging.warning(
        "No font of this system has the letter %s (U+%04X), which figures show as a box: install "
        "one, such as Noto Sans CJK for Chinese, Japanese and Korean.",
        letter,
        ord(letter),
    )
    return None


def _runs(text: str, size: int) -> Iterator:
    """The parts of a text that one font draws: PIL's own as far as it is ASCII."""
    for path, letters in groupby(
        text, lambda letter: None if letter.isascii() else font_with(letter)
    ):
        yield (
            ImageFont.load_default(size) if path is None else ImageFont.truetype(str(path), size),
            "".join(letters),
        )


@cache
def _files() -> tuple[Path, ...]:
    from matplotlib.font_manager import FontProperties, findfont, fontManager

    # The upright style of a family has the letters that its slanted ones have.
    plain = sorted(fontManager.ttflist, key=lambda font: (font.style != "normal", font.fname))
    return tuple(
        dict.fromkeys([Path(findfont(FontProperties())), *(Path(font.fname) for font in plain)])
    )


@cache
def _letters_of(path: Path) -> frozenset[int]:
    from matplotlib.ft2font import FT2Font

    try:
        return frozenset(FT2Font(str(path)).get_charmap())
    except (OSError, RuntimeError):  # a damaged file among the system's
        return frozenset()
