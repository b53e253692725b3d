"""The form on weight updates: common bases, members of any rank and kind, against sums of full
updates in float64.
"""

import os

import members
import pytest
import torch
from glassbox.nodes.common import lora_keys, lora_reader
from glassbox.nodes.common.lora_reader import Factors
from glassbox.nodes.weights import (
    common_basis,
    lora_writer,
    member_sources,
    points,
    projection,
    space_builder,
    space_file,
    space_report,
    update_builder,
)
from glassbox.nodes.weights.common_basis import LayerUpdates, extend_basis
from glassbox.nodes.weights.flat_layout import LayerBasis
from glassbox.nodes.weights.space import Form
from safetensors.torch import save_file

COUNT = 6
TEXT = {"lora_te1_text_model_encoder_layers_0_mlp_fc1": (12, 20)}


def independent(seed, rank, layers=members.LAYERS):
    """Factors that have nothing in common with those of another seed."""
    generator = members.generator(9000 + seed)
    return {
        layer: (
            torch.randn(rank, inputs, generator=generator),
            torch.randn(outputs, rank, generator=generator),
        )
        for layer, (inputs, outputs) in layers.items()
    }


def update(made, scale=1.0):
    return {name: scale * up.double() @ down.double() for name, (down, up) in made.items()}


def products(point):
    return {name: torch.mm(*one.matrices(torch.float64)) for name, one in point.layers().items()}


def write_mixed(folder):
    """Members of other ranks, alphas and key styles; the full updates by name."""
    folder.mkdir()
    wanted = {}
    for number in range(COUNT):
        rank, alpha = 1 + number % 3, 1.0 + number
        made = independent(number, rank)
        style = members.kohya(made, alpha) if number % 2 else members.comfyui(made, extra=False)
        save_file(style, folder / f"m{number}.safetensors")
        wanted[f"m{number}"] = update(made, alpha / rank if number % 2 else 1.0)
    return wanted


def build(folder, target, **settings):
    given = {"form": Form.WEIGHT_UPDATES, "rank": 0, "energy": 1.0, **settings}
    return space_builder.build(
        member_sources.file_sources(folder), space_builder.BuildSettings(**given), target
    )


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    folder = tmp_path_factory.mktemp("updates") / "loras"
    wanted = write_mixed(folder)
    return folder, wanted, build(folder, folder.parent / "space.safetensors")


def flat(wanted, layers=members.LAYERS):
    return torch.stack(
        [torch.cat([one[name].flatten() for name in sorted(layers)]) for one in wanted.values()]
    )


def test_principal_components_are_those_of_the_full_updates(library):
    """Singular values and Gram matrix of the centered updates in float64; relative tolerance
    1e-5.
    """
    _, wanted, space = library
    data = flat(wanted)
    centered = data - data.mean(0)
    values = torch.linalg.svdvals(centered)[: COUNT - 1]
    scale = float(space.deviation[0])
    torch.testing.assert_close(scale * space.singular_values.double(), values, rtol=1e-5, atol=0)
    assert space.deviation.unique().numel() == 1
    found = scale**2 * space.coefficients.double() @ space.coefficients.double().T
    assert float(space.spread[1].square().sum()) == pytest.approx(space.layout.size, rel=1e-4)
    torch.testing.assert_close(
        found, centered @ centered.T, rtol=1e-4, atol=1e-4 * float(values[0]) ** 2
    )
    assert float(space.kept.min()) > 1 - 1e-6


@pytest.mark.parametrize("fraction", [0.0, 0.5, 1.0])
def test_a_point_between_two_members_is_the_sum_of_their_updates(library, fraction):
    """The midpoint of factors has a cosine of 0.4 to the true average; here the error is below
    1e-5.
    """
    _, wanted, space = library
    (point,) = points.mix(
        points.member_point(space, "m1"), points.member_point(space, "m2"), fraction, fraction, 1
    )
    for name, found in products(point).items():
        best = (1 - fraction) * wanted["m1"][name] + fraction * wanted["m2"][name]
        torch.testing.assert_close(found, best, rtol=0, atol=1e-5 * float(best.norm()))


