"""What the study of gradual sliders makes of the judge's readings along a slider."""

import json

import numpy as np
import pytest

from studies.common.results import RESULTS
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
    readings = np.array([[0.3] * 6, [0.6, 0.5, 0.4, 0.3, 0.2, 0.1]])  # the second only falls
    recognized = np.array([numbers(*["none"] * 6)] * 2)
    found = gradual.judged("beard", readings, recognized)
    assert found["rank correlation"] == pytest.approx([0.0, -1.0])
    assert found["reached"] == [False, False] and found["appears"] == []
    assert found["another value"] == [0.0, 0.0] and found["largest step"] == [0.0, 0.0]


def test_an_attribute_appears_at_the_first_strength_that_shows_it():
    recognized = np.array(
        [
            numbers("none", "none", *["light beard"] * 4),
            numbers("none", "none", "none", "moustache", "none", "majestic beard"),
            numbers(*["none"] * 6),
        ]
    )
    readings = np.linspace(0, 1, 18).reshape(3, 6)
    assert gradual.judged("beard", readings, recognized)["appears"] == [0.4, 1.0]


def test_values_of_labels_are_those_that_they_hold_for():
    assert gradual.values_of("dark skin") == ("brown", "black")
    assert gradual.values_of("bright hair") == ("blonde", "gray", "platinum")
    assert all(gradual.values_of(label) for label in gradual.LABELED)


def test_the_file_beside_the_shipped_space_holds_the_numbers_of_the_result():
    result = json.loads((RESULTS / "weights_gradual.json").read_text("utf-8"))["numbers"]
    measured = json.loads(gradual.SIDECAR.read_text("utf-8"))
    assert list(measured) == list(gradual.LABELED)
    for label, entry in measured.items():
        assert entry["reached"] == result[f"{label}: reached"]["value"]
        low, high = entry["appears"]
        # a few early or late ones may draw the mean out of the quartiles
        assert low - 0.1 <= result[f"{label}: appears"]["value"] <= high + 0.1
        assert 0 < low <= high <= 1
