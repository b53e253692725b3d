"""What the study of gradual sliders makes of the judge's readings along a slider."""

import numpy as np
import pytest

from studies.weights import gradual
from studies.world.faces import ATTRIBUTES


def numbers(*values):
    return [ATTRIBUTES["facial_hair"].index(value) for value in values]


def test_a_slider_that_rises_evenly_and_one_that_flips_past_another_value():
    even = [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
    flips = [0.0, 0.0, 0.1, 0.0, 0.9, 1.0]
    recognized = np.array(
        [
            numbers("none", "none", "none", *["light beard"] * 3),
            numbers("none", "none", *["moustache"] * 2, *["majestic beard"] * 2),
        ]
    )
    found = gradual.judged("beard", np.array([even, flips]), recognized)
    assert found["rank correlation"][0] == pytest.approx(1)
    assert 0 < found["rank correlation"][1] < 0.9
    assert found["largest step"] == pytest.approx([0.2, 0.9 / 1.1])
    assert found["another value"] == pytest.approx([0.0, 0.4])
    assert found["reached"] == [True, True]


def test_a_slider_that_does_nothing_reaches_nothing():
    still = np.full((1, 6), 0.3)
    recognized = np.array([numbers(*["none"] * 6)])
    found = gradual.judged("beard", still, recognized)
    assert found["rank correlation"] == [0.0] and found["reached"] == [False]
    assert found["another value"] == [0.0]
