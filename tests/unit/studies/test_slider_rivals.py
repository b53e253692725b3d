"""How the study of sliders beside their rivals asks, and what it counts."""

import numpy as np
import pytest
import torch

from studies.weights import slider_captions, slider_rivals
from studies.world import dataset


@pytest.mark.parametrize("name", slider_captions.CONCEPTS)
def test_scenes_lack_the_concept_and_captions_leave_it_open(name):
    concept = slider_captions.CONCEPTS[name]
    column = list(dataset.LABELS).index(concept.attribute)
    requested = [dataset.LABELS[concept.attribute].index(value) for value in concept.values]
    for scene in slider_captions.scenes(concept, 6, slider_rivals.SEED):
        assert dataset.labels(scene)[column] >= 0
        assert dataset.labels(scene)[column] not in requested
        trait = slider_captions.traits(scene)[concept.trait]
        plain = slider_captions.caption(scene, concept)
        assert trait not in plain.split(", ")
        asking = slider_captions.caption(scene, concept, "words")
        assert asking == plain.replace("portrait, ", "portrait, words, ")
        named = slider_captions.named_values(scene, concept)
        assert not set(named) & set(slider_captions.NAMED[concept.trait])
        assert min(named.values()) >= 0


def readings(values):
    """A judge that reads the class numbers of rows by attribute, others as 0."""

    def judge(pixels):
        logits = {}
        for name, classes in dataset.LABELS.items():
            numbers = torch.tensor(values.get(name, [0] * len(pixels)))
            logits[name] = 20.0 * torch.nn.functional.one_hot(numbers, len(classes))
        return logits

    return judge


def test_kept_counts_other_attributes_as_in_the_image_without_the_edit():
    concept = slider_captions.CONCEPTS["smiling"]
    mouths = list(dataset.LABELS["mouth"])
    smiling, sad, serious = (mouths.index(name) for name in ("smiling", "sad", "serious"))
    images = np.zeros((3, 8, 8, 3), np.uint8)
    known = [{"skin": 0}, {"skin": 0}, {"skin": 2, "hair": 0}]
    before = {"mouth": [sad, sad, sad]}
    after = {"mouth": [smiling, serious, sad], "skin": [0, 0, 2], "mirror": [1, 1, 1]}
    judges = iter([readings(before), readings(after)])
    columns = slider_rivals.read_ways(
        lambda pixels: next(judges)(pixels),
        {"plain": images, "way": images},
        concept,
        known,
    )["way"]
    others = len(dataset.LABELS) - 2  # but the mouth and what can seldom be seen
    assert columns[:, 0] == pytest.approx([1, 0, 0])
    assert columns[:, 1] == pytest.approx([1, 1, 1 - 1 / others])
    assert columns[:, 2] == pytest.approx([1, 1, 1])
    assert columns[:, 3] == pytest.approx([1, 0, 0], abs=1e-5)
    assert columns[:, 4] == pytest.approx([0, 1, 0])


def test_a_curve_is_compared_where_it_keeps_what_the_prompt_keeps():
    """Between strengths that keep 1 and .8, the prompt's .9 lies half way: reached .5 of 1."""
    plain = np.tile([0.0, 1.0, 1.0, 0.0, 0.0], (8, 1))
    strong = np.tile([1.0, 0.8, 1.0, 1.0, 0.0], (8, 1))
    prompt = np.tile([0.3, 0.9, 1.0, 1.0, 0.0], (8, 1))
    found = {"plain": plain, "prompt": prompt, "slider 1.0": strong}
    numbers = slider_rivals.numbers_of("x", {way: rows.tolist() for way, rows in found.items()}, "")
    assert numbers["x, slider less prompt at its loss: reached"]["value"] == pytest.approx(0.2)
    assert numbers["x, slider: rank correlation"]["value"] == pytest.approx(1.0)
    # No strength keeps as much as the prompt: the only one is judged as it is.
    assert numbers["x, chosen on others less prompt: kept"]["value"] == pytest.approx(-0.1)


def test_means_are_over_concepts_not_over_captions():
    few = {"plain": [[1.0, 0.5, 0.5, 0.0, 0.0]]}
    many = {"plain": [[0.0, 1.0, 1.0, 0.0, 0.0]] * 3}
    numbers = slider_rivals.means_of("two", {"few": few, "many": many})
    assert numbers["two, plain: reached"]["value"] == pytest.approx(0.5)
    assert numbers["two, plain: kept"]["value"] == pytest.approx(0.75)
