"""Numbers in reports against dense matrices, fractions that add up to 1, and criteria that
disagree.
"""

import itertools
import math
import re

import members
import numpy as np
import pytest
import torch
from glassbox.nodes.common import lora_reader
from glassbox.nodes.weights import (
    directions,
    member_sources,
    points,
    projection,
    space_builder,
    space_report,
)
from glassbox.nodes.weights.directions import FitMethod
from glassbox.nodes.weights.space import Form, Point, flatten_lora
from safetensors.torch import save_file

COUNT = 9
FOREIGN = {"mid_block.attentions.0.transformer_blocks.0.attn1.to_k": (18, 30)}


def dense(made):
    return {layer: up.double() @ down.double() for layer, (down, up) in made.items()}


def lora(tmp_path, made, name="l"):
    path = tmp_path / f"{name}.safetensors"
    save_file(members.kohya(made, float(len(next(iter(made.values()))[0]))), path)
    return lora_reader.read(path)


def squared(updates):
    return sum(float(one.square().sum()) for one in updates.values())


@pytest.fixture(scope="module")
def made():
    """Members of rank 3, all the more alike the smaller their number."""
    return {f"m{seed}": members.factors(seed, 3) for seed in range(COUNT)}


@pytest.fixture(scope="module", params=[Form.SINGULAR_VALUES, Form.WEIGHT_UPDATES])
def space(made, tmp_path_factory, request):
    """One of rank 2 and five components, so that both the rank and the components lose
    something.
    """
    folder = tmp_path_factory.mktemp("dense")
    for name, factors in made.items():
        save_file(members.kohya(factors, 3.0), folder / f"{name}.safetensors")
    settings = space_builder.BuildSettings(form=request.param, rank=2, components=5)
    return space_builder.build(
        member_sources.file_sources(folder), settings, folder / "s" / "s.safetensors"
    )


def kept_by_rank(space, updates):
    """Of the full update of each layer: what its two largest singular values, or the common bases,
    hold.
    """
    if space.form == Form.SINGULAR_VALUES:
        return sum(
            float(torch.linalg.svdvals(one)[:2].square().sum()) for one in updates.values()
        ) / squared(updates)
    cores = (
        basis.left.double().T @ updates[layer] @ basis.right.double().T
        for layer, basis in space.layout.bases.items()
    )
    return sum(float(core.square().sum()) for core in cores) / squared(updates)


def percent(fraction, digits=1):
    return f"{100 * fraction:.{digits}f}"


def test_what_the_rank_keeps(space, made):
    kept = [kept_by_rank(space, dense(one)) for one in made.values()]
    torch.testing.assert_close(
        space.kept.double(), torch.tensor(kept, dtype=torch.float64), atol=1e-5, rtol=0
    )
    text = space_report.describe_space(space)
    ends = f"({percent(min(kept))} to {percent(max(kept))} %)"
    assert (
        f"keeps {percent(np.mean(kept))} % of a member's change on average {ends}" in text
        and max(kept) < 0.99
    )
    (lost,) = re.findall(r"Left out on average: (?:rank|common basis), ([\d.]+) %", text)
    assert float(lost) == pytest.approx(100 * (1 - np.mean(kept)), abs=0.02)


def test_what_the_components_keep(space):
    """Of each standardized member, as numbers of the layout; the report lists the worst first."""
    standard = standardized(space)
    inside = (standard @ space.basis.double().T).square().sum(1) / standard.square().sum(1)
    lines = space_report.describe_members(space, 4).splitlines()
    assert lines[0].startswith(
        f"5 components keep {percent(float(inside.mean()))} % of a member on average"
    )
    worst = inside.argsort()[:4].tolist()
    for line, row in zip(lines[1:], worst, strict=True):
        name, components, rank = re.fullmatch(
            r"  (\w+): components ([\d.]+) %, rank ([\d.]+) %", line
        ).groups()
        assert name == space.members[row]
        assert float(components) == pytest.approx(100 * float(inside[row]), abs=0.11)
        assert float(rank) == pytest.approx(100 * float(space.kept[row]), abs=0.06)


def standardized(space):
    """The members (n, D) in float64, read again."""
    rows = []
    for seed in range(COUNT):
        factors = members.factors(seed, 3)
        layers = {name: lora_reader.Factors(down, up) for name, (down, up) in factors.items()}
        flat, _ = flatten_lora(
            lora_reader.Lora(layers, {}, {}), space.layout, space.form, space.sign_reference
        )
        rows.append((flat.double() - space.mean.double()) / space.deviation.double())
    return torch.stack(rows)


