"""The ranges of the sliders are those of the members."""

import json

import members
import pytest
import torch
from glassbox.nodes.weights import (
    directions,
    edit_text,
    identity_guidance,
    member_sources,
    points,
    space_builder,
)
from glassbox.nodes.weights.space import Point


@pytest.fixture(scope="module")
def space(tmp_path_factory):
    folder = members.write_folder(tmp_path_factory.mktemp("loras"), 12)
    target = tmp_path_factory.mktemp("spaces") / "s.safetensors"
    built = space_builder.build(
        member_sources.file_sources(folder), space_builder.BuildSettings(form="as_trained"), target
    )
    labels = {"beard": (built.coefficients[:, 0] > 0).float()}
    return built.with_directions(
        directions.fit(built, labels, 6, directions.FitMethod.LEAST_SQUARES)
    )


def test_low_and_high_lead_to_the_outermost_members(space):
    ranges = directions.slider_ranges(space)["directions"][0]
    vector = space.directions["beard"].vector
    projections = space.coefficients @ (vector / vector.norm())
    origin = Point(space, torch.zeros(space.components))
    for strength, wanted in (
        (ranges["low"], projections.min()),
        (ranges["high"], projections.max()),
    ):
        reached = edit_text.edit(origin, f"beard: {strength!r}").coefficients @ (
            vector / vector.norm()
        )
        torch.testing.assert_close(reached, wanted, rtol=1e-5, atol=1e-6)


def test_raw_is_the_same_step_in_units_of_the_vector(space):
    ranges = directions.slider_ranges(space)["directions"][0]
    origin = Point(space, torch.zeros(space.components))
    one = edit_text.edit(origin, "beard: 1").coefficients
    raw = edit_text.edit(
        origin, f"beard: {ranges['raw']!r}", units=edit_text.Units.RAW
    ).coefficients
    torch.testing.assert_close(raw, one, rtol=1e-5, atol=1e-6)


def test_every_listed_component_is_an_edit(space):
    origin = Point(space, torch.zeros(space.components))
    last = directions.slider_ranges(space)["components"]
    assert float(edit_text.edit(origin, f"PC {last}: 1").coefficients[last - 1]) > 0
    with pytest.raises(ValueError, match="no component"):
        edit_text.edit(origin, f"PC {last + 1}: 1")


def test_slider_ranges_are_strict_json(space):
    assert (
        json.loads(json.dumps(directions.slider_ranges(space), allow_nan=False))["name"]
        == space.name
    )


def test_the_members_are_projected_once_a_space(space, monkeypatch):
    """Of many directions at once, equal to one after another, and not again at the next
    execution.
    """
    generator = torch.Generator().manual_seed(0)
    vectors = {
        f"d{number}": torch.randn(space.components, generator=generator) for number in range(150)
    }
    vectors["zero"] = torch.zeros(space.components)
    many = space.with_directions(
        {name: directions.Direction(vector, 2.0) for name, vector in vectors.items()}
    )
    expected = {
        name: (space.coefficients.double() @ (vector / vector.norm()).double())
        for name, vector in vectors.items()
    }
    for name in ("d0", "d63", "d64", "d149"):
        low, high = many.projections[name]
        assert low == pytest.approx(float(expected[name].min()), rel=1e-5)
        assert high == pytest.approx(float(expected[name].max()), rel=1e-5)
    assert many.projections["zero"] == (0.0, 0.0)
    first = directions.slider_ranges(many)
    monkeypatch.setattr(torch.Tensor, "__matmul__", None)
    assert directions.slider_ranges(many) == first


@pytest.mark.parametrize(
    ("identity", "edit"), [(1.0, 1.0), (0.6, -0.5), (2.0, 0.0), (0.0, 0.0), (0.0, 1.5)]
)
def test_guidance_terms_are_the_formula_of_identity_guidance(space, identity, edit):
    """e_base + s_identity (e_point - e_base) + s_edit (e_edited - e_point), with numbers for the
    predictions.
    """
    first, second = points.sample(space, 0, 2, 7, 1.0)
    prediction = {id(first): 2.0, id(second): -0.7}
    base, terms = identity_guidance.guidance_terms(first, second, identity, edit)
    found = base * 5.0 + sum(weight * prediction[id(point)] for weight, point in terms)
    assert found == pytest.approx(5.0 + identity * (2.0 - 5.0) + edit * (-0.7 - 2.0), abs=1e-12)
    assert base + sum(weight for weight, _ in terms) == pytest.approx(1, abs=1e-12)
    assert all(weight for weight, _ in terms)
