"""Near copies of a member count as one for the statistics of directions."""

import members
import numpy as np
import pytest
import torch
from glassbox.nodes.common import lora_reader
from glassbox.nodes.weights import (
    member_groups,
    member_sources,
    points,
    projection,
    space_builder,
    space_report,
)
from safetensors.torch import save_file

from studies.weights.random_labels import passed, people


def test_copies_are_found_and_people_are_not():
    space, _ = people(20, 3, 0)
    assert sorted(map(len, space.groups)) == [3] * 20
    assert all(len({name.split()[0] for name in group}) == 1 for group in space.groups)
    assert people(20, 1, 0)[0].groups == []


@pytest.mark.parametrize(
    "names", [("ada-000010", "ada-000020", "ada"), ("a_20_steps_00001_", "a_40_steps_00001_")]
)
def test_steps_in_names_need_less_likeness(names):
    """Cosine .5 is a copy under such names and none under others; names alone are not enough."""
    generator = np.random.default_rng(0)
    base = generator.normal(size=4000)
    rows = [base + generator.normal(size=4000) for _ in names] + [
        generator.normal(size=4000) for _ in range(8)
    ]
    rows = np.stack(rows) - np.mean(rows, axis=0)
    gram = np.triu(rows @ rows.T)
    others = [f"p{number}" for number in range(8)]
    assert member_groups.find_groups([*names, *others], gram) == [list(names)]
    assert member_groups.find_groups([*"abc"[: len(names)], *others], gram) == []
    assert member_groups.find_groups([*others, *names][: len(rows)], gram) == []
    assert member_groups.find_groups([f"face_{number}" for number in range(len(rows))], gram) == []


def test_groups_are_means_and_unknown_labels_count_for_nothing():
    rows = torch.tensor([[1.0], [3.0], [5.0], [float("nan")]])
    found = member_groups.group_means(rows, ["a", "b", "c", "d"], [["a", "b"], ["c", "d"]])
    assert torch.equal(found, torch.tensor([[2.0], [5.0]]))


@pytest.mark.parametrize("copies", [1, 2, 3])
def test_a_random_label_of_people_with_copies_is_noise(copies):
    """Six draws of twenty people: at most one passes; before groups all did that had copies."""
    assert sum(passed(*people(20, copies, seed)) for seed in range(6)) <= 1


def test_a_true_label_of_people_with_copies_passes():
    assert passed(*people(40, 2, 1, planted=1.0))


def test_a_build_names_near_copies(tmp_path):
    folder = members.write_folder(tmp_path / "loras", 8)
    made = members.factors(3)
    alike = {layer: (down, up + 0.005) for layer, (down, up) in made.items()}
    save_file(members.kohya(alike), folder / "member_03-000010.safetensors")
    settings = space_builder.BuildSettings(form="weight_updates", rank=0)
    space = space_builder.build(
        member_sources.file_sources(folder), settings, tmp_path / "space.safetensors"
    )
    assert space.groups == [["member_03-000010", "member_03"]]
    assert (
        "Near copies, one member for directions: member_03-000010, member_03."
        in space_report.describe_space(space)
    )


@pytest.fixture(scope="module")
def strangers(tmp_path_factory):
    """Nine LoRAs of seven people with nothing in common: two are near copies, two are weak."""
    folder = tmp_path_factory.mktemp("strangers")
    updates = {}
    for number in range(9):
        made = {}
        for seed, (layer, (inputs, outputs)) in enumerate(members.LAYERS.items()):
            generator = members.generator(50 * (number - (number == 8)) + seed)
            strength = 0.2 if number in (3, 4) else 1.0
            down, up = (
                torch.randn(2, inputs, generator=generator),
                torch.randn(outputs, 2, generator=generator),
            )
            made[layer] = (
                down,
                strength * up + (0.1 * torch.randn(outputs, 2) if number == 8 else 0),
            )
        save_file(members.kohya(made, 2.0), folder / f"m{number}.safetensors")
        updates[f"m{number}"] = torch.cat(
            [(up @ down).flatten().double() for down, up in made.values()]
        )
    settings = space_builder.BuildSettings(form="weight_updates", rank=0, energy=0.95)
    space = space_builder.build(
        member_sources.file_sources(folder), settings, folder / "space.safetensors"
    )
    return folder, updates, space


def test_likeness_is_the_cosine_of_updates(strangers):
    """Against full updates, to what the common basis leaves out (energy .95): weak members are not
    alike.
    """
    _, updates, space = strangers
    for name in ("m0", "m3", "m8"):
        found = dict(projection.nearest_members(points.member_point(space, name), 9))
        for other, value in found.items():
            wanted = float(
                updates[name] @ updates[other] / updates[name].norm() / updates[other].norm()
            )
            assert abs(value - wanted) < 0.05, (name, other)
    assert dict(projection.nearest_members(points.member_point(space, "m3"), 9))["m4"] < 0.3


def test_the_error_of_a_projection_is_against_the_file(strangers):
    """A member loses what the basis leaves out; a stranger keeps nearly nothing and counts as none
    of the space.
    """
    folder, updates, space = strangers
    lora = lora_reader.read(folder / "m0.safetensors")
    point, report = projection.project(space, lora, 1000, "m0")
    made = torch.cat(
        [
            torch.mm(*point.layers()[name].matrices(torch.float64)).flatten()
            for name in members.LAYERS
        ]
    )
    error = float((made - updates["m0"]).norm() / updates["m0"].norm())
    assert error > 0.01 and f"against the whole LoRA: {error:.3f}; the point explains" in report
    generator = members.generator(7)
    other = {
        layer: (
            torch.randn(2, inputs, generator=generator),
            torch.randn(outputs, 2, generator=generator),
        )
        for layer, (inputs, outputs) in members.LAYERS.items()
    }
    point, report = projection.project(
        space, lora_reader.parse_tensors(members.kohya(other, 2.0)), 1000, "stranger"
    )
    whole = torch.cat([(up @ down).flatten().double() for down, up in other.values()])
    made = torch.cat(
        [
            torch.mm(*point.layers()[name].matrices(torch.float64)).flatten()
            for name in members.LAYERS
        ]
    )
    assert f"against the whole LoRA: {float((made - whole).norm() / whole.norm()):.3f}" in report
    assert "so it is none of this space" in report and "cosine of dW" in report


def test_a_build_says_how_far_norms_are_apart(strangers):
    _, updates, space = strangers
    norms = sorted(float(update.norm()) for update in updates.values())
    text = space_report.describe_space(space)
    low, high = min(space.about["norms"]), max(space.about["norms"])
    assert abs(low / norms[0] - 1) < 0.05 and abs(high / norms[-1] - 1) < 0.05
    assert f"|dW| of the members: {low:.3g} to {high:.3g}. They differ by more than 3" in text
