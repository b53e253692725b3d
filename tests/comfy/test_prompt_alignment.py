"""Prompt alignment measured by CLIP."""

import json

import pytest
import reduced
import torch


def test_agreement_with_clip(comfy, tmp_path):
    """SDXL's CLIP-G beside a small CLIP_VISION: the cosine of what ComfyUI's own models give."""
    from comfy.clip_vision import ClipVisionModel

    pack, clip = comfy.module("nodes.host.prompt_alignment"), reduced.checkpoint("sdxl")[1]

    def vision(channels):
        config = tmp_path / f"{channels}.json"
        config.write_text(
            json.dumps(
                {
                    "hidden_size": 32,
                    "intermediate_size": 64,
                    "num_attention_heads": 4,
                    "num_hidden_layers": 2,
                    "hidden_act": "gelu",
                    "image_size": 28,
                    "patch_size": 14,
                    "num_channels": 3,
                    "projection_dim": channels,
                    "model_type": "clip_vision_model",
                }
            )
        )
        model = ClipVisionModel(str(config))
        reduced.fill(model.model, torch.Generator().manual_seed(5))
        return model

    images, seen = torch.rand(3, 40, 40, 3, generator=torch.Generator().manual_seed(0)), vision(64)
    with torch.inference_mode():
        found = pack.measure("a red hat", images, clip, seen)
        text = clip.encode_from_tokens(clip.tokenize("a red hat"), return_pooled=True)[1]
        expected = [torch.cosine_similarity(seen.encode_image(one[None])["image_embeds"], text) for one in images]
        torch.testing.assert_close(found.values, torch.cat(expected), atol=1e-6, rtol=1e-5)
        for broken, why in (
            ((clip, vision(48)), "48 channels and the CLIP's 64"),
            ((reduced.checkpoint("flux")[1], seen), "no projection"),
        ):
            with pytest.raises(pack.AbsentError, match=why):
                pack.measure("a red hat", images, *broken)