def test_the_variance_that_components_explain(space):
    values = torch.linalg.svdvals(standardized(space) - standardized(space).mean(0)).square()
    explained = values[:5] / values.sum()
    half = next(
        n for n in range(1, 6) if float(explained[:n].sum()) >= 0.5 * float(explained.sum())
    )
    text = (
        f"5 components explain {percent(float(explained.sum()))} % of the members' variance; half "
        "of that is in the "
    )
    assert f"{text}first {half}." in space_report.describe_space(space)


def test_fractions_of_a_lora_add_up_to_one(space, made, tmp_path):
    """What is left out for each reason, and what stays, of a LoRA with a layer that the space does
    not have.
    """
    factors = {**members.factors(77, 3), **members.factors(5, 3, FOREIGN)}
    updates = dense(factors)
    whole, foreign = squared(updates), squared({name: updates[name] for name in FOREIGN})
    known = {name: one for name, one in updates.items() if name not in FOREIGN}
    kept = kept_by_rank(space, known) * squared(known) / whole
    _, lost = flatten_lora(lora(tmp_path, factors), space.layout, space.form, space.sign_reference)
    assert lost["other layers"] == pytest.approx(foreign / whole, rel=1e-4)
    assert sum(lost.values()) + kept == pytest.approx(1, abs=1e-5) and 0.1 < kept < 0.95


def test_parts_that_a_reader_drops_are_part_of_the_whole(space, made):
    layers = {name: lora_reader.Factors(down, up) for name, (down, up) in made["m3"].items()}
    whole = squared(dense(made["m3"]))
    dropped = {"biases": 0.5 * whole, "norms": 0.25 * whole}
    _, lost = flatten_lora(
        lora_reader.Lora(layers, {}, dropped), space.layout, space.form, space.sign_reference
    )
    assert lost["biases"] == pytest.approx(0.5 / 1.75, rel=1e-4) and lost["norms"] == pytest.approx(
        0.25 / 1.75, rel=1e-4
    )
    kept = kept_by_rank(space, dense(made["m3"]))
    assert sum(lost.values()) == pytest.approx(0.75 / 1.75 + (1 - kept) / 1.75, rel=1e-3)


@pytest.mark.parametrize("form", [Form.SINGULAR_VALUES, Form.WEIGHT_UPDATES])
def test_what_one_member_alone_leaves_out_counts_as_nothing_in_the_others(made, tmp_path, form):
    """A bias, in the mean over four members of which one has it."""
    bias = torch.randn(30, generator=torch.Generator().manual_seed(1))
    for number, (name, factors) in enumerate(list(made.items())[:4]):
        tensors = members.kohya(factors, 3.0)
        if number == 2:
            tensors["lora_unet_mid_block_attentions_0_proj_in.diff_b"] = bias
        save_file(tensors, tmp_path / f"{name}.safetensors")
    space = space_builder.build(
        member_sources.file_sources(tmp_path),
        space_builder.BuildSettings(form=form, rank=2, components=2),
        tmp_path / "s" / "s.safetensors",
    )
    size = float(bias.double().square().sum())
    fraction = size / (size + squared(dense(made["m2"])))
    assert fraction > 0.01
    assert space.about["lost"]["biases and norms"] == pytest.approx(fraction / 4, rel=1e-4)


def test_the_report_of_a_projection(space, tmp_path):
    """Its distance from the LoRA by full updates, its length by standardized numbers, its neighbors
    by cosine.
    """
    found = lora(tmp_path, members.factors(77, 3))
    point, report = projection.project(space, found, 4, "it")
    flat, _ = flatten_lora(found, space.layout, space.form, space.sign_reference)
    standard = (flat.double() - space.mean.double()) / space.deviation.double()
    coefficients = space.basis[:4].double() @ standard
    torch.testing.assert_close(point.coefficients[:4].double(), coefficients, atol=1e-4, rtol=1e-4)
    assert not point.coefficients[4:].any()
    inside = float(coefficients.square().sum() / standard.square().sum())
    assert (
        f"Kept by the space's components: {percent(inside)} % of its difference from the mean"
        in report
    )
    rebuilt = space.mean.double() + space.deviation.double() * (
        coefficients @ space.basis[:4].double()
    )
    whole, other = dense(members.factors(77, 3)), products(space.layout.unflatten(rebuilt.float()))
    apart = squared({name: whole[name] - other[name] for name in whole}) / squared(whole)
    assert (
        f"|dW - dW'| / |dW| against the whole LoRA: {apart**0.5:.3f}; the point explains" in report
    )
    assert f"{percent(max(1 - apart, 0))} % of |dW|^2" in report
    rows = space.coefficients.double()
    what, cosines = (
        "coefficients",
        rows[:, :4] @ coefficients / rows.norm(dim=1) / coefficients.norm(),
    )
    if space.form == "weight_updates":
        flats = space.mean.double() + space.deviation.double() * (rows @ space.basis.double())
        what, cosines = "dW", flats @ flat.double() / flats.norm(dim=1) / squared(whole) ** 0.5
    best = ", ".join(
        f"{space.members[row]} {float(cosines[row]):+.3f}"
        for row in cosines.argsort(descending=True)[:3]
    )
    assert f"Nearest members by cosine of {what}: {best}." in report


