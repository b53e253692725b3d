"""Figures of spaces and their trainings, read off before they become images."""

from __future__ import annotations

import members
import numpy as np
import pytest
import torch
from figures import assert_line, drawn, pairs, running, wavy
from glassbox.nodes.common.loss_curve import SMOOTH
from glassbox.nodes.weights import inversion, resumable_training, space_report, space_training
from glassbox.nodes.weights.space import Point, Space


def test_losses_of_a_learned_space():
    run = space_training.SpaceTraining.__new__(space_training.SpaceTraining)
    run.losses = wavy(40, seed=3)
    panel = drawn(resumable_training.draw_losses, run, "Learning a space").panels[0]
    assert_line(panel, "each step", range(1, 41), run.losses)
    assert_line(panel, f"mean of {SMOOTH}", range(1, 41), running(run.losses))
    assert (panel.title, panel.xlabel, panel.ylabel) == ("Learning a space", "step", "loss")
    assert panel.legend == list(panel.lines)


def test_losses_of_an_inversion():
    run = inversion.Inversion.__new__(inversion.Inversion)
    run.losses, run.held_out = wavy(40), {0: 0.5, 25: 0.4}
    panel = drawn(inversion.draw_losses, run).panels[0]
    assert_line(panel, "each step", range(1, 41), run.losses)
    assert_line(panel, f"mean of {SMOOTH}", range(1, 41), running(run.losses))
    assert_line(panel, "held-out noise", [0, 25], [0.5, 0.4])
    assert (panel.title, panel.xlabel, panel.ylabel) == ("Inversion", "step", "loss")
    assert panel.legend == list(panel.lines)
    run.held_out = {}
    assert len(drawn(inversion.draw_losses, run).panels[0].lines) == 2


@pytest.fixture(scope="module")
def space(tmp_path_factory):
    from glassbox.nodes.weights import member_sources, space_builder

    folder = members.write_folder(tmp_path_factory.mktemp("figures"), 9)
    settings = space_builder.BuildSettings(form="as_trained")
    return space_builder.build(
        member_sources.file_sources(folder), settings, folder / "space" / "s.safetensors"
    )


def test_spectrum(space: Space):
    """Squares of the singular values of the members over their sum, in percent."""
    squares = space.singular_values.double().square()
    wanted = 100 * (squares / squares.sum()).numpy()
    drawing = drawn(space_report.draw_spectrum, space)
    each, total = drawing.panels
    np.testing.assert_allclose(each.bars[:, 3], wanted, rtol=1e-4)
    np.testing.assert_allclose(each.bars[:, 0] + each.bars[:, 2] / 2, range(1, len(wanted) + 1))
    (line,) = total.lines.values()
    np.testing.assert_allclose(line, pairs(range(1, len(wanted) + 1), wanted.cumsum()), rtol=1e-4)
    assert drawing.title == f"{space.name}: 9 members" and total.ylim == (0, 100)
    assert (each.title, total.title) == ("Each component", "The first components together")


@pytest.mark.parametrize("scale", [0.7, 0.0])
def test_point(space: Space, scale):
    point = Point(space, scale * space.coefficients[3] + scale * space.coefficients[5], "it")
    drawing = drawn(space_report.draw_point, point, size=(12, 6))
    *histograms, cosines = drawing.panels
    assert (
        len(histograms) == space.known == 8
        and drawing.title == "it: coefficients (red) and the members'"
    )
    for number, panel in enumerate(histograms):
        assert panel.title == f"PC {number + 1}"
        assert list(panel.verticals().values()) == [
            pytest.approx(float(point.coefficients[number]))
        ]
        counts, _ = np.histogram(space.coefficients[:, number].numpy(), 24)
        np.testing.assert_array_equal(panel.bars[:, 3], counts)
    if not scale:
        assert not cosines.lines and "no direction" in cosines.texts[0]
        return
    wanted = torch.nn.functional.cosine_similarity(
        space.coefficients, point.coefficients[None], dim=1
    )
    (name,) = (name for name, xy in cosines.lines.items() if len(xy) == 9)
    np.testing.assert_allclose(
        cosines.lines[name], pairs(range(1, 10), wanted.sort(descending=True).values), rtol=1e-4
    )
    assert cosines.xlabel == "members, most similar first" and cosines.ylabel == "cosine"
