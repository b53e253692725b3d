"""Tiny random diffusion transformers of ComfyUI's own classes, as MODEL and CONDITIONING without a
text encoder.
"""

from __future__ import annotations

import newer
import reduced
import torch

_TEXT = 24  # width of a text token
_CONFIGS = {
    "SD3": {
        "in_channels": 16, "patch_size": 2, "depth": 2, "num_blocks": 3, "adm_in_channels": 32,
        "qk_norm": "rms",
        "pos_embed_max_size": 32, "num_patches": 1024, "x_block_self_attn_layers": [0],
        "pos_embed_scaling_factor": None,
        "context_embedder_config": {"target": "torch.nn.Linear",
        "params": {"in_features": _TEXT, "out_features": 128}},
    },
    "Flux": {
        "image_model": "flux", "in_channels": 16, "out_channels": 16, "patch_size": 2,
        "vec_in_dim": 32,
        "context_in_dim": _TEXT, "hidden_size": 64, "mlp_ratio": 4.0, "num_heads": 2, "depth": 2,
        "depth_single_blocks": 2, "axes_dim": [8, 12, 12], "theta": 10000, "qkv_bias": True,
        "guidance_embed": True,
    },
    "Chroma": {
        "image_model": "chroma", "in_channels": 64, "out_channels": 64, "patch_size": 2,
        "context_in_dim": _TEXT,
        "hidden_size": 64, "mlp_ratio": 4.0, "num_heads": 2, "depth": 2, "depth_single_blocks": 2,
        "axes_dim": [8, 12, 12], "theta": 10000, "qkv_bias": True, "in_dim": 64, "out_dim": 64,
        "hidden_dim": 32,
        "n_layers": 1,
    },
    "PixArtAlpha": {
        "image_model": "pixart_alpha", "in_channels": 4, "hidden_size": 48, "depth": 3,
        "num_heads": 4,
        "caption_channels": _TEXT, "model_max_length": 12, "micro_condition": True,
        "pe_interpolation": 1,
    },
    "Lumina2": {
        "image_model": "lumina2", "in_channels": 16, "dim": 96, "n_layers": 3,
        "n_refiner_layers": 1, "n_heads": 4,
        "n_kv_heads": 2, "multiple_of": 8, "qk_norm": True, "cap_feat_dim": _TEXT,
        "axes_dims": [8, 8, 8],
        "axes_lens": [64, 64, 64],
    },
    "ZImage": {
        "image_model": "lumina2", "in_channels": 16, "dim": 256, "n_layers": 2,
        "n_refiner_layers": 1, "n_heads": 8,
        "n_kv_heads": 8, "multiple_of": 8, "qk_norm": True, "cap_feat_dim": _TEXT,
        "axes_dims": [8, 12, 12],
        "axes_lens": [64, 64, 64], "rope_theta": 256.0, "z_image_modulation": True,
        "time_scale": 1000.0,
        "pad_tokens_multiple": 32, "ffn_dim_multiplier": 8 / 3,
    },
    "QwenImage": {
        "image_model": "qwen_image", "in_channels": 64, "num_layers": 2, "attention_head_dim": 32,
        "num_attention_heads": 2, "joint_attention_dim": _TEXT, "axes_dims_rope": (8, 12, 12),
    },
    "Flux2": {
        "image_model": "flux2", "in_channels": 128, "out_channels": 128, "patch_size": 1,
        "vec_in_dim": None,
        "context_in_dim": _TEXT, "hidden_size": 64, "mlp_ratio": 3.0, "num_heads": 2, "depth": 2,
        "depth_single_blocks": 2, "axes_dim": [8, 8, 8, 8], "theta": 2000, "qkv_bias": False,
        "guidance_embed": True,
        "global_modulation": True, "mlp_silu_act": True, "ops_bias": False,
    },
    "HunyuanDiT": {
        "image_model": "hydit", "depth": 4, "hidden_size": 64, "num_heads": 2,
        "text_states_dim": _TEXT, "text_len": 7,
        "text_states_dim_t5": 16, "text_len_t5": 5,
    },
    "LTXV": {
        "image_model": "ltxv", "cross_attention_dim": 96, "attention_head_dim": 24,
        "num_attention_heads": 4,
        "caption_channels": _TEXT, "num_layers": 3,
    },
    "HiDream": {
        "image_model": "hidream", "patch_size": 2, "in_channels": 16, "num_layers": 1,
        "num_single_layers": 2,
        "attention_head_dim": 32, "num_attention_heads": 2, "caption_channels": [_TEXT, 16],
        "text_emb_dim": 32,
        "axes_dims_rope": (8, 12, 12), "llama_layers": [0, 1, 0],
    },
    "Omnigen2": {
        "image_model": "omnigen2", "hidden_size": 96, "num_layers": 3, "num_refiner_layers": 1,
        "num_attention_heads": 4, "num_kv_heads": 2, "multiple_of": 8, "axes_dim_rope": (8, 8, 8),
        "text_feat_dim": _TEXT,
    },
    "WAN21_T2V": {
        "image_model": "wan2.1", "model_type": "t2v", "dim": 96, "ffn_dim": 128, "num_heads": 4,
        "num_layers": 3,
        "text_dim": _TEXT, "freq_dim": 32, "in_dim": 16, "out_dim": 16, "text_len": 12,
    },
}  # fmt: skip
NAMES = tuple(_CONFIGS)


def model(name: str, **changes):
    """A MODEL with random weights, with changes to its sizes. ComfyUI must be prepared."""
    import comfy.supported_models

    with torch.inference_mode(False), torch.no_grad():
        config = getattr(comfy.supported_models, name)(newer.network(_CONFIGS[name]) | changes)
        generator = torch.Generator().manual_seed(0)
        patcher = reduced._model(config, generator)
        for buffer in patcher.model.diffusion_model.buffers():
            buffer.copy_(torch.randn(buffer.shape, generator=generator) * 0.1)
        return patcher


def conditioning(tokens: int = 7, patcher=None, seed: int = 1) -> list:
    """A CONDITIONING of random tokens; with a MODEL, of the texts of its other text encoders
    too.
    """
    generator = torch.Generator().manual_seed(seed)
    pooled = torch.randn(1, 32, generator=generator)
    text, others = torch.randn(1, tokens, _TEXT, generator=generator), {"pooled_output": pooled}
    name = "" if patcher is None else type(patcher.model.model_config).__name__
    if name in ("HunyuanDiT", "LTXV", "Omnigen2"):
        others["attention_mask"] = torch.ones(1, tokens, dtype=torch.int64)
    if name == "HunyuanDiT":
        others["conditioning_mt5xl"] = torch.randn(1, 5, 16, generator=generator)
        others["attention_mask_mt5xl"] = torch.ones(1, 5, dtype=torch.int64)
    if name == "HiDream":
        others["conditioning_llama3"] = torch.randn(1, 2, tokens, 16, generator=generator)
    return [[text, others]]


def latent(patcher, count: int, height: int, width: int, frames: int = 1) -> dict:
    """A random LATENT of a size in latent positions; with frames where the model wants them."""
    space = patcher.get_model_object("latent_format")
    shape = (
        count,
        space.latent_channels,
        *((frames,) if space.latent_dimensions == 3 else ()),
        height,
        width,
    )
    return {"samples": torch.randn(shape, generator=torch.Generator().manual_seed(2))}