def test_the_mean_is_the_mean_of_the_updates(library):
    _, wanted, space = library
    point = points.member_point(space, "m0").with_coefficients(
        torch.zeros(space.components), "mean"
    )
    for name, found in products(point).items():
        best = sum(one[name] for one in wanted.values()) / COUNT
        torch.testing.assert_close(found, best, rtol=0, atol=1e-5 * float(best.norm()))


@pytest.mark.parametrize(("energy", "limit"), [(0.9, 0), (0.99, 0), (1.0, 4), (0.99, 2)])
def test_the_fraction_a_basis_keeps_is_reported(tmp_path, energy, limit):
    """kept is |core|^2 / |dW|^2 of the full updates; without a limit at least ``energy`` on
    average.
    """
    wanted = write_mixed(tmp_path / "loras")
    space = build(tmp_path / "loras", tmp_path / "s.safetensors", energy=energy, rank=limit)
    for row, (name, updates) in enumerate(wanted.items()):
        assert space.members[row] == name
        inside = sum(
            (basis.left.double().T @ updates[layer] @ basis.right.double().T).square().sum()
            for layer, basis in space.layout.bases.items()
        )
        whole = sum(one.square().sum() for one in updates.values())
        assert float(space.kept[row]) == pytest.approx(float(inside / whole), abs=1e-5)
    if limit:
        assert space.layout.rank <= limit and float(space.kept.min()) < 0.9
        assert "Left out on average: common basis" in space_report.describe_space(space)
    else:
        assert float(space.kept.mean()) >= energy - 1e-3


@pytest.mark.parametrize("shape", [(40, 24), (24, 40)])
def test_a_wide_basis_by_random_projection_comes_near_the_best_one(shape):
    """Random projection, taken for many members, keeps within 1 % of what the truncated SVD of both
    sides keeps.
    """
    inputs, outputs = shape
    spectrum = 0.7 ** torch.arange(8)
    changes = [
        Factors(down * spectrum[:, None], up)
        for down, up in (independent(seed, 8, {"x": (inputs, outputs)})["x"] for seed in range(12))
    ]
    state = torch.random.get_rng_state()
    updates = LayerUpdates.of(changes)
    basis = extend_basis(updates, 1.0, 4)
    assert torch.equal(torch.random.get_rng_state(), state)
    exact = extend_basis(updates, 1.0, 0)
    assert updates.squares == pytest.approx([one.squared_norm() for one in changes], rel=1e-5)
    left = torch.linalg.svd(
        torch.cat([exact.core(one) / one.squared_norm() ** 0.5 for one in changes], dim=1)
    )[0]
    right = torch.linalg.svd(
        torch.cat([exact.core(one) / one.squared_norm() ** 0.5 for one in changes])
    )[2]
    best = LayerBasis(exact.left @ left[:, :4], right[:4] @ exact.right)
    kept = [
        sum(float(b.core(one).square().sum()) / one.squared_norm() for one in changes)
        for b in (basis, best)
    ]
    assert kept[0] > 0.99 * kept[1]
    torch.testing.assert_close(basis.left.T @ basis.left, torch.eye(4), atol=1e-5, rtol=0)


