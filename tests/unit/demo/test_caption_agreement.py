"""What a caption requests is read as the world wrote it, and found in the world's own images."""

import pytest
import torch
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
            judge.measure_agreement(WORLD, text, images[[i]]).values[0]
            for i, text in enumerate(captions)
        ]
    )
    assert float(own.mean()) > 0.97
    strangers = judge.measure_agreement(WORLD, captions[0], images[1:]).values
    assert strangers.shape == (23,) and float(strangers.mean()) < 0.6
    with pytest.raises(AbsentError, match="requests nothing"):
        judge.measure_agreement(WORLD, "a cat", images)
