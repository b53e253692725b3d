"""Digests of content, the refusal of other work, and files that a crash has cut."""

import dataclasses
import functools
import json

import numpy as np
import pytest
import torch
from glassbox.nodes.common import resume
from glassbox.nodes.common.resume import Journal, digest

IDENTITY = {"seed": 1, "model": "abc", "images": ["x", "y"]}


@dataclasses.dataclass
class Thing:
    name: str
    numbers: torch.Tensor
    cache: list = dataclasses.field(default_factory=list, compare=False)


class Plain:
    def __init__(self, strength):
        self.strength = strength

    def apply(self, value):
        return self.strength * value


def enclosing(strength):
    return lambda value: strength * value


def number(value):
    return torch.tensor([1.0, value, 3.0])


@pytest.mark.parametrize(
    ("make", "one", "other"),
    [
        (lambda value: value, 1, 1.0),
        (lambda value: value, "1", 1),
        (lambda value: [value], [1, [2]], [1, 2]),
        (lambda value: {"a": value}, 1, None),
        (number, 2.0, 2.0000002),
        (lambda value: number(2).to(value), torch.float32, torch.float64),
        (lambda value: number(2).reshape(value), (3, 1), (1, 3)),
        (lambda value: number(value).to(torch.bfloat16), 2.0, 2.25),
        (lambda value: np.array([value]), 1.0, 2.0),
        (lambda value: Thing("a", number(value)), 1.0, 2.0),
        (enclosing, 0.5, 0.25),
        (Plain, 0.5, 0.25),
        (lambda value: Plain(value).apply, 0.5, 0.25),
        (lambda value: functools.partial(number, value), 0.5, 0.25),
        (lambda value: torch.nn.Linear(2, 2).requires_grad_(False).weight.fill_(value), 0.5, 0.25),
        (lambda value: {value}, "a", "b"),
    ],
)
def test_a_digest_changes_with_the_content_alone(make, one, other):
    assert digest(make(one)) == digest(make(one)) != digest(make(other))


def test_what_is_no_content_does_not_count():
    assert digest(Thing("a", number(1), [1])) == digest(Thing("a", number(1), [2]))
    assert digest(torch.arange(6).view(2, 3).T) == digest(torch.arange(6).view(2, 3).T.contiguous())
    assert digest({"a": 1, "b": 2}) == digest({"b": 2, "a": 1})
    circle = [1]
    circle.append(circle)
    assert digest(circle) == digest(circle)
    assert digest([object()]) == digest([object()])
    module = torch.nn.Linear(2, 2)
    before = digest(module)
    assert digest(module.eval()) == before


def test_the_blind_spot_of_large_tensors():
    """Of 2^16 numbers 4,096 are read, one of each 16: 31 in a row are always seen, a single one may
    not be.
    """
    large = torch.zeros(256, 256)
    before, seen = digest(large, whole=4096), 0
    for first in range(0, large.numel() - 31, 997):
        changed = large.clone()
        changed.view(-1)[first : first + 31] = 1
        assert digest(changed, whole=4096) != before
        changed = large.clone()
        changed.view(-1)[first] = 1
        seen += digest(changed, whole=4096) != before
    assert 0 < seen < 30


def test_what_differs_is_named():
    resume.check_identity("a.csv", {"images": ["x", "y"], "seed": 1, "model": "abc"}, IDENTITY)
    for kept, named in (
        ({**IDENTITY, "seed": 2}, "seed"),
        ({"seed": 1}, "images, model"),
        ({**IDENTITY, "z": 1}, "z"),
    ):
        with pytest.raises(
            ValueError, match=f"^a.csv was made with another {named}: restore what it was made with"
        ):
            resume.check_identity("a.csv", kept, IDENTITY)


def test_a_state_comes_back_and_another_is_refused(tmp_path):
    path = tmp_path / "run.safetensors"
    assert resume.load_state(path, "training", 3, IDENTITY) is None
    resume.save_state(path, "training", 3, IDENTITY, {"a": number(2.0)}, {"steps": 4})
    tensors, about = resume.load_state(path, "training", 3, IDENTITY)
    assert torch.equal(tensors["a"], number(2.0)) and about == {"steps": 4}
    for given, sentence in (
        (("training", 3, {**IDENTITY, "model": "d"}), "another model"),
        (("training", 4, IDENTITY), "format version 3, and this version of Glassbox reads 4"),
        (("inversion", 3, IDENTITY), "is no inversion"),
    ):
        with pytest.raises(ValueError, match=sentence):
            resume.load_state(path, *given)
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(ValueError, match="cannot be read"):
        resume.load_state(path, "training", 3, IDENTITY)


@pytest.mark.parametrize("cut", range(1, 14))
def test_a_journal_drops_what_a_crash_has_cut_and_goes_on(tmp_path, cut):
    path = tmp_path / "journal.jsonl"
    journal = Journal(path, "build", 1, IDENTITY)
    for entry in ({"n": 1}, {"name": "ä"}):
        journal.add(entry)
    path.write_bytes(path.read_bytes()[:-cut])
    again = Journal(path, "build", 1, IDENTITY)
    assert again.entries == [{"n": 1}]
    again.add({"n": 3})
    assert Journal(path, "build", 1, IDENTITY).entries == [{"n": 1}, {"n": 3}]
    with pytest.raises(ValueError, match="another images"):
        Journal(path, "build", 1, {**IDENTITY, "images": []})
    lines = path.read_text("utf-8").splitlines()
    assert json.loads(lines[0])["format"] == "glassbox build" and len(lines) == 3


def test_an_empty_journal_begins_again(tmp_path):
    path = tmp_path / "journal.jsonl"
    path.write_text('{"format": "glassbox bu')
    assert Journal(path, "build", 1, IDENTITY).entries == []


def test_values_that_read_alike_have_other_digests():
    """Every text and every list goes into a digest with its length, and tables apart from lists."""
    values = (
        ["a", "b"],
        ["a;str:b"],
        ["a1:b"],
        {"a": "b"},
        ["ab"],
        ["a", ["b"]],
        [["a", "b"]],
        ["", "ab"],
    )
    digests = {resume.digest(value) for value in values}
    assert len(digests) == len(values)
    assert resume.digest(("a", "b")) == resume.digest(["a", "b"])


def test_a_strangers_identity_is_named_on_one_line(tmp_path):
    path = tmp_path / "a.safetensors"
    resume.save_state(path, "training", 3, {"seed": 1, "a\nb": 2}, {"a": torch.ones(1)})
    with pytest.raises(ValueError, match="another a b: restore") as caught:
        resume.load_state(path, "training", 3, {"seed": 1})
    assert "\n" not in str(caught.value)
