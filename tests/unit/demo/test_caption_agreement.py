"""What a caption requests is read as the world wrote it, and found in the world's own images."""

import functools
from types import SimpleNamespace

import pytest
import torch
from glassbox.nodes.common import prompt_alignment
from glassbox.nodes.common.prompt_alignment import AbsentError
from glassbox.nodes.demo import assets, judge

WORLD = "avatars-v2"


@pytest.fixture(scope="module")
def labels():
    return judge.load(WORLD).labels


@pytest.mark.parametrize(
    ("caption", "found"),
    [
        ("portrait of zorvex quill", {}),
        (
            "Portrait, (curly RED hair:1.2), no glasses",
            {"hair": "curly", "hair_color": "red", "accessory": "none"},
        ),
        ("red hair", {"hair_color": "red"}),
        ("shaven, undercut", {"facial_hair": "none", "hair": "undercut"}),
        (
            "light pink beard, light skin",
            {"facial_hair": "light beard", "hair_color": "pink", "skin": "light"},
        ),
        ("a green bottle", {}),
    ],
)
def test_caption_is_read_into_attributes(labels, caption, found):
    assert judge.read_caption(caption, labels) == found


def test_images_agree_with_their_own_caption_only():
    strip, captions = assets.read_image(WORLD, "images"), assets.captions(WORLD)
    images = torch.stack(strip.split(strip.shape[0], dim=1))
    own = torch.stack(
        [
            judge.measure_agreements(WORLD, [text], images[[i]])[0].values[0]
            for i, text in enumerate(captions)
        ]
    )
    assert float(own.mean()) > 0.97
    strangers, of_second, unknown = judge.measure_agreements(
        WORLD, [captions[0], captions[1], "a cat"], images[1:]
    )
    assert unknown is None and float(of_second.values[0]) == float(own[1])
    strangers = strangers.values
    assert strangers.shape == (23,) and float(strangers.mean()) < 0.6
    own_judge = functools.partial(judge.measure_agreements, WORLD)
    seen = torch.zeros(len(images), 2)  # which a judge does not need
    clip = SimpleNamespace(cond_stage_model=SimpleNamespace(measure_alignments=own_judge))
    with pytest.raises(AbsentError, match="requests nothing"):
        prompt_alignment.measure("a cat", images, clip)
    assert set(prompt_alignment.measure_words(["bald", "a cat"], images, clip, seen)) == {"bald"}
    with pytest.raises(AbsentError, match="knows none of the words"):
        prompt_alignment.measure_words(["a cat"], images, clip, seen)
