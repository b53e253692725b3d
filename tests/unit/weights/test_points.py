"""Sampling, edits, directions and mixing against the formulas of the paper and its official
code.
"""

import dataclasses

import absent_packages
import members
import numpy as np
import pytest
import torch
from glassbox.nodes.common import named_strengths
from glassbox.nodes.weights import (
    directions,
    edit_text,
    flat_layout,
    member_sources,
    points,
    space_builder,
)
from glassbox.nodes.weights import space as space_module
from glassbox.nodes.weights.space import Direction, Point

COUNT = 24


@pytest.fixture(scope="module")
def space(tmp_path_factory):
    folder = members.write_folder(tmp_path_factory.mktemp("loras"), COUNT)
    target = tmp_path_factory.mktemp("spaces") / "s.safetensors"
    return space_builder.build(
        member_sources.file_sources(folder), space_builder.BuildSettings(form="as_trained"), target
    )


@pytest.fixture(scope="module")
def known_labels(space):
    """Labels that lie along known coefficients."""
    return {
        "beard": (space.coefficients[:, 0] > 0).float(),
        "glasses": (space.coefficients[:, 1] + 0.5 * space.coefficients[:, 0] > 0).float(),
        "hair": (space.coefficients[:, 2] > 0).float(),
    }


@pytest.fixture(scope="module")
def directed(space, known_labels):
    return space.with_directions(
        directions.fit(space, known_labels, 6, directions.FitMethod.LEAST_SQUARES)
    )


def test_sample_is_the_official_loop(space):
    """`sample_weights`: torch.normal(mean_k, factor * std_k, (1, 1)) in a loop, mean and unbiased
    std of the rows.
    """
    mean, deviation = space.coefficients.mean(0), space.coefficients.std(0)
    with torch.random.fork_rng():
        torch.manual_seed(42)
        wanted = [
            torch.normal(float(mean[k]), 0.8 * float(deviation[k]), (1, 1))[0, 0] for k in range(7)
        ]
    point = points.sample(space, 42, 1, 7, 0.8)[0]
    torch.testing.assert_close(point.coefficients[:7], torch.stack(wanted), atol=1e-6, rtol=1e-6)
    assert not point.coefficients[7:].any() and len(point.coefficients) == space.components


def test_samples_have_the_members_spread_and_leave_the_generator_alone(space):
    torch.manual_seed(1)
    before = torch.get_rng_state()
    many = torch.stack([point.coefficients for point in points.sample(space, 0, 2000, 1000, 0.5)])
    assert torch.equal(torch.get_rng_state(), before)
    torch.testing.assert_close(many.std(0), 0.5 * space.spread[1], rtol=0.1, atol=1e-4)
    assert not torch.equal(many[0], many[1])


def test_least_squares_is_the_pseudoinverse(space, known_labels):
    """Official `get_direction`: n = pinverse @ labels on the first components, no intercept, padded
    with zeros.
    """
    fitted = directions.fit(space, known_labels, 6, directions.FitMethod.LEAST_SQUARES)
    for name, one in fitted.items():
        wanted = torch.linalg.pinv(space.coefficients[:, :6].double()) @ known_labels[name].double()
        torch.testing.assert_close(one.vector[:6].double(), wanted, atol=1e-6, rtol=1e-5)
        assert not one.vector[6:].any()
        unit = one.vector / one.vector.norm()
        assert one.max_projection == pytest.approx(float((space.coefficients @ unit).max()))
        assert "cross-validated accuracy" in one.about


def test_labels_of_plus_and_minus_one_double_the_vector(space, known_labels):
    """The direction is the same, because the coefficients have mean 0."""
    once = directions.fit(space, known_labels, 6, directions.FitMethod.LEAST_SQUARES)["beard"]
    twice = directions.fit(
        space, {"beard": 2 * known_labels["beard"] - 1}, 6, directions.FitMethod.LEAST_SQUARES
    )["beard"]
    torch.testing.assert_close(twice.vector, 2 * once.vector, atol=1e-5, rtol=1e-4)
    assert twice.max_projection == pytest.approx(once.max_projection, rel=1e-4)