@pytest.mark.parametrize("alike", [False, True])
def test_leading_vectors_are_those_of_the_updates_that_are_never_formed(alike):
    """Against eigenvectors of sum w dW dW^T in float64, for ranks that differ: kept energy within 1
    % of the best.

    Eigenvalues are not above the true ones and, the first being far apart, equal to them (1e-3);
    columns orthonormal (1e-5) though members that are alike leave fewer directions than were drawn.
    """
    generator = members.generator(3)
    common = torch.randn(60, 5, generator=generator)
    changes = []
    for number in range(16):
        rank = 3 + number % 4
        up = (
            common @ torch.randn(5, rank, generator=generator)
            if alike
            else torch.randn(60, rank, generator=generator)
        )
        spectrum = 0.5 ** torch.arange(rank)
        changes.append(
            Factors(
                spectrum[:, None] * torch.randn(rank, 70, generator=generator), up, 0.5 + number
            )
        )
    updates = LayerUpdates.of(changes)
    full = [torch.mm(*one.matrices(torch.float64)) for one in changes]
    assert updates.squares == pytest.approx([float(one.square().sum()) for one in full], rel=1e-5)
    weights = [1 / square for square in updates.squares]
    whole = sum(weight * one @ one.T for weight, one in zip(weights, full, strict=True))
    best = torch.linalg.eigvalsh(whole).flip(0)
    vectors, squares = common_basis._leading_vectors(updates, weights, 8)
    torch.testing.assert_close(vectors.T @ vectors, torch.eye(vectors.shape[1]), atol=1e-5, rtol=0)
    assert vectors.shape[1] == (5 if alike else 8)
    kept = float((vectors.double().T @ whole @ vectors.double()).trace())
    assert kept > 0.99 * float(best[:8].sum())
    assert bool((squares <= best[: len(squares)] * (1 + 1e-5)).all())
    torch.testing.assert_close(squares[:1], best[:1], rtol=1e-3, atol=0)


def test_cores_are_the_updates_between_the_bases():
    """C = L^T dW R^T of the full updates in float64, for a kernel's window and several ranks;
    tolerance 1e-5.
    """
    generator = members.generator(5)
    changes = [
        Factors(
            torch.randn(rank, 4, 3, 3, generator=generator),
            torch.randn(10, rank, 1, 1, generator=generator),
            0.7,
        )
        for rank in (1, 4, 2)
    ]
    updates = LayerUpdates.of(
        [Factors(one.down.half(), one.up.half(), one.scale) for one in changes]
    )
    basis = LayerBasis(*(torch.linalg.qr(torch.randn(*size)).Q for size in ((10, 3), (36, 5))))
    basis = LayerBasis(basis.left, basis.right.T)
    for core, change in zip(updates.cores(basis), changes, strict=True):
        halved = Factors(change.down.half(), change.up.half(), change.scale)
        wanted = (
            basis.left.double().T
            @ torch.mm(*halved.matrices(torch.float64))
            @ basis.right.double().T
        )
        torch.testing.assert_close(core.double(), wanted, rtol=0, atol=1e-5 * float(wanted.norm()))


def test_members_join_and_leave_at_their_own_cost(tmp_path, monkeypatch):
    """The space equals one that is built at once (1e-5), and no other member's file is read."""
    folder, target = tmp_path / "loras", tmp_path / "s.safetensors"
    wanted = write_mixed(folder)
    (folder / "m5.safetensors").rename(tmp_path / "m5.safetensors")
    build(folder, target)
    read = []
    original = lora_reader.keep_open
    monkeypatch.setattr(
        lora_reader,
        "keep_open",
        lambda path, *rest, **named: (read.append(path.name), original(path, *rest, **named))[1],
    )
    (tmp_path / "m5.safetensors").rename(folder / "m5.safetensors")
    (folder / "m0.safetensors").unlink()
    space = build(folder, target)
    assert set(read) == {"m5.safetensors"} and space.members == ("m1", "m2", "m3", "m4", "m5")
    assert space.about["reused"] == ["m1", "m2", "m3", "m4"]
    data = flat({name: wanted[name] for name in space.members})
    values = torch.linalg.svdvals(data - data.mean(0))[:4]
    scale = float(space.deviation[0])
    torch.testing.assert_close(scale * space.singular_values.double(), values, rtol=1e-5, atol=0)
    for name in ("m1", "m5"):
        for layer, found in products(points.member_point(space, name)).items():
            best = wanted[name][layer]
            torch.testing.assert_close(found, best, rtol=0, atol=1e-5 * float(best.norm()))
    read.clear()
    assert build(folder, target).members == space.members and not read


