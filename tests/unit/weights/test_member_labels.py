"""Labels of members from CLIP's agreement, and from names and tags."""

import json

import pytest
import torch
from glassbox.nodes.weights import labels, member_labels


def test_probabilities_are_the_softmax_of_a_line():
    """P = exp(100 a) / (exp(100 a) + exp(100 b)), CLIP's zero-shot classifier, in float64."""
    cosines = {
        name: torch.tensor(values)
        for name, values in {"beard": [0.25, 0.2], "shaven": [0.2, 0.23]}.items()
    }
    found = member_labels.from_cosines([("beard", "shaven")], cosines)
    assert list(found) == ["beard"]
    a, b = (cosines[name].double() for name in ("beard", "shaven"))
    torch.testing.assert_close(
        found["beard"].double(), 1 / (1 + torch.exp(100 * (b - a))), rtol=1e-5, atol=1e-7
    )


def test_three_alternatives_have_three_labels_and_a_lone_word_its_cosine():
    cosines = {
        name: torch.rand(4, generator=torch.Generator().manual_seed(i))
        for i, name in enumerate("abcd")
    }
    found = member_labels.from_cosines([("a", "b", "c"), ("d",)], cosines)
    assert list(found) == ["a", "b", "c", "d"] and torch.equal(found["d"], cosines["d"])
    torch.testing.assert_close(found["a"] + found["b"] + found["c"], torch.ones(4))


def test_members_without_images_are_unknown():
    cosines = {"a": torch.tensor([0.2, float("nan")]), "b": torch.tensor([0.1, float("nan")])}
    assert member_labels.from_cosines([("a", "b")], cosines)["a"].isnan().tolist() == [False, True]


def test_names_and_tags_are_counted():
    texts = [
        {"people/anna_full_beard_01": 1},
        {"bob shaven": 2, "beard": 1},
        {"beardless carl": 1},
        {},
    ]
    found = member_labels.from_counts([("beard", "shaven"), ("Full Beard",)], texts)
    assert found["beard"].nan_to_num(-1).tolist() == [1, 0, -1, -1]
    assert found["Full Beard"].tolist() == [1, 0, 0, 0]


def test_tags_of_kohya_and_modelspec():
    datasets = {"10_anna": {"beard": 3, "smiling": 1}, "5_anna": {"beard": 2}}
    metadata = {"ss_tag_frequency": json.dumps(datasets), "modelspec.tags": "red hair, glasses"}
    assert member_labels.tags_of(metadata) == {
        "beard": 5,
        "smiling": 1,
        "red hair": 1,
        " glasses": 1,
    }
    for broken in ("no JSON", "[1]", '{"a": 3}', '{"a": {"b": "c"}}'):
        assert member_labels.tags_of({"ss_tag_frequency": broken}) == {}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "no words"),
        ("a, b", "without commas"),
        ("a / ", "cannot name"),
        ("beard\nbeard / shaven", "twice"),
    ],
)
def test_words_that_cannot_name_directions(text, why):
    with pytest.raises(ValueError, match=why):
        member_labels.parse_lines(text)


def test_a_table_keeps_names_with_commas():
    members = ("a, b", 'c "d"')
    table = labels.to_csv(members, {"beard": torch.tensor([1.0, float("nan")])})
    assert table == 'member,beard\n"a, b",1\n"c ""d""",'