@pytest.mark.parametrize("method", directions.FitMethod)
def test_every_method_finds_a_planted_direction(space, known_labels, method):
    vector = directions.fit(space, {"beard": known_labels["beard"]}, 3, method)["beard"].vector
    assert float(vector[0] / vector.norm()) > 0.8


def test_unknown_labels_are_left_out(space, known_labels):
    values = known_labels["beard"].clone()
    values[::3] = float("nan")
    known = torch.isfinite(values)
    fitted = directions.fit(space, {"beard": values}, 4, directions.FitMethod.LEAST_SQUARES)[
        "beard"
    ]
    wanted = torch.linalg.pinv(space.coefficients[known, :4].double()) @ values[known].double()
    torch.testing.assert_close(fitted.vector[:4].double(), wanted, atol=1e-6, rtol=1e-5)
    with pytest.raises(ValueError, match="one value for all members"):
        directions.fit(space, {"x": torch.ones(COUNT)}, 4, directions.FitMethod.LEAST_SQUARES)


def test_attributes_that_never_vary_are_left_out(known_labels):
    kept, remarks = directions.drop_constant_labels({**known_labels, "always": torch.ones(COUNT)})
    assert list(kept) == list(known_labels) and remarks == [
        "No direction for always: it has one value for all members."
    ]
    with pytest.raises(ValueError, match="Every attribute has one value"):
        directions.drop_constant_labels({"always": torch.ones(COUNT)})


def test_debiasing_one_after_another_and_jointly():
    """Official `debias`: in turn only the last is exactly orthogonal and the order matters; jointly
    all are.
    """
    generator = torch.Generator().manual_seed(3)
    n, d, e = (torch.randn(20, generator=generator) for _ in range(3))
    e = e + 0.5 * d

    def cosine(a, b):
        return float(torch.nn.functional.cosine_similarity(a, b, dim=0))

    once = directions.debias(n, [d], directions.Debiasing.SEQUENTIAL)
    assert abs(cosine(once, d)) < 1e-6
    torch.testing.assert_close(once, n - (n @ d) / (d @ d) * d)
    forward, backward = (
        directions.debias(n, order, directions.Debiasing.SEQUENTIAL) for order in ([d, e], [e, d])
    )
    assert abs(cosine(forward, e)) < 1e-6 < 0.01 < abs(cosine(forward, d))
    assert not torch.allclose(forward, backward, atol=1e-3)
    joint = directions.debias(n, [d, e], directions.Debiasing.JOINT)
    assert max(abs(cosine(joint, d)), abs(cosine(joint, e))) < 1e-6
    assert torch.equal(directions.debias(n, []), n)


def test_a_strength_of_one_is_the_largest_projection(directed):
    """Appendix F: alpha = max((D @ n) / |n|) along the unit vector; raw adds the vector as it
    is.
    """
    point = points.sample(directed, 0, 1, 100, 1.0)[0]
    vector = directed.directions["beard"].vector
    moved = edit_text.edit(point, "beard: 1").coefficients - point.coefficients
    assert float(moved.norm()) == pytest.approx(
        float((directed.coefficients @ vector).max() / vector.norm()), rel=1e-5
    )
    raw = edit_text.edit(point, "beard: -500000", units=edit_text.Units.RAW).coefficients
    torch.testing.assert_close(raw, point.coefficients - 500000 * vector)


def test_edits_in_one_node_equal_edits_in_two(directed):
    point = points.sample(directed, 5, 1, 100, 1.0)[0]
    for preserved in ("", "hair"):
        one = edit_text.edit(point, "beard: 0.8, glasses: -0.5", preserved)
        two = edit_text.edit(
            edit_text.edit(point, "beard: 0.8", preserved), "glasses: -0.5", preserved
        )
        assert torch.equal(one.coefficients, two.coefficients)
        assert torch.equal(one.flat, two.flat)
    assert edit_text.edit(point, "beard: 0") is point and edit_text.edit(point, "") is point


