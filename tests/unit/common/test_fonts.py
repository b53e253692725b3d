"""Texts of figures in every script: no letter is a box where a font has it, and a warning says
where none has.
"""

import numpy as np
import pytest
from glassbox.nodes.common import fonts
from PIL import Image, ImageDraw, ImageFont

SIZE = 24


@pytest.fixture(autouse=True)
def forgotten():
    fonts.font_with.cache_clear()
    yield
    fonts.font_with.cache_clear()


def drawn(text, draw=fonts.draw_text, **how):
    canvas = Image.new("L", (400, 40), 255)
    draw(ImageDraw.Draw(canvas), (2, 2), text, SIZE, fill=0, **how)
    return np.asarray(canvas)


def by_pil(draw, place, text, size, **how):
    draw.text(place, text, font=ImageFont.load_default(size), **how)


def test_ascii_is_drawn_as_before():
    assert np.array_equal(drawn("red hair, 3.2%"), drawn("red hair, 3.2%", by_pil))


@pytest.mark.parametrize("letter", ["ä", "ß", "Ж", "\u03b3", "א", "ع"])
def test_letters_outside_of_ascii_are_no_boxes(letter):
    """Against the box that the same font draws of a letter that it lacks."""
    path = fonts.font_with(letter)
    box = Image.new("L", (400, 40), 255)
    ImageDraw.Draw(box).text((2, 2), "\uffff", font=ImageFont.truetype(str(path), SIZE), fill=0)
    found = drawn(letter)
    assert found.min() < 128 and not np.array_equal(found, np.asarray(box))


def test_a_text_of_several_scripts_is_as_wide_as_its_parts():
    parts = ["red ", "Ж", " hair"]
    assert fonts.text_length("".join(parts), SIZE) == sum(
        fonts.text_length(part, SIZE) for part in parts
    )
    whole, right = drawn("redЖ"), drawn("red")
    assert (whole[:, :40] == right[:, :40]).mean() > 0.9 and (whole < 128).sum() > (
        right < 128
    ).sum()


def test_a_letter_that_no_font_has_is_a_warning_once(monkeypatch, caplog):
    monkeypatch.setattr(fonts, "_files", lambda: ())
    drawn("mä"), drawn("ä")
    assert [record.message for record in caplog.records] == [
        "No font of this system has the letter ä (U+00E4), which figures show as a box: install "
        "one, such as Noto Sans CJK for Chinese, Japanese and Korean."
    ]


def test_a_font_that_has_the_letters_is_found_behind_one_that_lacks_them(monkeypatch):
    letters = {"plain": frozenset(map(ord, "abc")), "wide": frozenset(map(ord, "abc红"))}
    monkeypatch.setattr(fonts, "_files", lambda: tuple(letters))
    monkeypatch.setattr(fonts, "_letters_of", letters.__getitem__)
    assert [fonts.font_with(letter) for letter in "a红"] == ["plain", "wide"]


def test_figures_fall_back_to_it(monkeypatch):
    assert fonts.families("häuser")[0] == "DejaVu Sans"
