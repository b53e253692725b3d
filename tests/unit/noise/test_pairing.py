"""Pairing a batch with its noise: every mode, the noise numbers, and what the report says."""

from dataclasses import dataclass, field

import pytest
import torch
from glassbox.nodes.noise import nearest, report
from glassbox.nodes.noise.pairing import pair
from glassbox.nodes.noise.settings import Settings

SHAPE = (5, 4, 8, 8)


@dataclass
class Stream:
    """A stream of noises by number, and a LATENT to go with it."""

    parts: list[torch.Tensor]
    numbers: list[int]
    weights: list[torch.Tensor] | None = None
    blank: torch.Tensor = None
    asked: list[list[int]] = field(default_factory=list)

    def __post_init__(self):
        if self.blank is None:
            self.blank = torch.zeros(len(self.numbers), dtype=torch.bool)

    def draw(self, numbers):
        self.asked.append(list(numbers))
        rows = [torch.Generator().manual_seed(1000 + number) for number in numbers]
        return [
            torch.stack([torch.randn(part.shape[1:], generator=generator) for generator in rows]).to(part.dtype)
            for part in self.parts
        ]

    def pair(self, **choices):
        self.drawn = self.draw(self.numbers)
        return pair(Settings(**choices), self, self.drawn, self.draw, seed=3)


def stream(numbers=range(5), dtype=torch.float32, parts=1, **given) -> Stream:
    generator = torch.Generator().manual_seed(0)
    shapes = [SHAPE, (5, 2, 30)][:parts]
    return Stream([torch.randn(shape, generator=generator).to(dtype) for shape in shapes], list(numbers), **given)


