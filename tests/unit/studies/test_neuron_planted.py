"""The study of known neurons: how rules that find neurons are compared, on sets that are made
up.
"""

from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("python_avatars")
from studies.neurons import planted, stopping

PLANTED = {name: {("layer", 0), ("layer", 1)} for name in "abcde"}
#: NeMo finds both of four names and one of the last, among four; the largest |z| hold one, of the
#: last none.
NEMO = [{("layer", unit) for unit in range(first, first + 4)} for first in (0, 0, 0, 0, 1)]
LARGEST = [{("layer", unit) for unit in range(first, first + 4)} for first in (1, 1, 1, 1, 9)]


@pytest.fixture
def numbers():
    mask = SimpleNamespace(searches=[SimpleNamespace(converged=True)])
    found = {
        name: {"NeMo": NEMO[place], planted.RIVAL: LARGEST[place], "random": set()}
        for place, name in enumerate(PLANTED)
    }
    return planted._found(SimpleNamespace(planted=PLANTED), dict.fromkeys(PLANTED, mask), found)


def test_rules_are_averaged_over_names(numbers):
    assert numbers["recall, NeMo"]["value"] == pytest.approx(0.9)
    assert numbers["precision, NeMo"]["value"] == pytest.approx((4 * 2 / 4 + 1 / 4) / 5)
    assert numbers["F1, random"]["value"] == 0


def test_nemo_is_compared_with_the_largest_deviation_name_by_name(numbers):
    found = numbers["recall, NeMo less the largest |z|"]
    assert found["value"] == pytest.approx(0.5) and found["n"] == 5
    assert "low" not in found  # the same difference for every name: an interval without width
    found = numbers["precision, NeMo less the largest |z|"]
    assert found["value"] == pytest.approx(0.25)
    assert {"F1, NeMo less the largest |z|"} < set(numbers)


def test_too_few_names_give_no_interval():
    found = planted._paired(
        "recall", {"NeMo": [0.9, 0.2, 0.4], planted.RIVAL: [0.1, 0.3, 0.2]}, "fraction"
    )
    assert "low" not in found["recall, NeMo less the largest |z|"]


def test_what_is_chosen_on_one_half_is_judged_on_the_other():
    """ "a" is best on the first half and worst on the second, "b" the other way round."""
    scores = {"a": np.array([1.0, 0.9, 0.1, 0.2]), "b": np.array([0.5, 0.4, 0.7, 0.8])}
    judged, chosen = stopping.cross_judged(scores, (range(2), range(2, 4)))
    assert chosen == ["a", "b"] and judged.tolist() == [0.5, 0.4, 0.1, 0.2]
    judged, chosen = stopping.cross_judged(scores, (range(0, 4, 2), range(1, 4, 2)))
    assert chosen == ["b", "b"] and judged.tolist() == scores["b"].tolist()


def test_the_targets_of_the_search_lie_a_deviation_apart():
    found = stopping.targets((0.77, 0.65))
    assert found == {"the paper's target": 0.77, "the mean score": pytest.approx(0.71)}


def test_a_set_is_compared_with_the_known_neurons():
    found = stopping.found({("layer", 0), ("layer", 7)}, {("layer", 0), ("layer", 1)})
    assert found == {"precision": 0.5, "recall": 0.5, "F1": 0.5, "neurons": 2}
    assert stopping.found(set(), {("layer", 0)})["F1"] == 0
