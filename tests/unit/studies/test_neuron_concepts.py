"""Captions of the study of concept neurons: two of a pair differ in the concept alone."""

import numpy as np
import pytest

pytest.importorskip("python_avatars")
from studies.neurons.concepts import CONCEPTS, pair
from studies.world.captions import HAIR

_COLORLESS = {phrase for phrase in HAIR.values() if "{}" not in phrase}


@pytest.mark.parametrize("name", CONCEPTS)
def test_a_pair_differs_in_the_concept_alone(name):
    """Sunglasses leave out the eyes, which they hide; hair and its color, or a beard and its, are
    one phrase.
    """
    rng = np.random.default_rng(0)
    word = CONCEPTS[name].value
    for _ in range(50):
        present, absent = (set(text.split(", ")) for text in pair(CONCEPTS[name], rng))
        with_it, without = present - absent, absent - present
        assert any(all(part in phrase for part in word.split()) for phrase in with_it)
        assert not any(phrase.startswith(word) for phrase in without)
        assert len(with_it) <= 2 and len(without) <= 2


def test_red_hair_is_on_heads_that_show_its_color():
    rng = np.random.default_rng(1)
    phrases = [set(pair(CONCEPTS["red hair"], rng)[0].split(", ")) for _ in range(100)]
    assert not any(one & _COLORLESS for one in phrases)
