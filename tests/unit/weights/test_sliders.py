"""The ranges of the sliders are those of the members."""

import json
from dataclasses import replace

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
    space_file,
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


def measured(space):
    """The space with two labels more, of which two have a reach."""
    members = len(space.members)
    labels = {name: (torch.arange(members) % 2).float() for name in ("beard", "bald", "red hair")}
    sliders = {
        "bald": {"reached": 0.25, "appears": [0.6, 0.8]},
        "red hair": {"reached": 1.0, "appears": [0.4, 0.4]},
    }
    return replace(space, labels=labels, about={**space.about, "sliders": sliders})


def test_directions_that_reach_more_people_come_first(space):
    known = measured(space)
    fitted = directions.fit(known, known.labels, 4, directions.FitMethod.MEAN_DIFFERENCE)
    ranges = directions.slider_ranges(known.with_directions(directions.with_reach(fitted, known)))
    names = [entry["name"] for entry in ranges["directions"]]
    assert [name for name in names if name in fitted] == ["red hair", "bald", "beard"]
    assert ranges["labels"] == ["red hair", "bald", "beard"]
    first, second, third = (entry for entry in ranges["directions"] if entry["name"] in fitted)
    assert (first["reached"], first["appears"]) == (1.0, [0.4, 0.4])
    assert first["about"].endswith("measured: first shows at 0.4, at 1 in 100% of people")
    assert second["about"].endswith("first shows at 0.6 to 0.8, at 1 in 25% of people")
    assert "reached" not in third and "measured" not in third["about"]


def test_a_build_in_the_place_of_a_space_forgets_what_was_measured_of_that(tmp_path):
    folder = members.write_folder(tmp_path / "loras", 4)
    target = tmp_path / "s.safetensors"
    beside = tmp_path / "s.sliders.json"
    beside.write_text('{"beard": {"reached": 0.5, "appears": [0.2, 0.6]}}', "utf-8")
    sources = member_sources.file_sources(folder)
    settings = space_builder.BuildSettings(form="as_trained")
    assert space_builder.build(sources, settings, target).reaches == {}
    assert not beside.exists()


def test_reach_stays_in_the_file_of_a_space(space, tmp_path):
    known = measured(space)
    fitted = directions.fit(known, known.labels, 4, directions.FitMethod.MEAN_DIFFERENCE)
    known = known.with_directions(directions.with_reach(fitted, known))
    space_file.write(known, tmp_path / "space.safetensors")
    again = space_file.read(tmp_path / "space.safetensors")
    assert again.reaches == known.reaches and len(again.reaches) == 2
    assert again.directions["bald"].reach == known.directions["bald"].reach
    assert again.directions["beard"].reach is None


def test_a_file_beside_a_space_says_what_its_sliders_do(space, tmp_path):
    space_file.write(space, tmp_path / "space.safetensors")
    beside = tmp_path / "space.sliders.json"
    beside.write_text('{"beard": {"reached": 0.5, "appears": [0.2, 0.6]}}', "utf-8")
    reach = space_file.read(tmp_path / "space.safetensors").reaches["beard"]
    assert (reach.reached, reach.appears) == (0.5, (0.2, 0.6))
    space_file.write(space, tmp_path / "space.safetensors")  # another space of the same name
    assert not beside.exists()
    assert space_file.read(tmp_path / "space.safetensors").reaches == {}
    for damaged in (
        "[]",
        "{",
        '{"beard": 1}',
        '{"beard": {"reached": 2, "appears": [0, 1]}}',
        '{"beard": {"reached": 1}}',
        '{"beard": {"reached": 1, "appears": [0, null]}}',
        '{"beard": {"reached": 1, "appears": [0]}}',
    ):
        beside.write_text(damaged, "utf-8")
        with pytest.raises(ValueError, match=r"space\.sliders\.json"):
            space_file.read(tmp_path / "space.safetensors")
