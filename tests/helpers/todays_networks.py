"""MODEL, CLIP and VAE of the networks that people run today, with random weights in small.

Networks are ComfyUI's own classes with their own latent formats and schedules. The text encoder is
Qwen's with its real tokenizer for all: what the others need is not in every ComfyUI.
"""

from __future__ import annotations

import reduced
import tiny_transformers
import torch

#: Architecture -> network, and the name of the width of its text.
_NETWORKS = {
    "zimage": ("ZImage", "cap_feat_dim"),
    "qwen": ("QwenImage", "joint_attention_dim"),
    "flux2": ("Flux2", "context_in_dim"),
    "wan": ("WAN21_T2V", "text_dim"),
}
_TEXT = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 3,
}
_VIDEO_VAE_WIDTH = 8
ARCHITECTURES = tuple(_NETWORKS)


def checkpoint(architecture: str, seed: int = 0) -> tuple:
    """MODEL, CLIP and VAE of an architecture; the same seed gives the same weights."""
    name, text_width = _NETWORKS[architecture]
    changes = {text_width: _TEXT["hidden_size"]}
    if architecture == "wan":
        changes["text_len"] = 512
    if architecture == "zimage":
        changes["axes_lens"] = [1536, 512, 512]
    model = tiny_transformers.model(name, **changes)
    generator = torch.Generator().manual_seed(seed)
    with torch.inference_mode(False), torch.no_grad():
        space = model.get_model_object("latent_format")
        video = space.latent_dimensions == 3
        vae = _video_vae(generator) if video else reduced._vae(space.latent_channels, generator)
        return model, _clip(generator), vae


def _clip(generator: torch.Generator):
    import comfy.sd
    from comfy.supported_models_base import ClipTarget
    from comfy.text_encoders import z_image

    target = ClipTarget(z_image.ZImageTokenizer, z_image.te())
    clip = comfy.sd.CLIP(target, model_options={"qwen3_4b_model_config": _TEXT})
    reduced.fill(clip.cond_stage_model, generator)
    return clip


def _video_vae(generator: torch.Generator):
    """The autoencoder of Wan 2.1, which Qwen-Image and Krea 2 have, too."""
    import comfy.sd
    from comfy.ldm.wan.vae import WanVAE

    weights = WanVAE(
        dim=_VIDEO_VAE_WIDTH,
        z_dim=16,
        dim_mult=[1, 2, 4, 4],
        num_res_blocks=2,
        attn_scales=[],
        temperal_downsample=[False, True, True],
        dropout=0.0,
    )
    reduced.fill(weights, generator)
    return comfy.sd.VAE(sd=weights.state_dict())
