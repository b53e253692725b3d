"""The five figures show the committed numbers, under names that their pages link."""

import importlib

import numpy as np
import pytest
from PIL import Image

from studies.common import results
from studies.figures import __main__ as figures
from studies.figures import sheet


@pytest.mark.parametrize("name", figures.FIGURES)
def test_a_figure_shows_the_committed_numbers(name):
    module = importlib.import_module(f"studies.figures.{name}")
    with Image.open(sheet.FOLDER / f"{name}.png") as image:
        assert image.info[sheet.KEY] == sheet.digest(module.BARS), (
            f"run `python run.py study figures {name}`"
        )
        assert min(image.size) > 300
    page = (results.host.ROOT / "docs" / "figures.md").read_text("utf-8")
    assert f"images/figures/{name}.png" in page and f"study figures {name}`" in page


def test_the_front_page_links_the_figures():
    assert "(docs/figures.md)" in (results.host.ROOT / "README.md").read_text("utf-8")


def test_bars_stand_under_their_columns_with_their_intervals(tmp_path, monkeypatch):
    numbers = {"a": {"value": 0.5, "low": 0.25, "high": 0.75}, "b": {"value": -0.25}}
    monkeypatch.setattr(
        sheet.Bars,
        "numbers",
        lambda bars: {each: numbers[name] for each, name in bars.names.items()},
    )
    bars = sheet.Bars("measured", "none", {"second": "a", "third": "b"})
    image = np.zeros((4, 4, 3), np.uint8)
    figure = sheet.draw(["first", "second", "third"], {"row": [image, None, image]}, [bars])
    *images, chart = figure.axes
    assert [len(axes.images) for axes in images] == [1, 0, 1]
    assert [(bar.get_x() + bar.get_width() / 2, bar.get_height()) for bar in chart.patches] == [
        (1, 0.5),
        (2, -0.25),
    ]
    assert [text.get_text() for text in chart.texts] == ["0.50", "-0.25"]
    before = sheet.digest([bars])
    numbers["a"]["high"] = 0.8
    assert sheet.digest([bars]) != before
