"""What a caption asks for is read as the world wrote it, and found in the world's own pictures."""

import pytest
import torch
from glassbox.nodes.demo import agreement, assets, judge
from glassbox.nodes.host.agreement import AbsentError

WORLD = "avatars-v1"


@pytest.fixture(scope="module")
def labels():
    return judge.load(WORLD).labels


@pytest.mark.parametrize(
    ("caption", "found"),
    [
        ("portrait of zorvex quill", {}),
        ("Portrait, (curly RED hair:1.2), no glasses", {"hair": "curly", "hair_color": "red", "accessory": "none"}),
        ("red hair", {"hair_color": "red"}),
        ("shaven, undercut", {"facial_hair": "none", "hair": "undercut"}),
        ("light pink beard, light skin", {"facial_hair": "light beard", "hair_color": "pink", "skin": "light"}),
        ("a green bottle", {}),
    ],
)
def test_what_a_caption_asks_for(labels, caption, found):
    assert agreement.asked(caption, labels) == found


def test_pictures_agree_with_their_own_caption_alone():
    strip, captions = assets.picture(WORLD, "pictures"), assets.captions(WORLD)
    pictures = torch.stack(strip.split(strip.shape[0], dim=1))
    own = torch.stack([agreement.measure(WORLD, text, pictures[[i]]).values[0] for i, text in enumerate(captions)])
    assert float(own.mean()) > 0.97
    strangers = agreement.measure(WORLD, captions[0], pictures[1:]).values
    assert strangers.shape == (23,) and float(strangers.mean()) < 0.6
    with pytest.raises(AbsentError, match="asks for nothing"):
        agreement.measure(WORLD, "a cat", pictures)
