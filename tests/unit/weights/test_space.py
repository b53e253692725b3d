"""Principal components of members (section 3.1), their files, and building them block by block."""

import json

import members
import numpy as np
import pytest
import torch
from glassbox.nodes.common import lora_reader
from glassbox.nodes.weights import member_sources, points, space_builder, space_file, space_report
from glassbox.nodes.weights.member_store import MemberStore
from glassbox.nodes.weights.rank_reduction import align_signs, reduce_rank, sign_reference
from glassbox.nodes.weights.space import Point
from matplotlib.figure import Figure
from safetensors.torch import save_file

COUNT = 12


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return members.write_folder(tmp_path_factory.mktemp("loras"), COUNT)


def build(folder, target, track=iter, **settings):
    return space_builder.build(
        member_sources.file_sources(folder), space_builder.BuildSettings(**settings), target, track
    )


@pytest.fixture(scope="module")
def trained(folder, tmp_path_factory):
    """A space in the form of the paper."""
    return build(
        folder, tmp_path_factory.mktemp("spaces") / "trained.safetensors", form="as_trained"
    )


def matrix(folder, space):
    return torch.stack(
        [space.layout.flatten(lora_reader.read(path).layers) for path in sorted(folder.iterdir())]
    )


def test_it_is_the_singular_value_decomposition_of_the_standardized_members(folder, trained):
    """The notebook of the official code: mean(0), std(0), svd; V up to the sign of a column;
    tolerance 1e-5.
    """
    data = matrix(folder, trained).double()
    standard = (data - data.mean(0)) / data.std(0)
    _, values, vectors = torch.linalg.svd(standard, full_matrices=False)
    assert trained.components == COUNT - 1
    torch.testing.assert_close(trained.mean.double(), data.mean(0), atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(trained.deviation.double(), data.std(0), atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(trained.singular_values.double(), values[:-1], atol=1e-5, rtol=1e-5)
    cosines = (trained.basis.double() * vectors[: COUNT - 1]).sum(dim=1).abs()
    torch.testing.assert_close(
        cosines, torch.ones(COUNT - 1, dtype=torch.float64), atol=1e-5, rtol=0
    )


def test_it_is_orthonormal_not_whitened_and_explains_everything(trained):
    identity = trained.basis @ trained.basis.T
    torch.testing.assert_close(identity, torch.eye(COUNT - 1), atol=1e-6, rtol=0)
    mean, deviation = trained.spread
    torch.testing.assert_close(
        deviation, trained.singular_values / (COUNT - 1) ** 0.5, atol=1e-5, rtol=1e-5
    )
    assert mean.abs().max() < 1e-5
    assert float(deviation.square().sum()) == pytest.approx(trained.layout.size, rel=1e-5)
    assert float(trained.explained.sum()) == pytest.approx(1)


def test_members_come_back(folder, trained):
    data = matrix(folder, trained)
    for row in (0, 5, COUNT - 1):
        coefficients = trained.project(data[row])
        torch.testing.assert_close(coefficients, trained.coefficients[row], atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(trained.rebuild(coefficients), data[row], atol=3e-6, rtol=1e-5)


@pytest.mark.parametrize("storage", ["float32", "float16", "int8"])
def test_every_storage_reports_its_error(trained, tmp_path, storage):
    error = space_file.write(trained, tmp_path / "s.safetensors", storage)
    saved = space_file.read(tmp_path / "s.safetensors")
    difference = torch.stack([saved.rebuild(row) for row in trained.coefficients]) - torch.stack(
        [trained.rebuild(row) for row in trained.coefficients]
    )
    standard = (difference / trained.deviation).norm(dim=1)
    whole = torch.stack([(row @ trained.basis).norm() for row in trained.coefficients])
    measured = float((standard / whole).mean())
    assert saved.about["storage_error"]["members"] == pytest.approx(error.member)
    assert error.member == pytest.approx(measured, rel=0.05, abs=1e-6)
    assert measured <= {"float32": 0.0, "float16": 3e-4, "int8": 0.01}[storage] + 1e-6
    assert torch.equal(saved.coefficients, trained.coefficients)
    assert (saved.members, saved.layout, saved.form) == (
        trained.members,
        trained.layout,
        trained.form,
    )


def test_the_header_can_be_read_by_people(trained, tmp_path):
    from safetensors import safe_open

    space_file.write(trained, tmp_path / "s.safetensors")
    with safe_open(tmp_path / "s.safetensors", "pt") as file:
        metadata = file.metadata()
    assert json.loads(metadata["members"])[0] == "member_00"
    assert json.loads(metadata["layout"])["rank"] == 1
    assert json.loads(metadata["space"])["standardized"] is True


def test_other_files_and_other_versions_are_refused(tmp_path):
    save_file({"x": torch.ones(1)}, tmp_path / "x.safetensors")
    with pytest.raises(ValueError, match="is not a weight space"):
        space_file.read(tmp_path / "x.safetensors")
    save_file(
        {"x": torch.ones(1)},
        tmp_path / "v.safetensors",
        {"format": "glassbox_w2w_space", "format_version": "9"},
    )
    with pytest.raises(ValueError, match="format version 9"):
        space_file.read(tmp_path / "v.safetensors")
    (tmp_path / "y.safetensors").write_bytes(b"cut")
    with pytest.raises(ValueError, match="cannot be read"):
        space_file.read(tmp_path / "y.safetensors")


def test_reduction_is_the_truncated_svd_and_balanced():
    made = members.factors(1, rank=4)
    lora = lora_reader.parse_tensors(members.kohya(made, 8.0))
    for one in lora.layers.values():
        up, down = one.matrices(torch.float64)
        u, values, v = torch.linalg.svd(up @ down)
        for rank in (1, 3, 6):
            small, kept, whole = reduce_rank(one, rank, torch.float64)
            product = torch.mm(*small.matrices(torch.float64))
            best = (u[:, :rank] * values[:rank]) @ v[:rank]
            torch.testing.assert_close(product, best, atol=1e-10, rtol=1e-10)
            assert kept == pytest.approx(float(values[:rank].square().sum()))
            assert whole == pytest.approx(float(values.square().sum()))
            torch.testing.assert_close(
                small.down.norm(dim=1), small.up.norm(dim=0), atol=1e-10, rtol=1e-10
            )


def test_equal_changes_are_equal_points_whatever_their_factors(folder, tmp_path):
    """Sign, scale between the factors, alpha, rank and file form of a LoRA do not matter (form
    singular_values).
    """
    space = build(folder, tmp_path / "s.safetensors")
    made = members.factors(4)
    turned = {name: (-3 * down, -up / 3) for name, (down, up) in made.items()}
    wider = {
        name: (torch.cat([down, down]), torch.cat([up / 2, up / 2], 1))
        for name, (down, up) in made.items()
    }
    forms = [
        members.kohya(turned),
        members.comfyui(wider, False),
        members.peft(turned),
        members.kohya(wider, 2.0),
    ]
    for tensors in forms:
        flat, lost = space.flatten(lora_reader.parse_tensors(tensors))
        torch.testing.assert_close(space.project(flat), space.coefficients[4], atol=2e-4, rtol=1e-4)
        assert not lost


def test_sign_alignment_undoes_random_flips():
    layout = build_layout()
    plain = torch.stack(
        [
            layout.flatten(lora_reader.parse_tensors(members.kohya(members.factors(i))).layers)
            for i in range(8)
        ]
    )
    turns = torch.tensor([1.0, -1, -1, 1, -1, 1, 1, -1])[:, None]
    reference = sign_reference(layout, plain * turns)
    whole = align_signs(layout, plain * turns, reference)
    assert torch.equal(whole, plain) or torch.equal(whole, -plain)


def test_signs_follow_both_factors():
    """A pair whose down is orthogonal to the reference is aligned by its up alone, and the other
    way round.
    """
    layout = build_layout()
    reference = layout.flatten(lora_reader.parse_tensors(members.kohya(members.factors(0))).layers)
    for first, last in (("offset", "up_offset"), ("up_offset", "end")):
        pair = reference.clone()
        for slot in layout.slots:
            part = slice(getattr(slot, first), getattr(slot, last))
            pair[part] = torch.roll(reference[part], 1)
            pair[part] -= (
                (pair[part] @ reference[part])
                / (reference[part] @ reference[part])
                * reference[part]
            )
        assert torch.equal(align_signs(layout, -pair, reference), pair)


@pytest.mark.parametrize("against", ["offset", "up_offset"])
def test_each_number_of_both_factors_weighs_the_same(against):
    """One factor along the reference, the other against it: the larger product decides."""
    layout = build_layout()
    reference = layout.flatten(lora_reader.parse_tensors(members.kohya(members.factors(0))).layers)
    for outweighs in (0.9, 1.1):
        pair = reference.clone()
        for slot in layout.slots:
            down = slice(slot.offset, slot.up_offset)
            up = slice(slot.up_offset, slot.end)
            opposed, along = (down, up) if against == "offset" else (up, down)
            ratio = reference[along].square().sum() / reference[opposed].square().sum()
            pair[opposed] *= -outweighs * ratio
        expected = pair if outweighs < 1 else -pair
        assert torch.equal(align_signs(layout, pair, reference), expected)


def build_layout():
    from glassbox.nodes.weights.flat_layout import Layout

    shapes = {
        name: ((1, inputs), (outputs, 1)) for name, (inputs, outputs) in members.LAYERS.items()
    }
    return Layout.of(shapes, 1, 1.0)


def test_members_that_do_not_fit_are_skipped_by_name_or_an_error(tmp_path):
    folder = members.write_folder(tmp_path / "loras", 5)
    other = {name: (2 * inputs, outputs) for name, (inputs, outputs) in members.LAYERS.items()}
    save_file(members.kohya(members.factors(9, layers=other)), folder / "another_base.safetensors")
    broken = members.kohya(members.factors(8))
    broken[next(iter(broken))][0, 0] = float("nan")
    save_file(broken, folder / "a_nan.safetensors")
    save_file({"lora_unet_x.hada_w1_a": torch.ones(1)}, folder / "loha.safetensors")
    flux = {
        "lora_unet_double_blocks_0_img_attn_qkv.lora_down.weight": torch.ones(1, 8),
        "lora_unet_double_blocks_0_img_attn_qkv.lora_up.weight": torch.ones(8, 1),
    }
    save_file(flux, folder / "flux.safetensors")
    space = build(folder, tmp_path / "s.safetensors")
    skipped = space.about["skipped"]
    assert len(space.members) == 5
    assert set(skipped) == {"another_base", "a_nan", "loha", "flux"}
    trained = build(folder, tmp_path / "u.safetensors", form="as_trained")
    assert trained.members == space.members and set(trained.about["skipped"]) == set(skipped)
    assert (
        "(64,)" in skipped["another_base"]
        and "NaN" in skipped["a_nan"]
        and "shares no layer" in skipped["flux"]
    )
    with pytest.raises(ValueError, match=r"loha: .*Remove it"):
        build(folder, tmp_path / "t.safetensors", on_mismatch=space_builder.OnMismatch.ERROR)


def test_members_of_mixed_ranks_and_targets(tmp_path):
    folder = members.write_folder(tmp_path / "loras", 4)
    save_file(members.kohya(members.factors(7, rank=5), 5.0), folder / "wide.safetensors")
    few = dict(list(members.factors(8).items())[:2])
    save_file(members.kohya(few), folder / "two_layers.safetensors")
    space = build(folder, tmp_path / "s.safetensors", rank=2)
    assert len(space.members) == 6 and space.layout.rank == 2
    kept = dict(zip(space.members, space.kept.tolist(), strict=True))
    assert (
        kept["member_00"] == pytest.approx(1)
        and kept["two_layers"] == pytest.approx(1)
        and kept["wide"] < 0.999
    )
    with pytest.raises(ValueError, match=r"wide: .* rank 5 and the space 1"):
        build(
            folder,
            tmp_path / "t.safetensors",
            form="as_trained",
            on_mismatch=space_builder.OnMismatch.ERROR,
        )


def test_a_space_without_standardization(folder, tmp_path):
    space = build(folder, tmp_path / "s.safetensors", form="as_trained", standardize=False)
    data = matrix(folder, space).double()
    values = torch.linalg.svdvals(data - data.mean(0))[:-1]
    torch.testing.assert_close(space.singular_values.double(), values, atol=1e-5, rtol=1e-5)
    assert torch.equal(space.deviation, torch.ones(space.layout.size))


def test_constant_numbers_give_no_nan(tmp_path):
    folder = tmp_path / "loras"
    folder.mkdir()
    for seed in range(4):
        tensors = members.kohya(members.factors(seed))
        tensors[next(iter(tensors))][:] = 2.0
        save_file(tensors, folder / f"{seed}.safetensors")
    space = build(folder, tmp_path / "s.safetensors", form="as_trained")
    assert torch.isfinite(space.basis).all() and torch.isfinite(space.coefficients).all()
    torch.testing.assert_close(
        space.rebuild(space.coefficients[2]), matrix(folder, space)[2], atol=1e-5, rtol=1e-5
    )


class StoppedError(Exception):
    pass


def test_a_stopped_build_resumes(folder, tmp_path, monkeypatch):
    target = tmp_path / "s.safetensors"
    added = []
    add = MemberStore.add

    def counting(self, name, *rest):
        if len(added) == 5:
            raise StoppedError
        add(self, name, *rest)
        added.append(name)

    monkeypatch.setattr(MemberStore, "add", counting)
    with pytest.raises(StoppedError):
        build(folder, target)
    assert not target.exists() and len(added) == 5
    again = []
    monkeypatch.setattr(
        MemberStore, "add", lambda self, name, *rest: (add(self, name, *rest), again.append(name))
    )
    resumed = build(folder, target)
    assert again == [f"member_{number:02}" for number in range(5, COUNT)]
    whole = build(folder, tmp_path / "whole.safetensors")
    assert torch.equal(resumed.basis, whole.basis) and torch.equal(
        resumed.coefficients, whole.coefficients
    )
    assert not list(tmp_path.glob("*.building"))


@pytest.mark.parametrize("form", ["weight_updates", "singular_values"])
def test_a_build_is_made_again_for_another_model_and_over_a_saved_space(folder, tmp_path, form):
    """Another MODEL reads DoRA, OFT and GLoRA differently; Save Space may have quantized what lies
    there.
    """
    target, sources = tmp_path / "s.safetensors", member_sources.file_sources(folder)
    settings = space_builder.BuildSettings(form=form)
    first = space_builder.build(sources, settings, target, base="one MODEL")
    before = target.stat().st_mtime_ns
    space_builder.build(sources, settings, target, base="one MODEL")
    assert target.stat().st_mtime_ns == before
    again = space_builder.build(sources, settings, target, base="another MODEL")
    assert target.stat().st_mtime_ns != before and not again.about.get("reused")
    space_file.write(first, target, "int8")
    built = space_builder.build(sources, settings, target, base="another MODEL")
    assert (
        built.basis_scale is None
        and torch.equal(built.basis, first.basis)
        and not built.about.get("reused")
    )


def test_stored_blocks_are_columns_of_the_data(tmp_path, monkeypatch):
    from glassbox.nodes.weights import member_store as module

    monkeypatch.setattr(module, "_BLOCK_BYTES", 4 * 1024 * 3)
    data = np.random.default_rng(0).standard_normal((3, 5000)).astype(np.float32)
    held = MemberStore(tmp_path / "a", "key", 3, 5000)
    for row in range(3):
        held.add(str(row), data[row], {}, 1.0)
    assert len(held.blocks()) == 5
    again = MemberStore(tmp_path / "a", "key", 3, 5000)
    assert list(again.members) == ["0", "1", "2"]
    assert np.array_equal(
        np.concatenate([again.read(block) for block in again.blocks()], axis=1), data
    )
    assert not MemberStore(tmp_path / "a", "other key", 3, 5000).members


def test_a_space_needs_two_different_members(tmp_path):
    folder = members.write_folder(tmp_path / "one", 1)
    with pytest.raises(ValueError, match="needs at least two members"):
        build(folder, tmp_path / "s.safetensors")
    same = tmp_path / "same"
    same.mkdir()
    for name in "ab":
        save_file(members.kohya(members.factors(1)), same / f"{name}.safetensors", {"name": name})
    with pytest.raises(ValueError, match="All members are the same"):
        build(same, tmp_path / "s.safetensors", standardize=False)


def test_the_report_follows_from_the_file_alone(folder, tmp_path):
    """Recomputed from its tensors and header with nothing of the pack."""
    from safetensors import safe_open

    path = tmp_path / "s.safetensors"
    space = build(folder, path, components=5)
    report = f"{space_report.describe_space(space)}\n{space_report.describe_members(space)}"
    with safe_open(path, "pt") as file:
        tensors = {name: file.get_tensor(name).double() for name in file.keys()}  # noqa: SIM118
        members, layout = (json.loads(file.metadata()[name]) for name in ("members", "layout"))
    squares, rows = tensors["singular_values"].square(), tensors["coefficients"]
    explained = squares[:5] / squares.sum()
    inside = rows.square().sum(1) / tensors["squares"]
    standard = tensors["basis"].T @ rows.T  # (D, n): what the components say of each member
    assert f"{len(members)} members" in report and f"rank {layout['rank']}" in report
    assert f"5 components explain {100 * float(explained.sum()):.1f} %" in report
    assert f"Rank 1 keeps {100 * float(tensors['kept'].mean()):.1f} %" in report
    assert f"5 components keep {100 * float(inside.mean()):.1f} % of a member" in report
    assert float(inside.min()) < 0.999 and report.splitlines()[-10].strip().startswith(
        members[int(inside.argmin())]
    )
    torch.testing.assert_close(standard.square().sum(0), rows.square().sum(1), atol=1e-4, rtol=1e-4)
    point = Point(space, space.coefficients[3] + space.coefficients[4], "between")
    report, wanted = space_report.describe_point(point), rows[3] + rows[4]
    cosines = rows @ wanted / rows.norm(dim=1) / wanted.norm()
    best = cosines.topk(5)
    for value, row in zip(best.values, best.indices, strict=True):
        assert f"{members[row]}: cosine {float(value):+.3f}" in report
    scores = (wanted - rows.mean(0)) / rows.std(0)
    assert f"length {float(wanted.norm()):.2f}" in report
    assert f"coefficient {float(scores.square().mean().sqrt()):.2f}" in report


def weaker(coefficients, members):
    """Root mean square of the second half of coefficients in standard deviations of some members,
    float64.
    """
    rows = members.double().numpy()
    scores = (coefficients.double().numpy() - rows.mean(axis=0)) / rows.std(axis=0, ddof=1)
    return float(np.sqrt((scores[rows.shape[1] // 2 :] ** 2).mean()))


@pytest.mark.parametrize("times", [0.99, 1.01])
def test_a_point_with_strong_weaker_components_is_outside(trained, times):
    """The limit is what 95 % of the members keep to, each measured against all others, left out one
    by one.
    """
    rows = trained.coefficients
    left_out = [
        weaker(row, torch.cat([rows[:number], rows[number + 1 :]]))
        for number, row in enumerate(rows)
    ]
    limit = float(np.quantile(left_out, 0.95))
    first = rows.mean(dim=0) + (rows[0] - rows.mean(dim=0)) * times * limit / weaker(rows[0], rows)
    warning = space_report.warn_outside(Point(trained, first, "it"))
    assert bool(warning) == (times > 1)
    assert not warning or f"members under {limit:.2f}" in warning


def test_one_in_twenty_members_would_be_called_outside(trained):
    called = [
        bool(space_report.warn_outside(Point(trained, row, "it"))) for row in trained.coefficients
    ]
    assert np.mean(called) <= 0.05 + 1 / len(called)


@pytest.mark.parametrize(("scale", "lines"), [(1.0, 2), (0.0, 0)], ids=["a point", "mean"])
def test_the_mean_has_no_cosines_to_the_members(trained, scale, lines):
    figure = Figure()
    space_report.draw_point(figure, Point(trained, scale * trained.coefficients[3], "it"))
    last = figure.axes[-1]
    assert len(last.lines) == lines and len(last.texts) == (lines == 0)


@pytest.mark.parametrize("spread", [0.0, 1.0, 3.0])
def test_points_near_members_keep_the_law_of_the_members(trained, spread):
    """Mean and standard deviation of a smoothed bootstrap (to 5 standard errors); its members come
    back at 0.
    """
    found = points.near_members(trained, 5, 4000, 1000, spread)
    rows = [trained.members.index(point.name.split()[1]) for point in found]
    near, many = trained.coefficients[rows], torch.stack([point.coefficients for point in found])
    assert set(rows) == set(range(COUNT))
    (mean, deviation), h = trained.spread, spread / 2
    kept = max(0.0, 1 - h * h) ** 0.5
    # Rows are drawn among n members, whose deviation about their mean is sqrt((n - 1) / n) of the
    # unbiased one.
    wanted = deviation * (kept**2 * (COUNT - 1) / COUNT + h * h) ** 0.5
    left = (many - mean - kept * (near - mean)).std(0)
    torch.testing.assert_close(left, h * deviation, rtol=0.06, atol=1e-5)
    torch.testing.assert_close(many.std(0), wanted, rtol=0.06, atol=1e-5)
    assert float(((many.mean(0) - mean) / wanted.clamp_min(1e-6)).abs().max()) < 5 / 4000**0.5
    if spread == 0:
        torch.testing.assert_close(many, near, atol=1e-6, rtol=1e-5)
    assert not points.near_members(trained, 5, 1, 3, spread)[0].coefficients[3:].any()
