"""The ranges of the sliders are those of the members."""

import json

import members
import pytest
import torch
from glassbox.nodes.weights import building, directions, edits, sliders
from glassbox.nodes.weights import sources as member_sources
from glassbox.nodes.weights.space import Point


@pytest.fixture(scope="module")
def space(tmp_path_factory):
    folder = members.write_folder(tmp_path_factory.mktemp("loras"), 12)
    target = tmp_path_factory.mktemp("spaces") / "s.safetensors"
    built = building.build(member_sources.file_sources(folder), building.Settings(form="as trained"), target)
    labels = {"beard": (built.coefficients[:, 0] > 0).float()}
    return built.with_directions(directions.fit(built, labels, 6, directions.LEAST_SQUARES))


def test_low_and_high_lead_to_the_outermost_members(space):
    told = sliders.outline(space)["directions"][0]
    vector = space.directions["beard"].vector
    projections = space.coefficients @ (vector / vector.norm())
    origin = Point(space, torch.zeros(space.components))
    for strength, wanted in ((told["low"], projections.min()), (told["high"], projections.max())):
        reached = edits.edit(origin, f"beard: {strength!r}").coefficients @ (vector / vector.norm())
        torch.testing.assert_close(reached, wanted, rtol=1e-5, atol=1e-6)


def test_raw_is_the_same_step_in_units_of_the_vector(space):
    told = sliders.outline(space)["directions"][0]
    origin = Point(space, torch.zeros(space.components))
    one = edits.edit(origin, "beard: 1").coefficients
    raw = edits.edit(origin, f"beard: {told['raw']!r}", units=edits.RAW).coefficients
    torch.testing.assert_close(raw, one, rtol=1e-5, atol=1e-6)


def test_every_component_that_is_told_is_an_edit(space):
    origin = Point(space, torch.zeros(space.components))
    last = sliders.outline(space)["components"]
    assert float(edits.edit(origin, f"PC {last}: 1").coefficients[last - 1]) > 0
    with pytest.raises(ValueError, match="no component"):
        edits.edit(origin, f"PC {last + 1}: 1")


def test_an_outline_is_json_without_surprises(space):
    assert json.loads(json.dumps(sliders.outline(space), allow_nan=False))["name"] == space.name