def test_off_changes_nothing():
    one = stream()
    found = one.pair(mode="off")
    assert not found.moved
    assert found.noise[0] is one.drawn[0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize(
    "choices",
    [{"mode": "assign"}, {"mode": "pool", "pool_size": 40, "turn": 1}, {"mode": "nearest", "form": "official"}],
    ids=["assign", "pool", "nearest"],
)
def test_the_noise_is_that_of_its_numbers_bit_for_bit(choices, parts, dtype):
    one = stream(numbers=[7, 3, 9, 4, 12], dtype=dtype, parts=parts)
    found = one.pair(**choices)
    assert found.moved
    assert found.after.mean() < found.before.mean()
    again = one.draw(found.numbers)
    for part, expected in zip(found.noise, again, strict=True):
        assert part.dtype == dtype
        assert torch.equal(part, expected)


def test_assign_permutes_the_numbers_and_draws_nothing_more():
    one = stream(numbers=[7, 3, 9, 4, 12])
    assert sorted(one.pair(mode="assign").numbers) == [3, 4, 7, 9, 12]
    assert len(one.asked) == 1


def test_pool_draws_whole_turns_after_the_batch():
    one = stream(numbers=[7, 3, 9, 4, 12])
    one.pair(mode="pool", pool_size=13)
    assert one.asked[1] == [7, 3, 9, 4, 12, *range(13, 23)]


def test_pool_of_the_batch_is_assign():
    assert stream().pair(mode="pool", pool_size=1).numbers == stream().pair(mode="assign").numbers


def test_the_turns_of_a_pool_share_it_out():
    served = [number for turn in range(4) for number in stream().pair(mode="pool", pool_size=20, turn=turn).numbers]
    assert sorted(served) == list(range(20))


@pytest.mark.parametrize("form", [nearest.CLOSED, nearest.DOT])
def test_nearest_by_a_law(form):
    one = stream(dtype=torch.float16, parts=2)
    found = one.pair(mode="nearest", form=form, k=32)
    assert found.moved
    assert len(one.asked) == 1
    assert (found.after <= found.before + 0.05).all()
    assert [part.dtype for part in found.noise] == [torch.float16] * 2
    assert not one.pair(mode="nearest", form=form, k=1).moved


def test_nearest_of_one_picture_does_not_depend_on_the_others():
    whole = stream().pair(mode="nearest", k=8)
    one = Stream([stream().parts[0][3:4]], [3])
    torch.testing.assert_close(one.pair(mode="nearest", k=8).noise[0][0], whole.noise[0][3])


@pytest.mark.parametrize("form", nearest.FORMS)
def test_blank_pictures_keep_their_noise(form):
    one = stream(blank=torch.tensor([False, True, False, True, False]))
    found = one.pair(mode="nearest", form=form, k=16)
    assert torch.equal(found.noise[0][[1, 3]], one.drawn[0][[1, 3]])
    assert not torch.equal(found.noise[0], one.drawn[0])


@pytest.mark.parametrize("mode", ["assign", "pool", "nearest"])
def test_no_noise_stays_no_noise(mode):
    one = stream()
    silent = [torch.zeros(SHAPE)]
    found = pair(Settings(mode=mode), one, silent, one.draw, 3)
    assert not found.moved
    assert torch.equal(found.noise[0], silent[0])


def test_noise_that_is_not_gaussian_of_one_is_not_moved_by_its_law():
    one = stream()
    with pytest.raises(ValueError, match=r"standard deviation 2\.98"):
        pair(Settings(mode="nearest"), one, [3.0 * one.draw(one.numbers)[0]], one.draw, 3)


def test_a_mask_decides_what_is_near():
    mask = torch.zeros(SHAPE)
    mask[..., :4] = 1
    masked = stream(weights=[mask]).pair(mode="assign")
    cut = Stream([stream().parts[0][..., :4]], list(range(5)))
    drawn = [stream().draw(range(5))[0][..., :4]]
    assert masked.numbers == pair(Settings(), cut, drawn, cut.draw, 3).numbers


def told(one: Stream, **choices) -> str:
    return report.describe(Settings(**choices), one, one.pair(**choices))


def test_the_report_names_distances_gain_solver_and_time():
    one = stream()
    text = told(one, mode="assign")
    found = one.pair(mode="assign")
    assert f"before {found.before.mean():.3f}, after {found.after.mean():.3f}" in text
    assert f"{100 * (1 - found.after.sum() / found.before.sum()):.2f} % less" in text
    assert "Solver " in text and " ms" in text
    assert f"Noise of each picture: {', '.join(map(str, found.numbers))}" in text


@pytest.mark.parametrize(
    ("one", "choices", "sentence"),
    [
        (Stream([torch.randn(1, 4, 8, 8)], [0]), {"mode": "assign"}, "there is one picture.* Nearest works"),
        (Stream([torch.zeros(SHAPE)], list(range(5)), blank=torch.ones(5, dtype=bool)), {"mode": "assign"}, "empty"),
        (Stream([torch.zeros(SHAPE)], list(range(5)), blank=torch.ones(5, dtype=bool)), {"mode": "nearest"}, "empty"),
        (Stream([torch.randn(1, 4, 8, 8).repeat(5, 1, 1, 1)], list(range(5))), {"mode": "pool"}, "the same"),
        (stream(), {"mode": "assign", "grouping": "within groups", "labels": "a\nb\nc\nd\ne"}, "already the best"),
        (stream(), {"mode": "nearest", "k": 64}, "weaker"),
        (stream(), {"mode": "nearest", "k": 4}, "Standard deviation of the noise"),
    ],
)
def test_the_report_says_why_and_what_to_know(one, choices, sentence):
    import re

    assert re.search(sentence, told(one, **choices))


@pytest.mark.parametrize(
    ("choices", "sentence"),
    [
        ({"mode": "best"}, "no mode best"),
        ({"cost": "x"}, "no cost x"),
        ({"solver": "x"}, "no solver x"),
        ({"form": "x"}, "no form x"),
        ({"grouping": "x"}, "no grouping x"),
        ({"mode": "nearest", "k": 2.5}, "whole k"),
    ],
)
def test_settings_that_are_none(choices, sentence):
    with pytest.raises(ValueError, match=sentence):
        Settings(**choices)