def test_a_changed_file_is_read_again(tmp_path):
    folder, target = tmp_path / "loras", tmp_path / "s.safetensors"
    write_mixed(folder)
    build(folder, target)
    save_file(members.kohya(independent(77, 2)), folder / "m3.safetensors")
    os.utime(folder / "m3.safetensors", ns=(1, 1))
    space = build(folder, target)
    assert "m3" not in space.about["reused"] and len(space.about["reused"]) == COUNT - 1


def test_a_stopped_build_goes_on_with_the_layers_it_has(tmp_path, monkeypatch):
    monkeypatch.setattr(update_builder, "_MOST_LAYERS", 16)
    folder = tmp_path / "loras"
    layers = {f"down_blocks.{number}.attn1.to_q": (8, 6) for number in range(40)}
    folder.mkdir()
    for seed in range(4):
        save_file(members.kohya(independent(seed, 2, layers)), folder / f"m{seed}.safetensors")

    def stop_at_the_last(items):
        for number, item in enumerate(items):
            if len(items) == 3 and number == 2:
                raise KeyboardInterrupt
            yield item

    sources, target = member_sources.file_sources(folder), tmp_path / "s.safetensors"
    settings = space_builder.BuildSettings(form=Form.WEIGHT_UPDATES, rank=0, energy=1.0)
    with pytest.raises(KeyboardInterrupt):
        space_builder.build(sources, settings, target, stop_at_the_last)
    parse, layers_read = lora_reader._parse, []

    def parse_and_count(*given):
        layers_read.append(len((found := parse(*given)).layers))
        return found

    monkeypatch.setattr(lora_reader, "_parse", parse_and_count)
    resumed = space_builder.build(sources, settings, target)
    assert layers_read == [8] * 4
    fresh = space_builder.build(sources, settings, tmp_path / "fresh.safetensors")
    assert torch.equal(resumed.basis, fresh.basis) and torch.equal(
        resumed.layout.left, fresh.layout.left
    )


def test_a_full_difference_and_text_encoder_layers_are_members_too(tmp_path):
    (tmp_path / "loras").mkdir()
    wanted = []
    for seed in range(3):
        made, text = independent(seed, 2), independent(50 + seed, 1, TEXT)
        tensors = members.kohya(made)
        (name, (down, up)), *_ = made.items()
        stem = f"lora_unet_{name.replace('.', '_')}"
        tensors = {key: value for key, value in tensors.items() if not key.startswith(stem)}
        tensors[f"{stem}.diff"] = up @ down
        (layer, (text_down, text_up)), *_ = text.items()
        prefix = layer.replace("lora_te1_", "lora_te_") if seed else layer
        tensors |= {f"{prefix}.lora_down.weight": text_down, f"{prefix}.lora_up.weight": text_up}
        tensors["lora_unet_conv_in.diff_b"] = torch.ones(4)
        save_file(tensors, tmp_path / "loras" / f"m{seed}.safetensors")
        rest = {key: 0.5 * value for key, value in update(made).items() if key != name}
        wanted.append({**rest, name: (up @ down).double(), layer: (text_up @ text_down).double()})
    space = build(tmp_path / "loras", tmp_path / "s.safetensors")
    assert set(space.layout.bases) == set(members.LAYERS) | set(TEXT)
    for row, updates in enumerate(wanted):
        for layer, found in products(points.member_point(space, f"m{row}")).items():
            torch.testing.assert_close(
                found, updates[layer], rtol=0, atol=1e-5 * float(updates[layer].norm())
            )
        lost = 4 / (4 + sum(float(one.square().sum()) for one in updates.values()))
        assert float(space.kept[row]) == pytest.approx(1 - lost, abs=1e-5)
    assert "biases and norms" in space.about["lost"]
    assert any(
        key.startswith("lora_te")
        for key in lora_writer.to_tensors(points.member_point(space, "m0").layers())
    )


