"""Colors and names on images: heat maps and labels by their formulas, each name beside its own
color or images.
"""

import colorsys

import pytest
import torch
from glassbox.nodes.activations import overlays
from matplotlib import colormaps


def of_hue(number, count):
    return torch.tensor(colorsys.hsv_to_rgb(number / count, 0.9, 1.0))


@pytest.fixture
def written(monkeypatch):
    """Each text that is drawn, with its place (x, y) and its color; it is drawn as well."""
    texts = []
    draw = overlays.draw_text

    def noted(canvas, place, text, *args, **given):
        texts.append((text, tuple(place), given.get("fill")))
        return draw(canvas, place, text, *args, **given)

    monkeypatch.setattr(overlays, "draw_text", noted)
    return texts


@pytest.mark.parametrize("opacity", [0.0, 0.4, 1.0])
def test_a_heat_map_is_viridis_over_the_image_and_fainter_where_it_is_cold(opacity):
    """At each value by hand: 30 % of the opacity at 0, all of it at 1."""
    image = torch.rand(3, 4, 6, 3, generator=torch.Generator().manual_seed(0))
    values = torch.tensor([0.0, 0.35, 1.0])
    found = overlays.overlay(image, values[:, None, None].expand(3, 2, 3), opacity)
    for number, value in enumerate(values.tolist()):
        color = torch.tensor(colormaps["viridis"](value)[:3]).float()
        alpha = opacity * (0.3 + 0.7 * value)
        expected = (1 - alpha) * image[number] + alpha * color
        torch.testing.assert_close(found[number], expected, rtol=0, atol=2e-3)
    if opacity:
        assert (found.amax(-1) - found.amin(-1)).mean() > 0.1  # colors, not shades of gray


def test_a_heat_map_follows_its_values_in_both_directions():
    """Warm in one cell of 2 x 3; the largest value lies in its middle in the image."""
    values = torch.zeros(1, 2, 3)
    values[0, 1, 2] = 1
    found = overlays.overlay(torch.zeros(1, 40, 60, 3), values, 1.0)[0]
    yellow = torch.tensor(colormaps["viridis"](1.0)[:3]).float()
    assert (found[30, 50] - yellow).abs().max() < 0.02
    assert found[:20, :20, 0].max() < 0.2 and found[30, 10, 0] < 0.2 and found[5, 50, 0] < 0.3


@pytest.mark.parametrize("names", [(), ("hair", "skin", "hat")])
def test_labels_have_the_colors_of_their_legend(names, written):
    """Stripes of 8 pixels: nothing, then labels 0, 1 and 2, on an image that is not magnified."""
    side = 512
    labels = (torch.arange(side) // (side // 4) - 1).view(1, 1, side).expand(1, side, side)
    image = torch.full((1, side, side, 3), 0.5)
    found = overlays.draw_labels(image, labels, 0.6, names)[0]
    middle = side - 20
    assert (found[middle, 40] - 0.5).abs().max() < 0.01
    for label in range(3):
        x = (label + 1) * (side // 4) + side // 8
        expected = 0.4 * 0.5 + 0.6 * of_hue(label, 3)
        assert (found[middle, x] - expected).abs().max() < 0.01
    edge = side // 2 - 1  # the last column of label 0 is darker
    assert (found[middle, edge] - 0.4 * (0.2 + 0.6 * of_hue(0, 3))).abs().max() < 0.01
    assert [text for text, *_ in written] == list(names)
    for number, (_, (x, y), fill) in enumerate(written):
        square = found[round(y) + 8, round(x) - 12]
        assert (square - of_hue(number, 3)).abs().max() < 0.01
        assert fill == (255, 255, 255)
    assert [place[1] for _, place, _ in written] == sorted({place[1] for _, place, _ in written})


@pytest.mark.parametrize("columns", [1, 2, 3])
def test_each_line_of_a_contact_sheet_is_named_above_its_images(columns, written):
    shades = [0.1, 0.3, 0.5, 0.7, 0.9]
    names = [f"layer {number}" for number in range(5)]
    lines = [
        (name, torch.stack([torch.full((8, 8, 3), shade), torch.full((8, 8, 3), shade + 0.05)]))
        for name, shade in zip(names, shades, strict=True)
    ]
    (page,) = overlays.contact_sheet(lines, 32, columns)
    assert [text for text, *_ in written] == names
    assert len({place for _, place, _ in written}) == 5
    for shade, (_, (x, y), fill) in zip(shades, written, strict=True):
        below = page[round(y) + 13 + 6 + 16]  # the text, a gap, and half of an image
        assert below[round(x) + 16, 0] == pytest.approx(shade, abs=0.01)
        assert below[round(x) + 16 + 32 + 6, 0] == pytest.approx(shade + 0.05, abs=0.01)
        assert max(fill) < 100  # dark on light paper
        assert page[round(y) : round(y) + 13, round(x) : round(x) + 40].amin() < 0.4
