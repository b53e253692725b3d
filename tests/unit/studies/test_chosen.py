"""Which way to edit is chosen, and on whom it is judged."""

import numpy as np
import pytest

from studies.weights import chosen


def constant(reached, kept, count=4):
    return np.tile([[reached, kept]], (count, 1))


def test_the_strongest_that_keeps_as_much_as_the_rival_is_chosen():
    rows = {
        "prompt": constant(0.6, 0.8),
        "weak": constant(0.5, 0.95),
        "right": constant(0.7, 0.8),
        "strong": constant(1.0, 0.79),
    }
    assert chosen.choose(rows, "prompt", ["weak", "right", "strong"]) == "right"


def test_where_all_lose_more_the_one_that_keeps_most_is_chosen():
    rows = {"prompt": constant(0.6, 0.9), "a": constant(0.9, 0.7), "b": constant(0.2, 0.8)}
    assert chosen.choose(rows, "prompt", ["a", "b"]) == "b"


def test_each_unit_is_judged_by_the_choice_of_the_others():
    """Even units would choose a, odd ones b: each is judged by the other's choice."""
    rows = {
        "prompt": constant(0.5, 0.5),
        "a": np.array([[1.0, 0.5], [0.1, 0.5]] * 2),
        "b": np.array([[0.3, 0.6], [0.9, 0.5]] * 2),
    }
    differences, names = chosen.judged_on_others(rows, "prompt", ["a", "b"])
    assert names == ["b", "a"]
    assert differences == pytest.approx(np.array([[-0.2, 0.1], [-0.4, 0.0]] * 2))
