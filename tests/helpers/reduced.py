"""Random weights of the architectures that people use, narrow and shallow enough for any machine.

Block structure, keys, noise schedule, latent format and text encoding are ComfyUI's own for SD1.5,
SDXL and Flux; only widths and depths are smaller. What such a model generates means nothing: it
proves that nodes run on the architecture.
"""

from __future__ import annotations

import json
from pathlib import Path

import newer
import torch

_TEXT = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_hidden_layers": 3,
    "projection_dim": 64,
}
_VISION = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "hidden_act": "gelu",
    "image_size": 28,
    "patch_size": 14,
    "num_channels": 3,
    "model_type": "clip_vision_model",
}
_T5 = {"d_model": 64, "d_ff": 128, "d_kv": 16, "num_heads": 4, "num_layers": 2}
_UNET = {
    "image_size": 32,
    "use_checkpoint": False,
    "legacy": False,
    "use_spatial_transformer": True,
    "in_channels": 4,
    "out_channels": 4,
    "model_channels": 32,
    "use_temporal_attention": False,
    "use_temporal_resblock": False,
}
_CONFIGS = {
    "sd15": {
        **_UNET, "num_res_blocks": [2, 2, 2, 2], "channel_mult": [1, 2, 4, 4],
        "transformer_depth": [1] * 6 + [0, 0],
        "transformer_depth_middle": 1, "transformer_depth_output": [1] * 9 + [0] * 3,
        "context_dim": 64,
        "adm_in_channels": None, "use_linear_in_transformer": False, "num_heads": 8,
    },
    "sdxl": {
        **_UNET, "num_res_blocks": [2, 2, 2], "channel_mult": [1, 2, 4],
        "transformer_depth": [0, 0, 1, 1, 2, 2],
        "transformer_depth_middle": 2, "transformer_depth_output": [0, 0, 0, 1, 1, 1, 2, 2, 2],
        "context_dim": 128,
        "adm_in_channels": 64 + 6 * 256, "num_classes": "sequential",
        "use_linear_in_transformer": True,
        "num_heads": -1, "num_head_channels": 16,
    },
    "flux": {
        "image_model": "flux", "in_channels": 16, "out_channels": 16, "patch_size": 2,
        "vec_in_dim": 64,
        "context_in_dim": 64, "hidden_size": 128, "mlp_ratio": 4.0, "num_heads": 4, "depth": 2,
        "depth_single_blocks": 2, "axes_dim": [8, 12, 12], "theta": 10000, "qkv_bias": True,
        "guidance_embed": True,
    },
    "sd3": {
        "in_channels": 16, "out_channels": 16, "patch_size": 2, "input_size": None, "depth": 2,
        "adm_in_channels": 128,
        "qkv_bias": True, "pos_embed_max_size": 192, "num_patches": 192 * 192,
        "pos_embed_scaling_factor": None,
        "context_embedder_config": {"target": "torch.nn.Linear",
                                    "params": {"in_features": 4096, "out_features": 128}},
    },
}  # fmt: skip
_FAMILIES = {"sd15": "SD15", "sdxl": "SDXL", "flux": "Flux", "sd3": "SD3"}
_TEXT_MODELS = ("clip_l", "clip_g")  # of SD3, which can do without T5
ARCHITECTURES = tuple(_CONFIGS)


def checkpoint(architecture: str, seed: int = 0, **smaller: object) -> tuple:
    """MODEL, CLIP and VAE of an architecture; the same seed gives the same weights. ComfyUI must be
    prepared.

    `smaller` replaces numbers of the denoiser's configuration, for tests that need no more of its
    structure.
    """
    import comfy.supported_models

    generator = torch.Generator().manual_seed(seed)
    config = getattr(comfy.supported_models, _FAMILIES[architecture])(
        settings(architecture) | smaller
    )
    channels = config.latent_format.latent_channels
    with torch.inference_mode(False), torch.no_grad():
        return _model(config, generator), _clip(config, generator), _vae(channels, generator)


