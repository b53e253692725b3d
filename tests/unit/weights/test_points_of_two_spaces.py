"""Points of two spaces do not go together: their coefficients mean other things."""

from dataclasses import replace

import members
import pytest
import torch
from glassbox.nodes.weights import identity_guidance, member_sources, points, space_builder
from glassbox.nodes.weights.space import Point


@pytest.fixture(scope="module")
def space(tmp_path_factory):
    folder = members.write_folder(tmp_path_factory.mktemp("loras"), 6)
    target = tmp_path_factory.mktemp("spaces") / "one.safetensors"
    settings = space_builder.BuildSettings(form="as_trained")
    return space_builder.build(member_sources.file_sources(folder), settings, target)


USES = {
    "mix": lambda first, second: points.mix(first, second, 0.0, 1.0, 3),
    "guidance": lambda first, second: identity_guidance.guidance_terms(first, second, 1.0, 0.5),
    "check_same_space": points.check_same_space,
}


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("change", ["members", "layout"])
def test_points_of_two_spaces_are_refused_by_both_names(space, use, change):
    first = Point(space, space.coefficients[0], "ann")
    if change == "members":
        other = replace(space, coefficients=2 * space.coefficients)
    else:
        slots = space.layout.slots
        layers = replace(slots[0], layer="another.layer")
        other = replace(space, layout=replace(space.layout, slots=(layers, *slots[1:])))
    with pytest.raises(ValueError, match=r"ann is in the space \S+ and bert in \S+: take both"):
        USES[use](first, Point(other, space.coefficients[1], "bert"))


@pytest.mark.parametrize("use", USES)
def test_copies_of_one_space_are_one(space, use):
    """As two loads of a file make them."""
    twin = replace(space, coefficients=space.coefficients.clone())
    first, second = (
        Point(space, space.coefficients[0], "ann"),
        Point(twin, twin.coefficients[1], "bert"),
    )
    USES[use](first, second)
    assert torch.equal(twin.coefficients, space.coefficients)
