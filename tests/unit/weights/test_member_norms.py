"""Members at one |dW|: against full updates in float64."""

import members
import pytest
import torch
from glassbox.nodes.common import lora_reader
from glassbox.nodes.weights import (
    lora_writer,
    member_sources,
    points,
    projection,
    space_builder,
    space_report,
)
from safetensors.torch import save_file

STRENGTHS = (0.2, 1.0, 1.0, 1.5, 2.0, 6.0)


def write(folder, numbers=range(6)):
    """Members of rank 2 with nothing in common; the full updates by name."""
    folder.mkdir(exist_ok=True)
    updates = {}
    for number in numbers:
        made = {}
        for seed, (layer, (inputs, outputs)) in enumerate(members.LAYERS.items()):
            generator = members.generator(50 * number + seed)
            down, up = (
                torch.randn(2, inputs, generator=generator),
                torch.randn(outputs, 2, generator=generator),
            )
            made[layer] = (down, STRENGTHS[number] * up)
        save_file(members.kohya(made, 2.0), folder / f"m{number}.safetensors")
        updates[f"m{number}"] = flat(
            {layer: up.double() @ down.double() for layer, (down, up) in made.items()}
        )
    return updates


def flat(layers):
    return torch.cat([layers[layer].flatten() for layer in sorted(members.LAYERS)])


def build(folder, target, **changed):
    settings = space_builder.BuildSettings(
        **{"form": "weight_updates", "rank": 0, "energy": 1.0, **changed}
    )
    return space_builder.build(member_sources.file_sources(folder), settings, target)


def made(point):
    return flat(
        {name: torch.mm(*one.matrices(torch.float64)) for name, one in point.layers().items()}
    )


@pytest.mark.parametrize("form", ["weight_updates", "singular_values"])
def test_members_come_back_at_the_median_norm(tmp_path, form):
    """dW of each member point, relative to the update that was scaled in float64: 1e-4."""
    updates = write(tmp_path / "loras")
    rank = 2 if form == "singular_values" else 0
    space = build(
        tmp_path / "loras", tmp_path / "space.safetensors", norm="equal", form=form, rank=rank
    )
    common = torch.stack([update.norm() for update in updates.values()]).quantile(0.5)
    assert space.common_norm == pytest.approx(float(common), rel=1e-5)
    for name, update in updates.items():
        wanted = update * common / update.norm()
        assert (made(points.member_point(space, name)) - wanted).norm() < 1e-4 * common
    low, high = float(updates["m0"].norm()), float(updates["m5"].norm())
    text = space_report.describe_space(space)
    assert f"|dW| of the members: {low:.3g} to {high:.3g}; all are brought to {common:.3g}" in text
    assert "differ by more than" not in text


def test_components_are_those_of_updates_of_one_norm(tmp_path):
    updates = write(tmp_path / "loras")
    space = build(tmp_path / "loras", tmp_path / "space.safetensors", norm="equal")
    rows = torch.stack([update / update.norm() * space.common_norm for update in updates.values()])
    values = torch.linalg.svdvals(rows - rows.mean(0))[: len(rows) - 1]
    torch.testing.assert_close(
        float(space.deviation[0]) * space.singular_values.double(), values, rtol=1e-4, atol=0
    )
    kept = build(tmp_path / "loras", tmp_path / "kept.safetensors")
    rows = torch.stack(list(updates.values()))
    values = torch.linalg.svdvals(rows - rows.mean(0))[: len(rows) - 1]
    torch.testing.assert_close(
        float(kept.deviation[0]) * kept.singular_values.double(), values, rtol=1e-4, atol=0
    )
    assert "set norm to equal" in space_report.describe_space(kept) and kept.common_norm is None


def test_a_lora_is_projected_at_the_norm_of_the_members(tmp_path):
    """A member's own file is its point, whatever its strength, and the report says which strength
    is its own.
    """
    updates = write(tmp_path / "loras")
    space = build(tmp_path / "loras", tmp_path / "space.safetensors", norm="equal")
    lora = lora_reader.read(tmp_path / "loras" / "m5.safetensors")
    point, report = projection.project(space, lora, 100, "m5")
    member = points.member_point(space, "m5").coefficients
    torch.testing.assert_close(point.coefficients, member, atol=1e-3 * float(member.norm()), rtol=0)
    strength = float(updates["m5"].norm()) / space.common_norm
    assert f"strength {strength:.2f} in W2W Apply gives its own" in report
    assert "against the whole LoRA: 0.000" in report
    assert (strength * made(point) - updates["m5"]).norm() < 1e-3 * updates["m5"].norm()


def test_a_space_that_members_join_is_the_one_built_at_once(tmp_path):
    """The members that are there are not read again, though the median moves."""
    folder, target = tmp_path / "loras", tmp_path / "space.safetensors"
    write(folder, range(4))
    build(folder, target, norm="equal")
    write(folder, range(4, 6))
    grown = build(folder, target, norm="equal")
    once = build(folder, tmp_path / "once.safetensors", norm="equal")
    assert grown.about["reused"] == [f"m{number}" for number in range(4)]
    assert grown.common_norm == pytest.approx(once.common_norm, rel=1e-5)
    torch.testing.assert_close(grown.singular_values, once.singular_values, rtol=1e-4, atol=0)
    for name in once.members:
        one, other = (made(points.member_point(space, name)) for space in (grown, once))
        assert (one - other).norm() < 1e-4 * other.norm()