def test_duplicates_and_twins_are_noticed(tmp_path):
    folder = tmp_path / "loras"
    write_mixed(folder)
    (folder / "m9.safetensors").write_bytes((folder / "m1.safetensors").read_bytes())
    save_file(
        members.diffusers({n: (d, u * 3.0) for n, (d, u) in independent(5, 3).items()}),
        folder / "n.safetensors",
    )
    save_file(members.kohya(independent(5, 3), 9.0), folder / "o.safetensors")
    space = build(folder, tmp_path / "s.safetensors")
    assert "the same file as m1" in space.about["skipped"]["m9"]
    assert ["n", "o"] in space.about["twins"]
    assert "n and o have the same weights" in space_report.describe_space(space)


def test_two_key_styles_of_one_layer_are_refused():
    made = independent(0, 2)
    with pytest.raises(ValueError, match=r"has two keys for one layer, lora_unet.* and unet"):
        lora_reader.parse_tensors({**members.kohya(made), **members.diffusers(made)})


@pytest.mark.parametrize(
    ("metadata", "base"),
    [
        (
            {
                "ss_base_model_version": "sdxl_base_v1-0",
                "ss_sd_model_name": "ponyDiffusionV6XL.safetensors",
            },
            "Pony",
        ),
        (
            {
                "ss_base_model_version": "sdxl_base_v1-0",
                "ss_sd_model_name": "Illustrious-XL-v0.1.safetensors",
            },
            "Illustrious",
        ),
        ({"ss_base_model_version": "sdxl_base_v1-0"}, "SDXL"),
        ({"modelspec.architecture": "stable-diffusion-xl-v1-base/lora"}, "SDXL"),
        ({"modelspec.architecture": "stable-diffusion-v1/lora"}, "SD1.x"),
        ({"ss_base_model_version": "flux1"}, "Flux"),
        ({}, ""),
    ],
)
def test_the_declared_base(metadata, base):
    assert lora_keys.declared_base(metadata) == base


def test_a_mixture_of_bases_is_pointed_out_before_files_are_read(tmp_path, caplog):
    folder = tmp_path / "loras"
    folder.mkdir()
    for seed, name in enumerate(("ponyDiffusionV6XL", "sd_xl_base_1.0", "sd_xl_base_1.0")):
        about = {"ss_base_model_version": "sdxl_base_v1-0", "ss_sd_model_name": name}
        save_file(members.kohya(independent(seed, 1)), folder / f"m{seed}.safetensors", about)
    space = build(folder, tmp_path / "s.safetensors")
    message = "declare several base models: Pony (1, such as m0), SDXL (2, such as m1)"
    assert message in caplog.text and message in space_report.describe_space(space)
    with pytest.raises(ValueError, match="declare several base models"):
        build(folder, tmp_path / "t.safetensors", on_mismatch="error")


@pytest.mark.parametrize("storage", ["float32", "float16", "int8"])
def test_it_is_saved_and_read(library, tmp_path, storage):
    folder, wanted, _ = library
    space = build(folder, tmp_path / "s.safetensors", storage=storage)
    space_file.write(space, tmp_path / "again.safetensors", storage)
    again = space_file.read(tmp_path / "again.safetensors")
    assert again.layout == space.layout and again.form == Form.WEIGHT_UPDATES
    tolerance = {"float32": 1e-5, "float16": 2e-3, "int8": 2e-2}[storage]
    for layer, found in products(points.member_point(again, "m4")).items():
        best = wanted["m4"][layer]
        assert float((found - best).norm() / best.norm()) < tolerance


