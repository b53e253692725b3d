"""Prompt alignment measured by CLIP."""

import pytest
import reduced
import torch


def test_agreement_with_clip(app, tmp_path):
    """SDXL's CLIP-G beside a small CLIP_VISION: the cosine of what ComfyUI's own models give."""
    pack, clip = app.module("nodes.common.prompt_alignment"), reduced.checkpoint("sdxl")[1]
    images, seen = (
        torch.rand(3, 40, 40, 3, generator=torch.Generator().manual_seed(0)),
        reduced.clip_vision(tmp_path, 64),
    )
    with torch.inference_mode():
        found = pack.measure("a red hat", images, clip, seen)
        text = clip.encode_from_tokens(clip.tokenize("a red hat"), return_pooled=True)[1]
        expected = [
            torch.cosine_similarity(seen.encode_image(one[None])["image_embeds"], text)
            for one in images
        ]
        torch.testing.assert_close(found.values, torch.cat(expected), atol=1e-6, rtol=1e-5)
        embedded = pack.embed(images, clip_vision=seen)
        words = pack.measure_words(["a red hat", "a cat"], images, clip, embedded)
        other = pack.measure("a cat", images, clip, seen).values
        assert torch.equal(words["a red hat"], found.values) and torch.equal(words["a cat"], other)
        for broken, why in (
            ((clip, reduced.clip_vision(tmp_path, 48)), "48 channels and the CLIP's 64"),
            ((reduced.checkpoint("flux")[1], seen), "no projection"),
        ):
            with pytest.raises(pack.AbsentError, match=why):
                pack.measure("a red hat", images, *broken)
