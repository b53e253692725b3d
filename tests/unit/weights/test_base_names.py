"""The family of base models by the names and widths of layers."""

import pytest
from glassbox.nodes.common.lora_keys import base_of


@pytest.mark.parametrize(
    ("layers", "base"),
    [
        ({"transformer_blocks.0.img_mlp.net.2": 12288}, "Qwen-Image"),
        ({"transformer_blocks.40.attn.add_q_proj": 3072}, "Qwen-Image"),
        ({"transformer_blocks.3.attn.add_q_proj": 1536}, "SD3"),
        ({"joint_blocks.0.x_block.attn.qkv": 2432}, "SD3"),
        # The first blocks of Qwen-Image and Flux have the same names and widths.
        ({"transformer_blocks.0.attn.add_q_proj": 3072}, "unknown"),
        ({"single_transformer_blocks.0.attn.to_q": 3072}, "Flux"),
        ({"double_blocks.0.img_attn.qkv": 3072}, "Flux"),
        ({"double_blocks.0.img_attn.qkv": 6144}, "FLUX.2"),
        ({"single_transformer_blocks.0.attn.to_qkv_mlp_proj": 4096}, "FLUX.2"),
        ({"layers.0.attention.to_q": 3840}, "Z-Image"),
        ({"layers.0.attention.qkv": 2304}, "Lumina 2"),
        ({"blocks.0.self_attn.q": 5120, "blocks.0.cross_attn.k": 5120}, "Wan"),
        # LTX-Video's text is as wide as SDXL's.
        ({"transformer_blocks.0.attn2.to_k": 2048, "transformer_blocks.0.attn1.to_q": 2048},
         "LTX-Video"),
        ({"transformer_blocks.0.audio_attn1.to_q": 2048, "transformer_blocks.0.attn1.to_q": 4096},
         "LTX-2"),
        ({"transformer_blocks.0.attn1.to_q": 1152}, "PixArt"),
        ({"down_blocks.1.attentions.0.transformer_blocks.0.attn2.to_k": 2048}, "SDXL"),
        ({"something.else": 77}, "unknown"),
    ],
)  # fmt: skip
def test_a_base_follows_from_layers(layers, base):
    assert base_of(layers) == base
