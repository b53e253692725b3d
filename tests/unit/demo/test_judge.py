"""The shipped judge reads the shipped pictures, whose captions are true."""

import pytest
import torch
from glassbox.nodes.demo import assets, judge

WORLD = "avatars-v1"


@pytest.fixture(scope="module")
def read():
    """What the judge reads in each shipped picture: one dict of attribute to value a picture."""
    strip = assets.picture(WORLD, "pictures")
    pictures = torch.stack(strip.split(strip.shape[0], dim=1)).permute(0, 3, 1, 2)
    network = judge.load(WORLD)
    with torch.inference_mode():
        logits = network(pictures)
    return [{name: network.labels[name][rows[index].argmax()] for name, rows in logits.items()}
            for index in range(len(pictures))]


@pytest.mark.parametrize(("attribute", "phrase"), [
    ("skin", "{} skin"), ("background", "{} background"), ("clothing", " {},"), ("accessory", "{}"),
])
def test_the_judge_reads_the_shipped_pictures(read, attribute, phrase):
    captions = assets.captions(WORLD)
    said = ["no glasses" if value[attribute] == "none" else value[attribute] for value in read]
    right = [phrase.format(value) in caption for value, caption in zip(said, captions, strict=True)]
    # Held-out accuracy is over .97 for each; 24 pictures may hold one slip.
    assert sum(right) >= len(right) - 1


def test_a_picture_gives_features_and_one_row_of_logits_per_attribute():
    network = judge.load(WORLD)
    pictures = torch.rand(2, 3, 128, 128, generator=torch.Generator().manual_seed(0))
    assert network.features(pictures).shape == (2, judge.FEATURES)
    assert {name: rows.shape for name, rows in network(pictures).items()} == {
        name: (2, len(values)) for name, values in network.labels.items()}
