"""What is drawn on images, read off pixel by pixel: points, matches, and sheets of wide images."""

import colorsys

import pytest
import torch
from glassbox.nodes.activations import overlays

GRAY = (128, 128, 128)


def blank(height=60, width=100):
    return torch.full((height, width, 3), 128 / 255)


def pixel(image, x, y):
    return tuple(round(float(value) * 255) for value in image[y, x])


def hue(number, count):
    return tuple(round(255 * value) for value in colorsys.hsv_to_rgb(number / count, 0.9, 1.0))


def test_points_are_filled_and_lie_at_x_and_y():
    marked = overlays.draw_points(blank(), torch.tensor([[80.0, 10.0], [20.0, 40.0], [50.0, 30.0]]))
    assert marked.shape == (60, 100, 3)
    for number, (x, y) in enumerate([(80, 10), (20, 40), (50, 30)]):
        assert {pixel(marked, x + dx, y + dy) for dx, dy in ((0, 0), (-3, 0), (0, 3))} == {
            hue(number, 3)
        }
        assert pixel(marked, x - 8, y) == GRAY
    assert pixel(marked, 10, 80 % 60) == GRAY


@pytest.mark.parametrize("height", [60, 44])
def test_matches_join_both_images_and_are_hollow_where_not_mutual(height):
    """Of images of two sizes; the target lies to the right of the source and of a gap."""
    source, target = blank(), blank(height, 70)
    begins, ends = (
        torch.tensor([[30.0, 12.0], [30.0, 34.0]]),
        torch.tensor([[40.0, 12.0], [40.0, 34.0]]),
    )
    drawn = overlays.draw_matches(source, target, begins, ends, torch.tensor([True, False]))
    gap = drawn.shape[1] - 170
    assert drawn.shape[0] == 60 and gap > 0
    for number, (y, filled) in enumerate(((12, True), (34, False))):
        color, end = hue(number, 2), 100 + gap + 40
        assert pixel(drawn, 60, y) == pixel(drawn, end - 20, y) == color
        assert pixel(drawn, 30, y + 3) == color
        assert pixel(drawn, end, y + 3) == (color if filled else GRAY)
    assert pixel(drawn, 60, 23) == GRAY


def test_small_images_are_magnified_by_a_whole_factor():
    image = torch.rand(2, 20, 36, 3, generator=torch.Generator().manual_seed(0))
    enlarged, factor = overlays.magnify(image)
    assert factor > 1 and enlarged.shape == (2, 20 * factor, 36 * factor, 3)
    assert torch.equal(enlarged[:, ::factor, ::factor], image)
    assert torch.equal(enlarged[:, factor - 1 :: factor, factor - 1 :: factor], image)
    assert overlays.magnify(torch.zeros(1, 30, 4000, 3))[1] == 1


def in_color(number):
    """A color that no text has."""
    return torch.tensor([(number % 10) / 10, 0.9, 0.1])


def places(page, number):
    return torch.where((page - in_color(number)).abs().amax(-1) < 2 / 255)


@pytest.mark.parametrize("columns", [1, 2])
def test_a_sheet_of_wide_images_holds_each_once(columns):
    """Each line of two images of 6 x 3 pixels, enlarged to 24 x 12, at its place in the grid."""
    lines = [(f"id-{n}", in_color(n).expand(2, 3, 6, 3)) for n in range(3)]
    (page,) = overlays.contact_sheet(lines, 24, columns)
    tops, lefts = [], []
    for number in range(3):
        rows, across = places(page, number)
        assert len(rows) == 2 * 12 * 24 and int(rows.max() - rows.min()) == 11
        assert int(across.max() - across.min()) >= 2 * 24 - 1
        tops.append(int(rows.min()))
        lefts.append(int(across.min()))
    if columns == 1:
        assert tops == sorted(set(tops)) and len(set(lefts)) == 1
    else:
        assert tops[0] == tops[1] < tops[2] and lefts[0] == lefts[2] < lefts[1]


def test_a_sheet_of_many_lines_has_several_pages_of_one_size():
    lines = [(f"id-{n}", in_color(3).expand(1, 2, 2, 3)) for n in range(90)]
    pages = overlays.contact_sheet(lines, 8)
    assert [len(places(page, 3)[0]) // 64 for page in pages] == [40, 40, 10]