@pytest.mark.parametrize("text", ["beard: 0.3", "beard: -2", "beard: 0.3, glasses: -2, beard: 1.5"])
@pytest.mark.parametrize("units", edit_text.Units)
def test_an_edited_model_is_rebuilt_from_its_coefficients(directed, text, units):
    point = points.sample(directed, 5, 1, 100, 1.0)[0]
    moved = edit_text.edit(point, text, units=units)
    assert torch.equal(moved.flat, directed.rebuild(moved.coefficients))
    wanted = directed.mean.double() + directed.deviation.double() * (
        moved.coefficients.double() @ directed.rows(0, directed.components).double()
    )
    torch.testing.assert_close(
        moved.flat.double(), wanted, atol=1e-6 * float(wanted.abs().max()), rtol=1e-4
    )
    assert not torch.equal(moved.flat, point.flat)


@pytest.mark.parametrize("count", [1, 8, 9, 40])
def test_many_edits_rebuild_once_and_a_point_keeps_no_weights(directed, monkeypatch, count):
    """One read of the basis whatever the number of edits, and none before weights are requested."""
    read = []
    monkeypatch.setattr(
        space_module,
        "flat_weights",
        lambda *args, **_: read.append(args) or directed.mean + args[0].sum(),
        raising=True,
    )
    point = points.sample(directed, 5, 1, 100, 1.0)[0]
    moved = edit_text.edit(
        point, "\n".join(f"PC {number % 20 + 1}: 0.5" for number in range(count))
    )
    moved = edit_text.edit(moved, "beard: 0.8")
    assert not read
    moved.layers()
    assert len(read) == 1
    kept = sum(one.nbytes for one in vars(moved).values() if isinstance(one, torch.Tensor))
    assert kept == 4 * directed.components and moved.name.count(", PC ") == count


@pytest.fixture
def deep():
    """A space of 256 components, where a rebuild is much more work than adding what is kept."""
    generator = torch.Generator().manual_seed(6)
    layout = flat_layout.Layout.of(dict.fromkeys("ab", ((2, 5), (7, 2))), 2, 2.0)
    mean, *basis = torch.randn(257, layout.size, generator=generator)
    rows, vectors = (
        torch.randn(9, 256, generator=generator),
        torch.randn(12, 256, generator=generator),
    )
    found = space_module.Space(
        layout, mean, 0.1 + mean.abs(), torch.stack(basis), rows, tuple("abcdefghi"), torch.ones(9)
    )
    return found.with_directions(
        {f"d{number}": Direction(one, 2.0) for number, one in enumerate(vectors)}
    )


def _text(count, moved=0.5):
    return ", ".join(
        [f"d0: {moved}", *(f"d{number}: {0.1 * number + 0.2}" for number in range(1, count))]
    )


@pytest.mark.parametrize("count", [1, 3, 7, 8, 12])
def test_one_moved_slider_reads_no_basis_beside_few_others(deep, monkeypatch, count):
    """Up to seven edits are kept rebuilt, more are one rebuild; what was computed before changes no
    number.
    """
    read = []
    whole = space_module.flat_weights
    monkeypatch.setattr(
        space_module,
        "flat_weights",
        lambda *args, **more: read.append(args) or whole(*args, **more),
    )
    point = Point(deep, deep.coefficients[4])
    few = count < 8
    assert deep.most_kept == 8
    first = edit_text.edit(point, _text(count)).flat
    assert len(read) == 1  # for the point and all edits at once
    moved = edit_text.edit(point, _text(count, -1.5))
    after = moved.flat
    assert len(read) == (1 if few else 2)
    in_two = edit_text.edit(
        edit_text.edit(point, "d0: -1.5"), _text(count, -1.5).partition(", ")[2]
    )
    assert torch.equal(in_two.flat, after) and torch.equal(
        edit_text.edit(point, _text(count)).flat, first
    )
    deep._kept.clear()
    assert torch.equal(edit_text.edit(point, _text(count, -1.5)).flat, after)
    wanted = deep.mean.double() + deep.deviation.double() * (
        moved.coefficients.double() @ deep.basis.double()
    )
    torch.testing.assert_close(
        after.double(), wanted, atol=1e-6 * float(wanted.abs().max()), rtol=1e-4
    )