def test_as_trained_keeps_norms(tmp_path):
    folder = members.write_folder(tmp_path / "loras", 4)
    spaces = [
        build(folder, tmp_path / f"{norm}.safetensors", form="as_trained", rank=1, norm=norm)
        for norm in ("keep", "equal")
    ]
    assert spaces[1].common_norm is None and torch.equal(spaces[0].mean, spaces[1].mean)


@pytest.mark.parametrize("norm", ["keep", "equal"])
@pytest.mark.parametrize("storage", ["float32", "float16", "int8"])
def test_a_member_that_is_not_edited_comes_back_at_its_own_size(tmp_path, storage, norm):
    """Numbers of the export within 5 % of the file's, though others are thirty times stronger and
    have other layers.
    """
    write(tmp_path / "loras")
    wide = {**members.LAYERS, "mid_block.attentions.0.proj_in": (96, 80)}
    for seed in (1, 2):
        made = members.factors(seed, layers=wide)
        save_file(members.kohya(made, 1.0), tmp_path / "loras" / f"n{seed}.safetensors")
    space = build(tmp_path / "loras", tmp_path / "space.safetensors", norm=norm, storage=storage)
    for name in space.members:
        lora, point = (
            lora_reader.read(tmp_path / "loras" / f"{name}.safetensors"),
            points.member_point(space, name),
        )
        found, report = lora_writer.reduce(
            point.lazy_layers(), 0, point.tolerances(), torch.float16
        )
        numbers = [
            sum(one.down.numel() + one.up.numel() for one in layers.values())
            for layers in (lora.layers, found)
        ]
        assert numbers[1] == pytest.approx(numbers[0], rel=0.05), (name, report)
        assert ("1 layers that only rounding of the space changes" in report) == (
            len(lora.layers) < len(wide)
        )


@pytest.mark.parametrize("storage", ["float16", "int8"])
def test_tolerances_are_what_storage_costs(tmp_path, storage):
    """|dW| of a member in the stored space minus that in float32, by layer: at most its tolerance,
    and over a third.
    """
    write(tmp_path / "loras")
    exact, small = (
        build(tmp_path / "loras", tmp_path / f"{one}.safetensors", storage=one)
        for one in ("float32", storage)
    )
    for name in exact.members:
        true, point = points.member_point(exact, name).layers(), points.member_point(small, name)
        found, tolerances = point.layers(), point.tolerances()
        for layer in true:
            off = (
                projection.difference(true[layer], found[layer]) / true[layer].squared_norm()
            ) ** 0.5
            assert tolerances[layer] / 4 < off < tolerances[layer], (name, layer)


@pytest.mark.parametrize("form", ["weight_updates", "singular_values"])
def test_kernels_as_matrices_and_as_kernels_are_one_layer(tmp_path, form):
    """ComfyUI's own trainer writes factors of a 3 x 3 kernel as matrices, kohya's with the window;
    dW to 1e-4.
    """
    layer, folder, updates = "down_blocks.0.resnets.0.conv1", tmp_path / "loras", {}
    folder.mkdir()
    for number in range(4):
        generator = members.generator(number)
        down, up = (
            torch.randn(2, 20, 3, 3, generator=generator),
            torch.randn(24, 2, 1, 1, generator=generator),
        )
        updates[f"m{number}"] = up.flatten(1).double() @ down.flatten(1).double()
        if number % 2 == 0:
            down, up = down.flatten(1), up.flatten(1)
        save_file(members.kohya({layer: (down, up)}, 2.0), folder / f"m{number}.safetensors")
    rank = 2 if form == "singular_values" else 0
    space = build(folder, tmp_path / "space.safetensors", form=form, rank=rank)
    assert len(space.members) == 4 and not space.about["skipped"]
    for name, update in updates.items():
        made = points.member_point(space, name).layers()[layer]
        assert made.down.shape[1:] == (20, 3, 3)
        assert (torch.mm(*made.matrices(torch.float64)) - update).norm() < 1e-4 * update.norm()


@pytest.mark.parametrize("storage", ["float16", "int8"])
def test_a_build_says_what_storage_costs(tmp_path, storage):
    """Within a fifth of the error of members' dW from their mean, against the space in float32."""
    write(tmp_path / "loras")
    exact, small = (
        build(tmp_path / "loras", tmp_path / f"{one}.safetensors", storage=one, norm="equal")
        for one in ("float32", storage)
    )
    mean = made(
        points.member_point(exact, "m0").with_coefficients(torch.zeros(exact.components), "mean")
    )
    errors = []
    for name in exact.members:
        true, found = (made(points.member_point(space, name)) for space in (exact, small))
        errors.append(float((found - true).norm() / (true - mean).norm()))
    assert small.about["storage_error"]["members"] == pytest.approx(
        sum(errors) / len(errors), rel=0.2
    )
    text = space_report.describe_space(small)
    assert ("more than 1e-3, and float32 is exact" in text) == (storage == "int8")
    assert "storage_error" not in exact.about