def test_projection_says_what_is_outside_the_common_basis(library):
    _, wanted, space = library
    made = independent(123, 2)
    lora = lora_reader.parse_tensors(members.kohya(made, 2.0))
    point, report = projection.project(space, lora, 100, "new")
    data, new = flat(wanted), flat({"new": update(made)})[0]
    centered = data - data.mean(0)
    axes = torch.linalg.svd(centered, full_matrices=False)[2][: COUNT - 1]
    best = data.mean(0) + axes.T @ (axes @ (new - data.mean(0)))
    found = flat({"new": products(point)})[0]
    torch.testing.assert_close(found, best, rtol=0, atol=1e-4 * float(new.norm()))
    assert "Left out of new: rank" in report


def test_gradients_reach_the_coefficients(library):
    """A trainable point's weight function on updates: the gradient equals the product with the
    basis (1e-4).
    """
    from glassbox.nodes.weights.inversion import TrainablePoint

    _, _, space = library
    trainable = TrainablePoint(space, space.coefficients[0], 100)
    layer = space.layout.slots[0].layer
    weight = torch.zeros(space.layout.slots[0].up_shape[0], space.layout.slots[0].down_shape[1])
    target = torch.randn(weight.shape, generator=members.generator(4))
    (trainable.weight_function([(layer, None)])(weight) * target).sum().backward()
    found = trainable.coefficients.grad
    for number in (0, 3):
        step = torch.zeros(space.components)
        step[number] = 1.0
        moved = [
            points.Point(space, space.coefficients[0] + sign * step, "x").layers()[layer]
            for sign in (1, -1)
        ]
        slopes = [float((torch.mm(*one.matrices(torch.float64)) * target).sum()) for one in moved]
        assert float(found[number]) == pytest.approx(
            (slopes[0] - slopes[1]) / 2, rel=1e-3, abs=1e-3
        )


def test_names_of_text_encoder_layers_agree():
    from glassbox.nodes.common.lora_keys import parse

    rest = "text_model_encoder_layers_3_self_attn_q_proj"
    names = [
        f"lora_te_{rest}.lora_down.weight",
        f"lora_te1_{rest}.lora_down.weight",
        "text_encoder.text_model.encoder.layers.3.self_attn.q_proj.lora_A.weight",
        "text_encoders.clip_l.transformer.text_model.encoder.layers.3.self_attn.q_proj.lora_down.weight",
    ]
    assert {parse(name).layer for name in names} == {f"lora_te1_{rest}"}
    other = "text_encoder_2.text_model.encoder.layers.3.self_attn.q_proj.lora_A.weight"
    assert parse(other).layer == f"lora_te2_{rest}"


def test_a_file_is_opened_as_often_whatever_the_number_of_layer_groups(tmp_path, monkeypatch):
    """Once for its header and once for all its layers, and closed after the build; the groups are
    of one layer here.
    """
    folder, opened = tmp_path / "loras", []
    wanted = write_mixed(folder)
    original = lora_reader.open_tensors
    monkeypatch.setattr(
        lora_reader, "open_tensors", lambda path: opened.append(path.name) or original(path)
    )
    build(folder, tmp_path / "together.safetensors")
    assert sorted(opened) == sorted(2 * [f"{name}.safetensors" for name in wanted])
    opened.clear()
    monkeypatch.setattr(update_builder, "_MOST_LAYERS", 1)
    space = build(folder, tmp_path / "one_by_one.safetensors")
    assert (
        sorted(opened) == sorted(2 * [f"{name}.safetensors" for name in wanted])
        and len(members.LAYERS) > 2
    )
    for name in space.members:
        change = products(points.member_point(space, name))
        for layer in members.LAYERS:
            torch.testing.assert_close(change[layer], wanted[name][layer], atol=1e-4, rtol=1e-4)
    opened.clear()
    monkeypatch.setattr(update_builder, "_MOST_OPEN", 2)
    build(folder, tmp_path / "few_open.safetensors")
    assert len(opened) == 2 * 2 + 4 * (1 + len(members.LAYERS))