def test_kept_vectors_are_bounded_by_bytes(deep, monkeypatch):
    monkeypatch.setattr(space_module, "_KEPT_BYTES", 3 * 4 * deep.layout.size)
    monkeypatch.setattr(space_module, "_KEPT_FRACTION_LARGE", 85)
    assert deep.most_kept == 3
    for row in deep.coefficients:
        edit_text.edit(Point(deep, row), _text(2)).flat.add_(1.0)  # its own memory
        assert sum(one.nbytes for one in deep._kept.values()) <= 3 * 4 * deep.layout.size
    again = edit_text.edit(Point(deep, deep.coefficients[0]), _text(2))
    direct = deep.rebuild(again.coefficients)
    torch.testing.assert_close(again.flat, direct, atol=1e-5 * float(direct.abs().max()), rtol=1e-4)
    assert edit_text.edit(Point(deep, deep.coefficients[0]), _text(3)).steps is None


def test_edits_along_components_need_no_labels(space):
    """In standard deviations of the members, as the sweep has them."""
    point = points.sample(space, 5, 1, 100, 1.0)[0]
    moved = edit_text.edit(point, "PC 2: -1.5, pc 3: 0.5")
    wanted = torch.zeros(space.components)
    wanted[1], wanted[2] = -1.5 * space.spread[1][1], 0.5 * space.spread[1][2]
    torch.testing.assert_close(
        moved.coefficients - point.coefficients, wanted, atol=1e-5, rtol=1e-5
    )
    with pytest.raises(ValueError, match="no component 'PC 0': write PC 1 to PC 23"):
        edit_text.edit(point, "PC 0: 1")


def test_edits_must_come_before_the_weights(directed):
    """Composition is linear in coefficients and not in dW: adding edited LoRAs leaves the cross
    terms out.
    """
    point = points.sample(directed, 5, 1, 100, 1.0)[0]

    def change(which):
        return {name: torch.mm(*one.matrices()) for name, one in which.layers().items()}

    base, first, second, both = (
        change(edit_text.edit(point, text))
        for text in ("", "beard: 1", "glasses: 1", "beard: 1, glasses: 1")
    )
    wrong = sum(float((first[n] + second[n] - base[n] - both[n]).square().sum()) for n in base)
    assert (wrong / sum(float((both[n] - base[n]).square().sum()) for n in base)) ** 0.5 > 0.01


def test_preserved_directions_do_not_change(directed):
    step = directions.direction_step(directed, "beard", ["glasses", "hair", "beard"], raw=False)
    for name in ("glasses", "hair"):
        vector = directed.directions[name].vector
        assert abs(float(step @ vector)) < 1e-5 * float(step.norm() * vector.norm())
    unit = step / step.norm()
    assert float(step.norm()) == pytest.approx(
        float((directed.coefficients @ unit).max()), rel=1e-5
    )


def test_a_difference_of_two_models_is_a_lora_of_twice_the_rank(directed):
    """up [B', -B] and down [A'; A] are exactly the edited less the unedited change."""
    from glassbox.nodes.weights.style_merge import merge

    point = points.sample(directed, 5, 1, 100, 1.0)[0]
    edited = edit_text.edit(point, "beard: 1")
    merged = merge(edited.layers(), point.layers(), (1.0, -1.0))
    for name, one in merged.items():
        wanted = torch.mm(*edited.layers()[name].matrices()) - torch.mm(
            *point.layers()[name].matrices()
        )
        torch.testing.assert_close(torch.mm(*one.matrices()), wanted, atol=1e-6, rtol=1e-5)
        assert one.rank == 2