def products(layers):
    return {name: torch.mm(*one.matrices(torch.float64)) for name, one in layers.items()}


def test_the_report_of_a_point(space):
    """Between two members, at .3 and 1.4 times them, so that no number is 1."""
    rows = space.coefficients.double()
    wanted = 0.3 * rows[2] + 1.4 * rows[6]
    text = space_report.describe_point(Point(space, wanted.float(), "it"))
    lengths = rows.norm(dim=1)
    assert (
        f"it: length {float(wanted.norm()):.2f}; members {float(lengths.mean()):.2f} on average, "
        f"{float(lengths.min()):.2f} to {float(lengths.max()):.2f}."
    ) in text
    scores = (wanted - rows.mean(0)) / rows.std(0)
    far = scores.abs().argsort(descending=True)[:3]
    named = ", ".join(f"PC {int(row) + 1} ({float(scores[row]):+.2f})" for row in far)
    assert (
        f"coefficient {float(scores.square().mean().sqrt()):.2f} standard deviations; most extreme "
        f"{named}." in text
    )


def test_a_mixture_is_the_mixture_of_full_updates(space, made):
    """At weights that are neither 0 nor 1, in the numbers of the space."""
    one, other = (points.member_point(space, name) for name in ("m1", "m4"))
    mixed = Point(space, 0.3 * one.coefficients + 0.5 * other.coefficients, "mixed")
    base, first, second = space.rebuild(torch.zeros(5)), one.flat, other.flat
    torch.testing.assert_close(
        mixed.flat, base + 0.3 * (first - base) + 0.5 * (second - base), atol=1e-5, rtol=1e-4
    )


def population(count=60, seed=0):
    """Coefficients (n, 6) of which the first says who has an attribute."""
    generator = np.random.default_rng(seed)
    numbers = generator.normal(size=(count, 6)) * np.array([3, 2, 1, 1, 0.5, 0.5])
    return numbers, (numbers[:, 0] + generator.normal(size=count) > 0.4).astype(float)


@pytest.mark.parametrize(
    "method", [FitMethod.LEAST_SQUARES, FitMethod.MEAN_DIFFERENCE, FitMethod.RIDGE]
)
def test_reliability_does_not_depend_on_where_the_mean_lies(method):
    """Each half is centered by itself: neither coefficients nor labels far from 0 change
    anything.
    """
    numbers, target = population()
    found = directions.split_half(numbers, target, method)
    moved = directions.split_half(numbers + np.array([50, -20, 7, 0, 0, 3]), target + 10, method)
    assert found == pytest.approx(moved, abs=1e-6) and 0.1 < found[0] < 0.999


def test_reliability_by_its_definition():
    """Least squares on halves that hold half of both classes each, by normal equations."""
    numbers, target = population(41)
    generator, cosines = np.random.default_rng(0), []
    for _ in range(5):
        half = np.zeros(len(target), bool)
        for rows in (np.flatnonzero(target > 0.5), np.flatnonzero(target <= 0.5)):
            half[generator.permutation(rows)[::2]] = True
        normals = []
        for rows in (half, ~half):
            x, y = numbers[rows] - numbers[rows].mean(0), target[rows] - target[rows].mean()
            normals.append(np.linalg.solve(x.T @ x, x.T @ y))
        cosines.append(
            normals[0] @ normals[1] / np.linalg.norm(normals[0]) / np.linalg.norm(normals[1])
        )
    found, _ = directions.split_half(numbers, target, FitMethod.LEAST_SQUARES, permutations=0)
    assert found == pytest.approx(np.mean(cosines), abs=1e-9)


@pytest.mark.parametrize(
    ("accuracy", "reliability"),
    list(itertools.product(["above", "equal", "below", "unknown"], repeat=2)),
)
def test_a_direction_is_noise_if_either_measure_fails(space, monkeypatch, accuracy, reliability):
    values = {"above": 0.8, "equal": 0.6, "below": 0.4, "unknown": math.nan}
    monkeypatch.setattr(directions, "_cross_validate", lambda *_, **__: (values[accuracy], 0.6))
    monkeypatch.setattr(directions, "split_half", lambda *_, **__: (values[reliability], 0.6))
    labels = {"beard": torch.arange(COUNT) % 2 * 1.0}
    found = directions.fit(space, labels, 3, FitMethod.LEAST_SQUARES)["beard"]
    assert found.noise == ((accuracy, reliability) != ("above", "above"))
    assert ("(noise)" in directions.describe({"beard": found})) == found.noise
