"""Composed people: ridge regression of coefficients on values, and points of values of several
members.
"""

import dataclasses

import numpy as np
import pytest
import repository
import torch
from glassbox.nodes.weights import composition, flat_layout, space_file
from glassbox.nodes.weights import space as space_module

COUNT, SIZE = 120, 6
VALUES = {
    "skin": ("black skin", "pale skin", "tanned skin"),
    "hair": ("afro", "long hair"),
    "accessory": ("no glasses", "round glasses", "sunglasses", "monocle"),
}
NOISE = 0.4


def made(values, noise=NOISE, count=COUNT, labels=None):
    """Members whose coefficients are sums of an effect of each value, and of noise."""
    generator = torch.Generator().manual_seed(5)
    shapes = {"mid_block.attn1.to_q": ((1, 9), (7, 1)), "mid_block.attn2.to_v": ((1, 8), (5, 1))}
    layout = flat_layout.Layout.of(shapes, 1, 1.0)
    basis = torch.linalg.qr(torch.randn(layout.size, SIZE, generator=generator))[0].T
    effects = {
        value: 2 * torch.randn(SIZE, generator=generator)
        for column in values.values()
        for value in sorted(set(column))
    }
    coefficients = noise * torch.randn(count, SIZE, generator=generator)
    for column in values.values():
        coefficients = coefficients + torch.stack([effects[value] for value in column])
    return space_module.Space(
        layout=layout,
        mean=torch.randn(layout.size, generator=generator),
        deviation=torch.ones(layout.size),
        basis=basis,
        coefficients=coefficients,
        members=tuple(f"m{row}" for row in range(count)),
        singular_values=torch.linspace(3, 1, SIZE),
        form="as_trained",
        labels=labels or {},
        about={"name": "made"},
    )


def drawn_values(count=COUNT):
    rng = np.random.default_rng(8)
    return {name: tuple(rng.choice(every, count).tolist()) for name, every in VALUES.items()}


@pytest.fixture(scope="module")
def values():
    return drawn_values()


@pytest.fixture(scope="module")
def space(values):
    return made(values)


@pytest.fixture(scope="module")
def law(space, values):
    return composition.fit_values(space, values)


def one_hot(values, rows):
    columns = [
        [float(column[row] == value) for row in rows]
        for column in values.values()
        for value in dict.fromkeys(column)
    ]
    return np.array(columns).T


def ridge(space, values):
    from sklearn.linear_model import Ridge

    return Ridge(alpha=1.0).fit(one_hot(values, range(COUNT)), space.coefficients.double().numpy())


@pytest.mark.parametrize("block", [7, 4096])
def test_composed_points_are_the_ridge_predictions_and_part_of_a_residual(
    space, values, monkeypatch, block
):
    """scikit-learn's Ridge with penalty 1 on one-hot columns; b = prediction(values) + spread / 2 x
    the residual of one member, to 1e-5.
    """
    monkeypatch.setattr(composition, "_ROWS", block)
    model = ridge(space, values)
    numbers = space.coefficients.double().numpy()
    residuals = numbers - model.predict(one_hot(values, range(COUNT)))
    law = composition.fit_values(space, values)
    composed = composition.compose(law, 3, count=20, components=SIZE, spread=0.6)
    residuals_met = set()
    for each in composed:
        column_of = {name: dict.fromkeys(column) for name, column in values.items()}
        row = np.array(
            [
                float(each.values[name] == value)
                for name, column in column_of.items()
                for value in column
            ]
        )
        left = each.point.coefficients.double().numpy() - model.predict(row[None])[0]
        apart = np.abs(left - 0.3 * residuals).max(axis=1)
        assert apart.min() < 1e-5
        residuals_met.add(int(apart.argmin()))
    assert len(residuals_met) > 12
    assert len({tuple(each.values.items()) for each in composed}) > 10


def test_explained_is_the_adjusted_fraction_of_the_variance(space, values, law):
    numbers = space.coefficients.double().numpy()
    predicted = ridge(space, values).predict(one_hot(values, range(COUNT)))
    left = np.square(numbers - predicted).sum()
    total = np.square(numbers - numbers.mean(axis=0)).sum()
    expected = 1 - left / total * (COUNT - 1) / (COUNT - 1 - 2 - 1 - 3)
    # The fit's sum of squares counts the shrinkage once, the residual's twice: a penalty of one
    # member in a hundred and twenty.
    assert law.explained == pytest.approx(expected, abs=0.003)


def test_each_attribute_comes_from_members_and_the_generator_is_left_alone(values, law):
    torch.manual_seed(1)
    before = torch.get_rng_state()
    composed = composition.compose(law, 0, count=3000, components=SIZE, spread=1.0)
    assert torch.equal(torch.get_rng_state(), before)
    for name, column in values.items():
        for value in set(column):
            fraction = np.mean([each.values[name] == value for each in composed])
            expected = column.count(value) / COUNT
            assert fraction == pytest.approx(expected, abs=5 * (expected / 3000) ** 0.5)
    both = np.mean(
        [each.values["hair"] == "afro" and each.values["skin"] == "pale skin" for each in composed]
    )
    independent = values["hair"].count("afro") * values["skin"].count("pale skin") / COUNT**2
    assert both == pytest.approx(independent, abs=5 * (independent / 3000) ** 0.5)