def test_a_mix_is_a_straight_line(directed):
    a, b = points.sample(directed, 1, 2, 100, 1.0)
    line = points.mix(a, b, 0.0, 1.0, 5)
    assert torch.equal(line[0].coefficients, a.coefficients) and torch.equal(
        line[-1].coefficients, b.coefficients
    )
    torch.testing.assert_close(line[2].coefficients, (a.coefficients + b.coefficients) / 2)
    assert len(points.mix(a, b, 0.25, 9.0, 1)) == 1
    stranger = Point(directed.with_directions({}), b.coefficients)
    points.mix(a, stranger, 0, 1, 2)  # the same space with other directions


def test_a_sweep_is_a_row_or_a_grid_of_edits(directed):
    point = points.sample(directed, 1, 1, 100, 1.0)[0]
    row, names = points.sweep(point, "beard", "", [-1.0, 0.0, 1.0], [])
    assert names == ["beard -1.00", "beard +0.00", "beard +1.00"]
    assert torch.equal(row[1].coefficients, point.coefficients)
    assert torch.equal(row[2].coefficients, edit_text.edit(point, "beard: 1").coefficients)
    grid, names = points.sweep(point, "beard", "PC 2", [-1.0, 1.0], [])
    assert [len(grid), names[1]] == [4, "beard +1.00, PC 2 -1.00"]
    step = grid[3].coefficients - grid[1].coefficients
    assert float(step[1]) == pytest.approx(2 * float(directed.spread[1][1]), rel=1e-5)


def test_members_are_points(space):
    point = points.member_point(space, "member_03")
    assert torch.equal(point.coefficients, space.coefficients[3])
    with pytest.raises(ValueError, match="no member 'x'"):
        points.member_point(space, "x")


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda s: named_strengths.parse("beard"), "'beard' is not an edit"),
        (lambda s: named_strengths.parse("beard: much"), "'beard: much' is not an edit"),
        (lambda s: named_strengths.parse("beard: nan"), "is not an edit"),
        (lambda s: named_strengths.parse("beard: inf"), "is not an edit"),
        (lambda s: named_strengths.parse("beard: 1e999"), "is not an edit"),
        (lambda s: edit_text.edit(Point(s, s.coefficients[0]), "bread: 1"), "no direction 'bread'"),
        (lambda s: directions.direction_step(s, "beard", ["nose"], False), "no direction 'nose'"),
        (
            lambda s: points.sweep(Point(s, s.coefficients[0]), "PC 99", "", [1.0], []),
            "no component 'PC 99'",
        ),
        (lambda s: s.pad(torch.ones(99)), "the point has 99"),
    ],
)
def test_bad_input_is_one_sentence(directed, call, sentence):
    with pytest.raises(ValueError, match=sentence):
        call(directed)


def test_a_space_without_directions_says_so(space):
    with pytest.raises(ValueError, match="has no directions yet"):
        edit_text.edit(Point(space, space.coefficients[0]), "beard: 1")
    nothing = {
        "a": Direction(torch.ones(space.components), 1.0),
        "b": Direction(torch.ones(space.components), 1.0),
    }
    with pytest.raises(ValueError, match="Nothing is left of 'a'"):
        directions.direction_step(space.with_directions(nothing), "a", ["b"], False)


def test_steps_that_a_space_keeps_are_bounded_by_bytes(directed, monkeypatch):
    """The last ones used are taken up again; many edits at once are one product with the
    members.
    """
    directed = directed.with_directions({})
    monkeypatch.setattr(space_module, "_STEPS_BYTES", 4 * directed.components * 8)
    point, made = points.sample(directed, 5, 1, 100, 1.0)[0], []

    def steps(space, names, *rest):
        made.append(names)
        return directions.direction_steps(space, names, *rest)

    monkeypatch.setattr(edit_text, "direction_steps", steps)
    for number in range(1, 101):
        edit_text.edit(point, f"PC {number % 20 + 1}: 1", "hair")
    assert len(directed._steps) == 8
    made.clear()
    edit_text.edit(point, "PC 1: 1, PC 20: 2", "hair")
    assert not made
    alone = edit_text.edit(point, "glasses: 1", "hair").coefficients
    made.clear()
    many = edit_text.edit(
        point, ", ".join(f"PC {number}: 0" for number in range(1, 21)) + ", glasses: 1", "hair"
    )
    assert len(made) == 1 and torch.equal(many.coefficients, alone) and len(directed._steps) == 8


