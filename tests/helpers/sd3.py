"""SD3's transformer and its ControlNet on random weights, two blocks deep, with SD3's own position table."""

from __future__ import annotations

import reduced
import torch

SIDE, STEP, FIRST = 192, 0.25, -16.0
_CONTEXT = 32
_SHAPE = {
    "in_channels": 16, "patch_size": 2, "input_size": None, "depth": 2, "adm_in_channels": 48, "qkv_bias": True,
    "pos_embed_max_size": SIDE, "num_patches": SIDE * SIDE, "pos_embed_scaling_factor": None,
    "context_embedder_config": {"target": "torch.nn.Linear",
                                "params": {"in_features": _CONTEXT, "out_features": 128}},
}  # fmt: skip


def model():
    """A MODEL of class SD3."""
    import comfy.supported_models

    config = comfy.supported_models.SD3({"out_channels": 16, **_SHAPE})
    with torch.inference_mode(False), torch.no_grad():
        patcher = reduced._model(config, torch.Generator().manual_seed(0))
        _fill_table(patcher.model.diffusion_model)
    return patcher


def controlnet():
    """An SD3 ControlNet that takes a latent as its hint."""
    from comfy import controlnet, ops
    from comfy.cldm.mmdit import ControlNet

    with torch.inference_mode(False), torch.no_grad():
        network = ControlNet(num_blocks=1, control_latent_channels=16, dtype=torch.float32, device="cpu",
                             operations=ops.disable_weight_init, **_SHAPE)  # fmt: skip
        reduced._fill(network, torch.Generator().manual_seed(4))
        _fill_table(network)
    return controlnet.ControlNet(network, compression_ratio=1, load_device=torch.device("cpu"))


def prompt(seed: int = 0) -> list:
    """A CONDITIONING of random text."""
    generator = torch.Generator().manual_seed(200 + seed)
    return [[torch.randn(1, 9, _CONTEXT, generator=generator),
             {"pooled_output": torch.randn(1, 48, generator=generator)}]]  # fmt: skip


def _fill_table(network) -> None:
    from comfy.ldm.modules.diffusionmodules.mmdit import get_2d_sincos_pos_embed

    table = get_2d_sincos_pos_embed(network.hidden_size, SIDE, scaling_factor=1 / STEP, offset=-FIRST)
    network.pos_embed.copy_(torch.from_numpy(table)[None])
