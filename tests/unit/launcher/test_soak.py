"""What the soak makes of its measurements."""

import pytest

from tools.launcher import soak
from tools.launcher.errors import LaunchError


def _traces(slope, rounds=12):
    traces = soak.Traces(prompts=20 * rounds, threads=[9] * rounds, handles=[30] * rounds)
    traces.memory = [(20 * number, 500 + slope * 20 * number + number % 2) for number in range(1, rounds + 1)]
    return traces


def test_slope_of_memory_has_an_interval_around_it():
    numbers = soak._numbers(_traces(0.25), 36, 20, 0)
    slope = numbers["soak: memory slope"]
    assert slope["low"] < 0.25 < slope["high"] and slope["high"] - slope["low"] < 0.1 and slope["n"] == 8
    assert numbers["soak: threads gained"]["value"] == 0


def test_too_few_rounds_are_one_sentence():
    with pytest.raises(LaunchError, match="too few"):
        soak._numbers(_traces(0.0, rounds=7), 36, 20, 0)


def test_steps_sizes_and_batches_become_tiny():
    inputs = {"width": ["INT", {"min": 16}], "steps": ["INT", {"min": 4}], "seed": ["INT", {}], "cfg": ["FLOAT", {}]}
    assert soak.shrink({"width": 512, "steps": 20, "seed": 9, "cfg": 7.5}, {"input": {"required": inputs}}) == {
        "width": 64,
        "steps": 4,
        "seed": 9,
        "cfg": 7.5,
    }
