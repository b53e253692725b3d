"""The contrast of prompts with and without a concept: effects, the maximum statistic over sign
flips, and selection.
"""

import itertools

import numpy as np
import pytest
import torch
from glassbox.nodes.neurons import concept_neurons
from glassbox.nodes.neurons.concept_neurons import FLIPS, LEVEL, contrast, sign_flips

NEURONS, PLANTED = 200, [3, 17, 100, 199]


def toy_network(pairs, shift=3.0, seed=0):
    """Activations of a network with and without a concept, which only the planted neurons read."""
    rng = np.random.default_rng(seed)
    prompts = rng.normal(size=(pairs, 8)) @ rng.normal(size=(8, NEURONS))
    absent, present = (prompts + 0.5 * rng.normal(size=(pairs, NEURONS)) for _ in range(2))
    present[:, PLANTED] += shift * present.std(0)[PLANTED] * np.array([1, -1, 1, -1])
    return torch.from_numpy(present), torch.from_numpy(absent)


def by_hand(present, absent):
    """Effects, their p and the threshold by loops over every flip, neuron and pair, in float64."""
    present, absent = present.double().numpy(), absent.double().numpy()
    spread = [np.std([*present[:, n], *absent[:, n]]) for n in range(present.shape[1])]

    def effects(signs):
        sums = [
            sum(s * (a - b) for s, a, b in zip(signs, present[:, n], absent[:, n], strict=True))
            for n in every
        ]
        return [one / len(present) / spread[n] if spread[n] else 0.0 for n, one in enumerate(sums)]

    every = range(present.shape[1])
    effect = effects([1] * len(present))
    maxima = [
        max(map(abs, effects(signs))) for signs in itertools.product((1, -1), repeat=len(present))
    ]
    p = [np.mean([largest >= abs(one) - 1e-12 for largest in maxima]) for one in effect]
    return np.array(effect), np.array(p), sorted(maxima)[len(maxima) - 1 - int(LEVEL * len(maxima))]


@pytest.mark.parametrize("pairs", [4, 7])
def test_effects_and_p_are_those_of_loops_over_all_flips(pairs):
    present, absent = (side[:, :20].clone() for side in toy_network(pairs))
    present[:, 5] = absent[:, 5] = 2.0
    found = contrast(present, absent)
    effect, p, threshold = by_hand(present, absent)
    assert np.allclose(found.effect, effect, rtol=1e-12, atol=1e-15) and found.effect[5] == 0
    assert np.allclose(found.p, p) and found.threshold == pytest.approx(threshold, rel=1e-12)
    assert found.flips == 2 ** (pairs - 1)


@pytest.mark.parametrize("pairs", [8, 32])
def test_planted_neurons_are_found_exactly(pairs):
    found = contrast(*toy_network(pairs))
    assert sorted(found.select(0)) == sorted(found.select(len(PLANTED))) == PLANTED
    assert torch.equal(found.beyond_chance, found.effect.abs() > found.threshold)
    assert found.effect[PLANTED].sign().tolist() == [1, -1, 1, -1]


def test_permuted_prompts_find_none_but_at_the_level():
    """With the prompts of each pair in random order, any neuron at all is found in about one of
    twenty contrasts.
    """
    present, absent = toy_network(10)
    found, draws = 0, 200
    for seed in range(draws):
        swapped = torch.rand(10, 1, generator=torch.Generator().manual_seed(seed)) < 0.5
        pair = torch.where(swapped, absent, present), torch.where(swapped, present, absent)
        found += bool(contrast(*pair).select(0))
    assert found <= 20  # a binomial of 200 draws at .05 exceeds it in .5 % of cases
    half = torch.arange(10)[:, None] % 2 == 0
    assert (
        contrast(torch.where(half, absent, present), torch.where(half, present, absent)).select(0)
        == []
    )


def test_drawn_flips_agree_with_all_of_them(monkeypatch):
    present, absent = toy_network(11, shift=0.9)
    exact = contrast(present, absent)
    monkeypatch.setattr(concept_neurons, "FLIPS", 1000)
    drawn, again = contrast(present, absent, seed=5), contrast(present, absent, seed=5)
    assert exact.flips == 1024 and drawn.flips == 1000
    assert torch.equal(drawn.p, again.p) and not torch.equal(
        drawn.p, contrast(present, absent, seed=6).p
    )
    assert torch.allclose(drawn.p, exact.p, atol=0.06) and torch.equal(drawn.effect, exact.effect)


def test_too_few_pairs_find_nothing_beyond_chance():
    """Of five pairs the least p is 1/16; that of six, 1/32, is below the level."""
    found = [contrast(*toy_network(pairs, shift=50.0)) for pairs in (5, 6)]
    assert [bool(one.select(0)) for one in found] == [False, True]
    assert [float(one.p.min()) for one in found] == [1 / 16, 1 / 32]
    with pytest.raises(ValueError, match="two pairs"):
        contrast(*toy_network(1))


def test_neurons_that_overflow_have_no_effect():
    present, absent = toy_network(8)
    present[2, 0], absent[3, 1] = torch.inf, torch.nan
    found = contrast(present, absent)
    assert found.effect[:2].tolist() == [0, 0] and sorted(found.select(0)) == PLANTED


def test_sign_flips_are_distinct_and_begin_with_none():
    signs = sign_flips(6, 0)
    assert (
        len({tuple(row) for row in signs.tolist()}) == 32
        and (signs[0] == 1).all()
        and (signs[:, 0] == 1).all()
    )
    drawn = sign_flips(40, 0)
    assert (
        drawn.shape == (FLIPS, 40)
        and (drawn[0] == 1).all()
        and abs(float(drawn[:, 1:].mean())) < 0.02
    )
