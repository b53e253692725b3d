"""Pairing a batch with its noise: every mode, the noise numbers, and what the report says."""

from dataclasses import dataclass, field

import pytest
import torch
from glassbox.nodes.noise import noise_report
from glassbox.nodes.noise.nearest import NearestForm
from glassbox.nodes.noise.pairing import DrawnNoise, PairingSettings, pair

SHAPE = (5, 4, 8, 8)


@dataclass
class Stream:
    """A stream of noise samples by number, and a LATENT to go with it."""

    parts: list[torch.Tensor]
    numbers: list[int]
    weights: list[torch.Tensor] | None = None
    blank: torch.Tensor = None
    drawn_numbers: list[list[int]] = field(default_factory=list)

    def __post_init__(self):
        if self.blank is None:
            self.blank = torch.zeros(len(self.numbers), dtype=torch.bool)

    def draw(self, numbers):
        self.drawn_numbers.append(list(numbers))
        rows = [torch.Generator().manual_seed(1000 + number) for number in numbers]
        return [
            torch.stack(
                [torch.randn(part.shape[1:], generator=generator) for generator in rows]
            ).to(part.dtype)
            for part in self.parts
        ]

    def pair(self, **choices):
        self.drawn = self.draw(self.numbers)
        return pair(
            PairingSettings(**choices),
            self,
            self.drawn,
            DrawnNoise(self.numbers, self.draw),
            seed=3,
        )


def stream(numbers=range(5), dtype=torch.float32, parts=1, **given) -> Stream:
    generator = torch.Generator().manual_seed(0)
    shapes = [SHAPE, (5, 2, 30)][:parts]
    return Stream(
        [torch.randn(shape, generator=generator).to(dtype) for shape in shapes],
        list(numbers),
        **given,
    )


def empty_stream() -> Stream:
    return Stream([torch.zeros(SHAPE)], list(range(5)), blank=torch.ones(5, dtype=bool))