def test_the_best_cut_is_that_of_all_cuts_one_by_one():
    """The first of the equally good ones, with ties among the values, and of one class alone."""
    rng = np.random.default_rng(0)
    for count in (1, 2, 7, 40):
        for classes in (rng.random(count) < 0.4, np.ones(count, bool), np.zeros(count, bool)):
            fitted = np.round(rng.normal(size=count), 1)
            order = np.sort(fitted)
            cuts = np.concatenate([[-np.inf], (order[1:] + order[:-1]) / 2, [np.inf]])
            correct = [((fitted > cut) == classes).sum() for cut in cuts]
            assert directions.best_cut(fitted, classes) == cuts[int(np.argmax(correct))]


def test_least_squares_works_without_scikit_learn(space, known_labels, monkeypatch):
    fitted = directions.fit(space, known_labels, 6, directions.FitMethod.LEAST_SQUARES)
    absent_packages.make_absent("sklearn", monkeypatch)
    again = directions.fit(space, known_labels, 6, directions.FitMethod.LEAST_SQUARES)
    assert (
        again["beard"].about == fitted["beard"].about
        and "cross-validated accuracy" in again["beard"].about
    )
    with pytest.raises(RuntimeError, match="pip install scikit-learn"):
        directions.fit(space, known_labels, 6, directions.FitMethod.SVM)


@pytest.mark.parametrize("method", directions.FitMethod)
def test_a_fit_can_be_stopped_between_any_two_fits(space, known_labels, method):
    """One check before the direction, each of the five folds, five halvings and ten permutations;
    the most reliable of three methods takes five halvings of each more.
    """
    calls = []
    directions.fit(space, {"beard": known_labels["beard"]}, 4, method, lambda: calls.append(1))
    assert len(calls) == (36 if method == directions.FitMethod.MOST_RELIABLE else 21)


def test_mean_difference_is_that_of_the_two_groups(space, known_labels):
    values = known_labels["glasses"]
    fitted = directions.fit(space, {"glasses": values}, 6, directions.FitMethod.MEAN_DIFFERENCE)[
        "glasses"
    ].vector
    numbers = space.coefficients[:, :6].double()
    wanted = numbers[values > 0].mean(0) - numbers[values == 0].mean(0)
    torch.testing.assert_close(fitted[:6].double(), wanted, atol=1e-6, rtol=1e-5)


def test_ridge_has_the_least_leave_one_out_error():
    """Against fits that leave each member out, by scikit-learn, for all numbers of components and
    penalties.
    """
    from sklearn.linear_model import Ridge

    numbers, planted, _ = _population(count=40, size=12)
    errors = {}
    for kept in (8, 12):
        x = numbers[:, :kept] - numbers[:, :kept].mean(axis=0)
        unit = np.square(x).sum() / kept
        for penalty in unit * np.logspace(-3, 2, 11):
            left_out = [np.arange(40) != row for row in range(40)]
            fits = [
                Ridge(alpha=penalty).fit(numbers[rows, :kept], planted[rows]) for rows in left_out
            ]
            predicted = [one.predict(numbers[[row], :kept])[0] for row, one in enumerate(fits)]
            errors[kept, penalty] = np.square(predicted - planted).mean()
    kept, penalty = min(errors, key=errors.get)
    wanted = np.pad(Ridge(alpha=penalty).fit(numbers[:, :kept], planted).coef_, (0, 12 - kept))
    np.testing.assert_allclose(directions.fit_ridge(numbers, planted), wanted, rtol=1e-6, atol=1e-9)


