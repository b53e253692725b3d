"""The nearest of drawn noise samples: its generator against published vectors, its law, its choice
by brute force.
"""

import pytest
import torch
from glassbox.kernels import nearest_drawn
from glassbox.kernels.eager import nearest_drawn as eager
from glassbox.kernels.eager.nearest_drawn import candidates, philox

ONES = 0xFFFFFFFF


@pytest.mark.parametrize(
    ("rounds", "counter", "key", "words"),
    [  # the known answers of Random123 for philox4x32-7 and philox4x32-10
        (7, (0, 0, 0, 0), (0, 0), (0x5F6FB709, 0x0D893F64, 0x4F121F81, 0x4F730A48)),
        (10, (0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        (10, (ONES,) * 4, (ONES,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            10,
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_philox_gives_the_published_words(rounds, counter, key, words):
    found = philox(tuple(map(torch.tensor, counter)), tuple(map(torch.tensor, key)), rounds)
    assert tuple(int(word) & ONES for word in found) == words


def test_candidates_are_gaussian_and_independent():
    draws = candidates(torch.tensor([2406, -1]), 0, 3, 40_001).flatten(0, 1)
    assert draws.isfinite().all()
    assert draws.mean(1).abs().max() < 4 / 200 and (draws.var(1) - 1).abs().max() < 4 * 2**0.5 / 200
    assert (draws.pow(4).mean(1) - 3).abs().max() < 4 * 96**0.5 / 200
    correlation = torch.corrcoef(draws) - torch.eye(6)
    assert correlation.abs().max() < 4.5 / 200


@pytest.mark.parametrize("words", [1, 100, 1 << 16])
def test_the_nearest_is_taken(monkeypatch, words):
    monkeypatch.setattr(eager, "WORDS", words)
    data, seeds = (
        torch.randn(4, 50, generator=torch.Generator().manual_seed(0)),
        torch.tensor([5, 6, 2**60, -3]),
    )
    noise, index = nearest_drawn(data, seeds, 7)
    drawn = candidates(seeds, 0, 7, 50)
    distances = torch.cdist(drawn.double(), data.double()[:, None])[..., 0]
    assert torch.equal(index, distances.argmin(1)) and torch.equal(
        noise, drawn[torch.arange(4), index]
    )
    assert torch.equal(nearest_drawn(data, seeds, 1)[0], drawn[:, 0])


def test_a_row_depends_on_its_seed_alone():
    data = torch.randn(3, 20, generator=torch.Generator().manual_seed(1))
    whole = nearest_drawn(data, torch.tensor([7, 8, 9]), 5)[0]
    assert torch.equal(nearest_drawn(data[1:2], torch.tensor([8]), 5)[0], whole[1:2])


def test_wrong_seeds_and_k_are_refused():
    with pytest.raises(ValueError, match="an int64 seed for each row"):
        nearest_drawn(torch.ones(2, 3), torch.ones(2), 2)
    with pytest.raises(ValueError, match="k is 0"):
        nearest_drawn(torch.ones(1, 3), torch.tensor([1]), 0)
    assert nearest_drawn(torch.ones(0, 3), torch.zeros(0, dtype=torch.int64), 2)[0].shape == (0, 3)