def test_off_changes_nothing():
    one = stream()
    found = one.pair(pairing="off")
    assert not found.moved
    assert found.noise[0] is one.drawn[0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize(
    "choices",
    [
        {"pairing": "assign"},
        {"pairing": "pool", "pool_size": 40, "pool_index": 1},
        {"pairing": "nearest", "nearest_form": "official"},
    ],
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
    assert sorted(one.pair(pairing="assign").numbers) == [3, 4, 7, 9, 12]
    assert len(one.drawn_numbers) == 1


def test_pool_draws_whole_turns_after_the_batch():
    one = stream(numbers=[7, 3, 9, 4, 12])
    one.pair(pairing="pool", pool_size=13)
    assert one.drawn_numbers[1] == [7, 3, 9, 4, 12, *range(13, 23)]


def test_pool_of_the_batch_is_assign():
    assert (
        stream().pair(pairing="pool", pool_size=1).numbers
        == stream().pair(pairing="assign").numbers
    )


def test_turns_of_a_pool_serve_each_noise_once():
    turns = [stream().pair(pairing="pool", pool_size=20, pool_index=turn) for turn in range(4)]
    served = [number for turn in turns for number in turn.numbers]
    assert sorted(served) == list(range(20))


@pytest.mark.parametrize("form", [NearestForm.CLOSED_FORM, NearestForm.DOT_PRODUCT])
def test_nearest_by_a_law(form):
    one = stream(dtype=torch.float16, parts=2)
    found = one.pair(pairing="nearest", nearest_form=form, k=32)
    assert found.moved
    assert len(one.drawn_numbers) == 1
    assert (found.after <= found.before + 0.05).all()
    assert [part.dtype for part in found.noise] == [torch.float16] * 2
    assert not one.pair(pairing="nearest", nearest_form=form, k=1).moved


def test_nearest_of_one_image_does_not_depend_on_the_others():
    whole = stream().pair(pairing="nearest", k=8)
    one = Stream([stream().parts[0][3:4]], [3])
    torch.testing.assert_close(one.pair(pairing="nearest", k=8).noise[0][0], whole.noise[0][3])


@pytest.mark.parametrize("form", list(NearestForm))
def test_blank_images_keep_their_noise(form):
    one = stream(blank=torch.tensor([False, True, False, True, False]))
    found = one.pair(pairing="nearest", nearest_form=form, k=16)
    assert torch.equal(found.noise[0][[1, 3]], one.drawn[0][[1, 3]])
    assert not torch.equal(found.noise[0], one.drawn[0])


@pytest.mark.parametrize("mode", ["assign", "pool", "nearest"])
def test_no_noise_stays_no_noise(mode):
    one = stream()
    silent = [torch.zeros(SHAPE)]
    found = pair(PairingSettings(pairing=mode), one, silent, DrawnNoise(one.numbers, one.draw), 3)
    assert not found.moved
    assert torch.equal(found.noise[0], silent[0])


def test_noise_that_is_not_gaussian_of_one_is_not_moved_by_its_law():
    one = stream()
    with pytest.raises(ValueError, match=r"standard deviation 2\.98"):
        pair(PairingSettings(pairing="nearest"), one, [3.0 * one.draw(one.numbers)[0]], None, 3)


def test_a_mask_decides_what_is_near():
    mask = torch.zeros(SHAPE)
    mask[..., :4] = 1
    masked = stream(weights=[mask]).pair(pairing="assign")
    cut = Stream([stream().parts[0][..., :4]], list(range(5)))
    drawn = [stream().draw(range(5))[0][..., :4]]
    assert masked.numbers == pair(PairingSettings(), cut, drawn, None, 3).numbers


def report(one: Stream, **choices) -> str:
    return noise_report.describe_pairing(PairingSettings(**choices), one, one.pair(**choices))


def test_the_report_names_distances_gain_solver_and_time():
    one = stream()
    text = report(one, pairing="assign")
    found = one.pair(pairing="assign")
    assert f"before {found.before.mean():.3f}, after {found.after.mean():.3f}" in text
    assert f"{100 * (1 - found.after.sum() / found.before.sum()):.2f} % less" in text
    assert " ms in all" in text
    assert f"Noise sample of each image: {', '.join(map(str, found.numbers))}" in text


@pytest.mark.parametrize(
    ("one", "choices", "sentence"),
    [
        (
            Stream([torch.randn(1, 4, 8, 8)], [0]),
            {"pairing": "assign"},
            "there is one image.* Nearest works",
        ),
        (
            Stream([torch.zeros(SHAPE)], list(range(5)), blank=torch.ones(5, dtype=bool)),
            {"pairing": "assign"},
            "empty",
        ),
        (empty_stream(), {"pairing": "assign"}, "empty"),
        (empty_stream(), {"pairing": "nearest"}, "empty"),
        (
            Stream([torch.randn(1, 4, 8, 8).repeat(5, 1, 1, 1)], list(range(5))),
            {"pairing": "pool"},
            "the same",
        ),
        (
            stream(),
            {"pairing": "assign", "grouping": "within_groups", "labels": "a\nb\nc\nd\ne"},
            "already the best",
        ),
        (stream(), {"pairing": "nearest", "k": 64}, "weaker"),
        (stream(), {"pairing": "nearest", "k": 4}, "Standard deviation of the noise"),
    ],
)
def test_report_explains_missing_gain_and_warns_of_large_k(one, choices, sentence):
    import re

    assert re.search(sentence, report(one, **choices))


@pytest.mark.parametrize(
    ("choices", "sentence"),
    [
        ({"pairing": "best"}, "best"),
        ({"cost": "x"}, "Cost"),
        ({"nearest_form": "x"}, "NearestForm"),
        ({"grouping": "x"}, "Grouping"),
        ({"pairing": "nearest", "k": 2.5}, "integer k"),
    ],
)
def test_settings_refuse_unknown_options(choices, sentence):
    with pytest.raises(ValueError, match=sentence):
        PairingSettings(**choices)