def test_the_most_reliable_method_is_chosen(space, known_labels):
    numbers, planted, _ = _population(count=120)
    reliability = {
        method: directions.split_half(numbers, planted, method)[0]
        for method in ("mean_difference", "ridge", "least_squares")
    }
    chosen = directions.choose_method(numbers, planted)
    assert reliability[chosen] == max(reliability.values())
    fitted = directions.fit(space, known_labels, 6, directions.FitMethod.MOST_RELIABLE)["beard"]
    assert fitted.about.split(",")[0] in reliability


def _population(count=240, size=16):
    """Coefficients of many members, labels along the first, and labels of chance."""
    generator = np.random.default_rng(3)
    numbers = generator.normal(size=(count, size))
    return numbers, (numbers[:, 0] > 0).astype(float), (generator.random(count) > 0.5).astype(float)


@pytest.mark.parametrize("method", ["least_squares", "mean_difference"])
def test_a_planted_direction_repeats_and_a_random_one_does_not(method):
    numbers, planted, random = _population()
    reliability, floor = directions.split_half(numbers, planted, method)
    assert reliability > 0.8 > floor
    reliability, floor = directions.split_half(numbers, random, method)
    assert reliability < floor


def test_reliability_is_the_cosine_of_two_halves():
    """Of all halves of eight members, so that the mean over random ones is known: 0.1 of its five
    draws' spread.
    """
    numbers, planted, _ = _population(count=4000, size=3)
    reliability, _ = directions.split_half(numbers, planted, "mean_difference")
    rows = np.arange(len(planted)) % 2 == 0
    means = [
        numbers[part & (planted > 0)].mean(0) - numbers[part & (planted == 0)].mean(0)
        for part in (rows, ~rows)
    ]
    wanted = means[0] @ means[1] / np.linalg.norm(means[0]) / np.linalg.norm(means[1])
    assert reliability == pytest.approx(wanted, abs=0.01)


def test_noise_is_marked_in_the_report_the_sliders_and_the_file(space, tmp_path):
    from glassbox.nodes.weights import space_file

    numbers, planted, random = _population()
    many = dataclasses.replace(
        space,
        basis=space.basis[: numbers.shape[1]],
        coefficients=torch.from_numpy(numbers).float(),
        members=tuple(f"m{row}" for row in range(len(numbers))),
        about={
            key: value for key, value in space.about.items() if key not in ("norms", "common_norm")
        },
        kept=None,
        squares=None,
    )
    labels = {"planted": torch.from_numpy(planted), "random": torch.from_numpy(random)}
    fitted = directions.fit(many, labels, 8, directions.FitMethod.MEAN_DIFFERENCE)
    assert [one.noise for one in fitted.values()] == [False, True]
    report = directions.describe(fitted)
    assert "random (noise): largest" in report and "Noise, off in the sliders: random." in report
    assert "split-half reliability 0." in report and "permuted labels: below" in report
    directed = many.with_directions(fitted)
    assert [one["noise"] for one in directions.slider_ranges(directed)["directions"]] == [
        False,
        True,
    ]
    space_file.write(directed, tmp_path / "s.safetensors")
    assert [
        one.noise for one in space_file.read(tmp_path / "s.safetensors").directions.values()
    ] == [False, True]


def test_too_few_members_are_noise(space):
    labels = {"rare": torch.tensor([1.0] + [0.0] * (COUNT - 1))}
    fitted = directions.fit(space, labels, 4, directions.FitMethod.LEAST_SQUARES)["rare"]
    assert fitted.noise and "too few members" in fitted.about


def test_refused_name_of_two_lines_is_quoted_in_one(space):
    with pytest.raises(ValueError, match="has no member") as caught:
        points.member_point(space, "a woman\nan old man")
    assert "\n" not in str(caught.value)