_WHOLE_FLUX = {
    "image_model": "flux",
    "in_channels": 16,
    "out_channels": 16,
    "patch_size": 2,
    "vec_in_dim": 768,
    "context_in_dim": 4096,
    "hidden_size": 3072,
    "mlp_ratio": 4.0,
    "num_heads": 24,
    "depth": 19,
    "depth_single_blocks": 38,
    "axes_dim": [16, 56, 56],
    "theta": 10000,
    "qkv_bias": True,
    "guidance_embed": True,
}


def flux_without_weights() -> torch.nn.Module:
    """Flux.1 of the real size, on the meta device."""
    from comfy.ldm.flux.model import Flux
    from comfy.ops import disable_weight_init

    return Flux(
        **newer.network(_WHOLE_FLUX),
        dtype=torch.float16,
        device="meta",
        operations=disable_weight_init,
    )


def settings(architecture: str) -> dict:
    """The configuration of an architecture's denoiser."""
    return newer.network(_CONFIGS[architecture])


def _model(config, generator: torch.Generator):
    config.set_inference_dtype(torch.float32, None)
    model = config.get_model({}, device="cpu")
    fill(model.diffusion_model, generator)
    if getattr(model.diffusion_model, "pos_embed", None) is not None:
        fill_positions(model.diffusion_model)
    return _patcher(config, model)


def _patcher(config, model):
    import comfy.model_patcher

    def again(disable_dynamic: bool = False):
        same = config.get_model({}, device="cpu")
        same.load_state_dict(model.state_dict())
        return _patcher(config, same)

    cpu = torch.device("cpu")
    patcher = comfy.model_patcher.ModelPatcher(model, load_device=cpu, offload_device=cpu)
    patcher.cached_patcher_init = (again, ())  # as loaders of newer ComfyUI leave it
    return patcher


def _clip(config, generator: torch.Generator):
    import comfy.sd

    sizes = {"clip_l_model_config": _TEXT, "clip_g_model_config": _TEXT, "t5xxl_model_config": _T5}
    marks = {
        f"text_encoders.{name}.transformer.text_model.final_layer_norm.weight": None
        for name in _TEXT_MODELS
    }
    clip = comfy.sd.CLIP(config.clip_target(marks), model_options=sizes)
    fill(clip.cond_stage_model, generator)
    return clip


def _vae(channels: int, generator: torch.Generator):
    import comfy.sd
    from comfy.ldm.models.autoencoder import AutoencoderKL

    shape = {
        "double_z": True,
        "z_channels": channels,
        "resolution": 256,
        "in_channels": 3,
        "out_ch": 3,
        "ch": 32,
        "ch_mult": [1, 1, 1, 1],
        "num_res_blocks": 1,
        "attn_resolutions": [],
        "dropout": 0.0,
    }
    params = {"ddconfig": shape, "embed_dim": channels}
    weights = AutoencoderKL(**params)
    fill(weights, generator)
    vae = comfy.sd.VAE(sd=weights.state_dict(), config={"params": params})
    vae.latent_channels = channels
    return vae


def clip_vision(folder: Path, channels: int):
    """A small CLIP_VISION whose embeddings have ``channels`` channels; ``folder`` takes its
    configuration.
    """
    from comfy.clip_vision import ClipVisionModel

    config = folder / f"{channels}.json"
    config.write_text(json.dumps({**_VISION, "projection_dim": channels}))
    model = ClipVisionModel(str(config))
    fill(model.model, torch.Generator().manual_seed(5))
    return model


def fill(module: torch.nn.Module, generator: torch.Generator) -> None:
    """Random weights of a size that keeps the signal finite: scaled by the fan-in; norms are left
    at one.
    """
    for name, parameter in module.named_parameters():
        if parameter.ndim < 2:
            parameter.data.fill_(0.0 if name.endswith("bias") else 1.0)
            continue
        fan_in = parameter[0].numel()
        parameter.data.copy_(torch.randn(parameter.shape, generator=generator) / fan_in**0.5)


def fill_positions(network) -> None:
    """SD3's own position table: 192 a side in steps of a quarter, 0 to 15.75 in its middle 64."""
    from comfy.ldm.modules.diffusionmodules.mmdit import get_2d_sincos_pos_embed

    table = get_2d_sincos_pos_embed(
        network.hidden_size, network.pos_embed_max_size, scaling_factor=4, offset=16
    )
    network.pos_embed.copy_(torch.from_numpy(table)[None])
