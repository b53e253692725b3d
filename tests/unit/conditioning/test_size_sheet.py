"""Size Sheet: its values, the metadata of its columns, and its drawing."""

import pytest
import torch
from glassbox.nodes.conditioning.size_sheet import (
    SweptField,
    draw_sheet,
    parse_multiples,
    swept_entries,
)


def test_values_are_comma_separated_multiples():
    assert parse_multiples("0.25, 1,4,") == [0.25, 1.0, 4.0]


@pytest.mark.parametrize("text", ["", "a, 1", "-1", "17", ", ".join(["1"] * 13)])
def test_bad_values_are_refused(text):
    with pytest.raises(ValueError, match="comma-separated"):
        parse_multiples(text)


@pytest.mark.parametrize(
    ("field", "multiple", "entries"),
    [
        ("original_size", 4.0, {"width": 4096, "height": 2048}),
        ("original_size", 0.0, {"width": 1, "height": 1}),
        ("target_size", 0.5, {"target_width": 512, "target_height": 256}),
        ("crop_left", 0.25, {"crop_w": 256}),
        ("crop_top", 0.25, {"crop_h": 128}),
    ],
)
def test_entries_of_a_column(field, multiple, entries):
    assert swept_entries(field, multiple, (1024, 512)) == entries


def test_the_sheet_has_a_panel_for_every_image():
    figure_module = pytest.importorskip("matplotlib.figure")
    figure, image = figure_module.Figure(), torch.rand(8, 8, 3)
    draw_sheet(
        figure,
        {"stock": [image] * 3, "gated": [image] * 3},
        ["0.5 x", "1 x", "2 x"],
        "original_size",
    )
    assert len(figure.axes) == 6
    assert [axes.get_title() for axes in figure.axes[:3]] == ["0.5 x", "1 x", "2 x"]
    assert len(SweptField) == 4
