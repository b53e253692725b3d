"""The gate gamma over the noise fraction: its values by hand, and the identities of its curves."""

import itertools
import math
from itertools import pairwise

import pytest
from glassbox.nodes.conditioning.metadata_schedule import (
    GateCurve,
    choice_weight,
    gate,
    half_weight,
)

PLACES = [index / 1000 for index in range(1001)]
COSINE, RAISED, WARPED, CONSTANT = GateCurve
FADING = (COSINE, RAISED, WARPED)


@pytest.mark.parametrize("curve", FADING)
@pytest.mark.parametrize("exponent", [0.5, 1, 2, 8, 64])
def test_ends_range_and_order(curve, exponent):
    values = [gate(curve, exponent, u) for u in PLACES]
    assert values[0] == 1.0 and values[-1] == 0.0
    assert all(0 <= value <= 1 for value in values)
    assert all(a >= b for a, b in pairwise(values))


@pytest.mark.parametrize(
    ("u", "values"),
    [
        (0.5, (0.707107, 0.5, 0.25, 0.0625)),
        (0.25, (0.923880, 0.853553, 0.728553, 0.530790)),
        (0.75, (0.382683, 0.146447, 0.021447, 0.000460)),
    ],
)
def test_cosine_by_number(u, values):
    assert [gate(COSINE, exponent, u) for exponent in (1, 2, 4, 8)] == pytest.approx(
        values, abs=5e-7
    )


@pytest.mark.parametrize("exponent", [0.5, 1, 3, 7.5])
def test_raised_cosine_is_the_cosine_with_twice_the_exponent(exponent):
    for u in PLACES:
        assert gate(RAISED, exponent, u) == pytest.approx(gate(COSINE, 2 * exponent, u), abs=1e-12)


def test_half_weight_and_mean_by_number():
    halves = [half_weight(COSINE, exponent) for exponent in (1, 2, 4, 8)]
    assert halves == pytest.approx([0.6667, 0.5, 0.3641, 0.2612], abs=5e-5)
    assert halves == pytest.approx(
        [2 / math.pi * math.acos(2 ** (-1 / e)) for e in (1, 2, 4, 8)], abs=1e-9
    )
    count = 20_000
    means = [
        sum(gate(COSINE, exponent, (index + 0.5) / count) for index in range(count)) / count
        for exponent in (1, 2, 4, 8)
    ]
    assert means == pytest.approx([0.63662, 0.5, 0.375, 0.2734375], abs=1e-5)


def test_a_larger_exponent_closes_the_cosine_and_opens_the_warped_one():
    assert gate(COSINE, 4, 0.5) < gate(COSINE, 2, 0.5)
    assert gate(WARPED, 4, 0.5) > gate(WARPED, 2, 0.5)
    assert gate(WARPED, 1, 0.3) == pytest.approx(gate(RAISED, 1, 0.3))


@pytest.mark.parametrize("curve", list(GateCurve))
def test_exponent_zero_is_always_open(curve):
    assert {gate(curve, 0, u) for u in PLACES} == {1.0}
    assert half_weight(curve, 0) is None


def test_constant_is_the_baseline():
    assert {gate(CONSTANT, 4, u) for u in PLACES} == {1.0}


def test_beyond_the_ends_and_negative_exponents():
    assert gate(COSINE, 2, -0.1) == 1.0
    assert gate(COSINE, 2, 1.1) == 0.0
    with pytest.raises(ValueError, match="The exponent of the gate is -1"):
        gate(COSINE, -1, 0.5)


@pytest.mark.parametrize("gammas", [(0.3,), (0.3, 0.8), (0.0, 1.0, 0.5)])
def test_the_weights_of_all_choices_of_gates_add_up_to_one(gammas):
    """Every gate open or closed on its own: the product over gates, as for independent events."""
    every = list(itertools.product((False, True), repeat=len(gammas)))
    weights = {closed: choice_weight(closed, gammas) for closed in every}
    assert sum(weights.values()) == pytest.approx(1, abs=1e-12)
    for number, gamma in enumerate(gammas):
        assert sum(weight for closed, weight in weights.items() if closed[number]) == pytest.approx(
            1 - gamma, abs=1e-12
        )