def test_requested_values_take_the_place_of_drawn_ones(law):
    settings = {"count": 8, "components": SIZE, "spread": 0.7}
    free = composition.compose(law, 4, **settings)
    requested = composition.compose(law, 4, **settings, person=" Monocle,  long  hair")
    assert {each.values["accessory"] for each in free} != {"monocle"}
    for drawn, each in zip(free, requested, strict=True):
        assert each.values == {**drawn.values, "accessory": "monocle", "hair": "long hair"}
        moved = each.point.coefficients - drawn.point.coefficients
        change = law.combined(each.values) - law.combined(drawn.values)
        torch.testing.assert_close(moved.double(), change, atol=1e-5, rtol=1e-5)
    few = composition.compose(law, 4, count=1, components=2, spread=0.7)[0].point.coefficients
    assert torch.equal(few[:2], free[0].point.coefficients[:2]) and not few[2:].any()


@pytest.mark.parametrize(
    ("person", "sentence"),
    [
        ("black", "person names 'black'.*nearest values are black skin"),
        ("beard", "person names 'beard'.*nearest values are"),
        ("afro, long hair", "two values of hair, 'afro' and 'long hair'"),
        ("afro, Afro", "two values of hair"),
    ],
)
def test_a_person_that_no_value_describes_is_refused(law, person, sentence):
    with pytest.raises(ValueError, match=sentence):
        composition.compose(law, 0, count=1, components=SIZE, spread=1.0, person=person)


def test_members_of_unknown_values_are_left_out(space, values, law):
    joined = space.with_member("new", 50 * torch.ones(SIZE))
    longer = {name: (*column, "") for name, column in values.items()}
    fitted = composition.fit_values(joined, longer)
    assert fitted.rows == list(range(COUNT))
    torch.testing.assert_close(fitted.mean, law.mean)


def labels_of(values):
    """The labels of all values but one of each attribute."""
    return {
        value: torch.tensor([float(each == value) for each in column])
        for column in values.values()
        for value in sorted(set(column))[1:]
    }


def test_labels_that_say_as_much_stand_for_values(values):
    """Labels that exclude each other are one attribute, so that nobody gets two of them."""
    space = made(values, labels=labels_of(values))
    labeled = composition.fit(space)
    assert list(labeled.values) == [
        "pale skin or tanned skin",
        "long hair",
        "no glasses or round glasses or sunglasses",
    ]
    assert set(labeled.effects["long hair"]) == {"long hair", "no long hair"}
    named = composition.fit_values(space, values)
    chosen = {"skin": "black skin", "hair": "afro", "accessory": "sunglasses"}
    in_labels = dict(
        zip(
            labeled.values,
            ("no pale skin or tanned skin", "no long hair", "sunglasses"),
            strict=True,
        )
    )
    torch.testing.assert_close(labeled.combined(in_labels), named.combined(chosen))
    assert labeled.explained == pytest.approx(named.explained)


def test_labels_that_say_little_are_refused(values):
    few = {"long hair": labels_of(values)["long hair"]}
    space = made(values, labels=few)
    assert not composition.can_compose(space)
    with pytest.raises(ValueError, match=r"The space made does not tell .* explain \d+% of"):
        composition.fit(space)
    with pytest.raises(ValueError, match="its members have no labels"):
        composition.fit(dataclasses.replace(space, labels={}))


def test_unknown_labels_count_for_nobody(values):
    labels = labels_of(values)
    labels["long hair"] = labels["long hair"].clone()
    labels["long hair"][:5] = torch.nan
    assert composition.fit(made(values, labels=labels)).rows == list(range(5, COUNT))


def test_rare_labels_exclude_none_by_chance():
    """One member in thirty each: that no one has both says nothing."""
    first = torch.zeros(COUNT)
    second = torch.zeros(COUNT)
    first[:2] = 1
    second[2:4] = 1
    values = drawn_values()
    space = made(values, labels={"first": first, "second": second})
    assert list(composition.label_values(space)) == ["first", "second"]


def test_faces_of_a_file_are_checked(space, tmp_path):
    for broken in (["pale-afro-red-none-none"], [1] * COUNT, "pale"):
        wrong = dataclasses.replace(space, about={"name": "made", "faces": broken})
        with pytest.raises(ValueError, match="faces"):
            space_file.write(wrong, tmp_path / "s.safetensors")


def test_faces_are_read_word_by_word():
    faces = ["black-bald-gray-light-beard-round-glasses", "pale-afro-red-none-none", "", "x-y"]
    read = composition.face_values(faces)
    assert [column[0] for column in read.values()] == [
        "black skin",
        "bald",
        "gray hair",
        "light beard",
        "round glasses",
    ]
    assert [column[1] for column in read.values()] == [
        "pale skin",
        "afro",
        "red hair",
        "shaven",
        "no glasses",
    ]
    assert all(column[2:] == ("", "") for column in read.values())


def test_the_shipped_space_names_its_members():
    """Its file has their faces as one word each: skin, hair, its color, facial hair, accessory."""
    space = space_file.read(repository.ROOT / "assets" / "avatars-v2-w2w.safetensors")
    values = composition.face_values(space.about["faces"])
    assert list(values) == ["skin", "hair", "hair color", "facial hair", "accessory"]
    labels = {
        "dark skin": ("skin", ("black skin", "brown skin")),
        "beard": ("facial hair", ("light beard", "majestic beard")),
        "round glasses": ("accessory", ("round glasses",)),
        "bald": ("hair", ("bald",)),
        "red hair": ("hair color", ("red hair",)),
    }
    for label, (attribute, named) in labels.items():
        expected = [value in named for value in values[attribute]]
        assert expected == (space.labels[label] > 0.5).tolist()
    law = composition.fit(space)
    assert len(law.rows) == len(space.members) and law.explained > 0.7
    joined = space.with_member("new", space.coefficients[0])
    assert len(composition.fit(joined).rows) == len(space.members)
