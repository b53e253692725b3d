"""What the panel of words shows, by its definition."""

import base64

import pytest
import torch
from glassbox.nodes.activations import token_heatmap


@pytest.mark.parametrize(("height", "width"), [(3, 5), (96, 144)])
def test_each_word_has_its_share_its_largest_value_and_its_maps(height, width):
    """A word of two tokens counts twice; the largest place of both images is 255."""
    maps = torch.rand(3, 2, height, width, generator=torch.Generator().manual_seed(0))
    maps[1] *= 0.25
    tokens = [1, 2, 4]
    panel = token_heatmap.word_panel(maps, tokens, ["red", "hair", "hat"], [0.5, 0.3, 0.2])
    factor = max(height // 48, 1), max(width // 48, 1)
    size = [height // factor[0], width // factor[1]]
    assert panel["size"] == size
    assert [(entry["word"], entry["share"]) for entry in panel["words"]] == [
        ("red", 0.5),
        ("hair", 0.3),
        ("hat", 0.2),
    ]
    for word, (entry, count) in enumerate(zip(panel["words"], tokens, strict=True)):
        cells = (
            maps[word].double().view(2, size[0], factor[0], size[1], factor[1]).mean((2, 4)) * count
        )
        assert entry["largest"] == pytest.approx(float(cells.max()), rel=1e-5)
        shown = torch.frombuffer(bytearray(base64.b64decode(entry["map"])), dtype=torch.uint8)
        expected = 255 * cells / cells.max()
        assert (shown.view(2, *size).double() - expected).abs().max() <= 0.51
        assert int(shown.max()) == 255 and int(shown.min()) < 128


def test_a_word_without_attention_is_black():
    panel = token_heatmap.word_panel(torch.zeros(1, 1, 4, 4), [1], ["red"], [0.0])
    (entry,) = panel["words"]
    assert set(base64.b64decode(entry["map"])) == {0}
