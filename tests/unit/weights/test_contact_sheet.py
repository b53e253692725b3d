"""The labeled sheet: which labels stand on axes, and where each image goes."""

import pytest
import torch
from glassbox.nodes.weights import contact_sheet
from matplotlib.figure import Figure

GRID = [f"beard {a:+.2f}, glasses {b:+.2f}" for b in (-1, 1) for a in (-1, 0, 1)]


def draw(labels, columns, images=None):
    figure = Figure()
    images = images or [torch.full((4, 4, 3), number / 10) for number in range(len(labels))]
    contact_sheet.draw_sheet(figure, images, labels, columns, "")
    return figure.axes


def test_a_sweep_has_its_values_on_the_axes():
    assert contact_sheet.column_count(GRID, 0) == 3
    axes = draw(GRID, 3)
    assert [one.get_title() for one in axes] == [
        "beard -1.00",
        "beard +0.00",
        "beard +1.00",
        "",
        "",
        "",
    ]
    assert [one.get_ylabel() for one in axes] == ["glasses -1.00", "", "", "glasses +1.00", "", ""]
    assert [float(one.images[0].get_array()[0, 0, 0]) for one in axes] == pytest.approx(
        [0, 0.1, 0.2, 0.3, 0.4, 0.5]
    )


@pytest.mark.parametrize("columns", [2, 4, 6])
def test_another_cut_of_the_grid_labels_each_image(columns):
    axes = draw(GRID, columns)
    assert axes[5].get_title() == GRID[5] and not axes[0].get_ylabel()


def test_labels_of_points_stand_over_their_images():
    labels = [
        f"sample 3.{number}\nnear person_0001 +0.50, person_0002 +0.10" for number in range(7)
    ]
    assert (
        contact_sheet.column_count(labels, 0) == 3
        and contact_sheet.column_count(labels[:5], 0) == 5
    )
    axes = draw(labels, 3)
    assert len(axes) == 9 and axes[6].get_title().startswith("sample 3.6\nnear person_0001")
    assert [one.axison for one in axes[6:]] == [True, False, False]


def test_each_image_needs_a_label():
    with pytest.raises(ValueError, match="6 images and 5 labels"):
        draw(GRID[:5], 3, [torch.zeros(2, 2, 3)] * 6)
    with pytest.raises(ValueError, match="up to 256"):
        draw(["x"] * 257, 16)
