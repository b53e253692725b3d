"""What a call of a network knows by itself: its step of a schedule, and which rows are whose."""

import pytest
import torch
from glassbox.nodes.common import network_call
from glassbox.nodes.common.network_call import WHOLE, Call, Part, RowSubset

FALLING = (14.0, 7.0, 3.0, 1.0, 0.0)
RISING = (0.0, 1.0, 3.0, 7.0, 14.0)


@pytest.mark.parametrize(
    ("sigma", "step"),
    [(14.0, 0), (20.0, 0), (10.0, 0), (7.0, 1), (6.9, 1), (3.0, 2), (1.5, 2), (1.0, 3), (0.2, 3)],
)
def test_a_level_is_in_the_step_that_begins_at_or_above_it(sigma, step):
    """Between two steps it is in the earlier one; a level is met to five digits."""
    for near in (sigma, sigma * (1 + 1e-6), sigma * (1 - 1e-6)):
        assert network_call.step_of(near, FALLING) == (step, 4)


@pytest.mark.parametrize(
    ("sigma", "step"), [(0.0, 0), (0.5, 0), (1.0, 1), (2.0, 1), (3.0, 2), (7.0, 3), (14.0, 3)]
)
def test_of_rising_levels_the_lowest_is_the_first(sigma, step):
    for near in (sigma, sigma * (1 + 1e-6), sigma * (1 - 1e-6)):
        assert network_call.step_of(near, RISING) == (step, 4)


@pytest.mark.parametrize("levels", [(), (5.0,)])
def test_without_a_schedule_there_is_one_step(levels):
    assert network_call.step_of(3.0, levels) == (0, 1)
    assert network_call.is_on_schedule(3.0, levels)


@pytest.mark.parametrize("levels", [FALLING, RISING, (2.0, 1.0), (1.0, 2.0)])
def test_a_step_begins_at_its_level_alone(levels):
    for level in levels[:-1]:
        assert network_call.is_on_schedule(level * (1 + 1e-6), levels)
        if level:
            assert not network_call.is_on_schedule(level * 1.01, levels)
            assert not network_call.is_on_schedule(level * 0.99, levels)


def call(*rows, of=6):
    parts = tuple(
        Part(role="positive" if number % 2 else "negative", rows=own, area=WHOLE)
        for number, own in enumerate(rows)
    )
    return Call(network=None, parts=parts, rows=of, sigma=3.0, schedule=FALLING)


def test_rows_of_chosen_parts():
    made = call(slice(0, 2), slice(2, 5), torch.tensor([5]))
    assert made.step == (2, 4)
    assert made.where([True, False, True], 6).tolist() == [True, True, False, False, False, True]
    assert made.where([False, True, False], 6).tolist() == [False, False, True, True, True, False]
    assert made.where([True] * 3, 9).tolist() == [True] * 9
    assert made.where([False] * 3, 4).tolist() == [False] * 4
    with pytest.raises(ValueError, match="Inside the network there are 5 rows"):
        made.where([True, False, True], 5)
    values = torch.arange(6)
    assert [rows.tolist() for _, rows in made.split(values)] == [[0, 1], [2, 3, 4], [5]]


def test_rows_that_are_evaluated_again_are_found_by_their_numbers():
    made = call(slice(0, 2), slice(2, 5), torch.tensor([5]))
    subset = RowSubset.of_parts([made.parts[2], made.parts[1]], 6)
    assert subset.numbers == (5, 2, 3, 4) and len(subset) == 4
    assert subset.select(torch.arange(6) * 10).tolist() == [50, 20, 30, 40]
    assert subset.places(slice(0, 2)) is None
    assert subset.places(slice(2, 5)) == slice(1, 4)
    assert subset.places(torch.tensor([5])) == slice(0, 1)
    assert subset.places(torch.tensor([5, 3])).tolist() == [0, 2]
    with network_call.evaluating_again(subset):
        assert network_call.evaluated_again() is subset
        made.require(4)
        with pytest.raises(ValueError, match="Inside the network there are 6 rows"):
            made.require(6)
        found = [(part.role, rows.tolist()) for part, rows in made.split(torch.arange(4))]
        assert found == [("positive", [1, 2, 3]), ("negative", [0])]
        # Three values for six rows, as both sides of CFG have them.
        assert network_call.rows_in_call(torch.tensor([7, 8, 9]), 4).tolist() == [9, 9, 7, 8]
    assert network_call.evaluated_again() is None
    assert network_call.rows_in_call(torch.tensor([7, 8, 9]), 6).tolist() == [7, 8, 9, 7, 8, 9]
    for other in (1, 7):  # texts of a batch in one row (PixArt), tokens before rows (HunyuanDiT)
        with pytest.raises(ValueError, match="name other layers"):
            network_call.rows_in_call(torch.tensor([7, 8, 9]), other)
