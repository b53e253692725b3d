"""The demo autoencoder as an ordinary VAE."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import comfy.ops
import comfy.sd
from comfy.ldm.models.autoencoder import AutoencoderKL

from . import architecture, assets
from .patch_autoencoder import PatchAutoencoder

if TYPE_CHECKING:
    from ..host.socket_types import VAE, ModelPatcher

#: A small one of ComfyUI's autoencoders with the same factor of 8, which its VAE is made around.
_FACTOR_8 = {
    "embed_dim": 4,
    "ddconfig": {
        "double_z": True,
        "z_channels": 4,
        "resolution": architecture.SIZE,
        "in_channels": 3,
        "out_ch": 3,
        "ch": 32,
        "ch_mult": [1, 1, 1, 1],
        "num_res_blocks": 1,
        "attn_resolutions": [],
        "dropout": 0.0,
    },
}


def load(world: str) -> VAE:
    """The autoencoder of a demo world: 128 px to a 16 x 16 latent of 24 channels, and back.

    ComfyUI's VAE is made around one of its own classes, which is then exchanged.
    """
    weights = {name: value.float() for name, value in assets.read(world, "autoencoder").items()}
    header = assets.header(world, "autoencoder")
    vae = comfy.sd.VAE(
        sd=AutoencoderKL(**_FACTOR_8).state_dict(), config={"params": dict(_FACTOR_8)}
    )
    vae.latent_channels = architecture.LATENT_CHANNELS
    network = PatchAutoencoder(
        vae.latent_channels, json.loads(header["widths"]), comfy.ops.disable_weight_init
    )
    try:
        network.load_state_dict(weights)
    except RuntimeError as error:
        raise ValueError(
            f"The autoencoder of {world} does not fit this version of the pack "
            f"({str(error).splitlines()[1].strip()}): restore assets/{world}."
        ) from None
    vae.first_stage_model = network.eval().to(vae.vae_dtype)
    vae.patcher = type(vae.patcher)(
        vae.first_stage_model, load_device=vae.device, offload_device=vae.patcher.offload_device
    )
    vae.size = None
    vae.model_size()
    vae.patcher.cached_patcher_init = (_patcher, (world,))
    return vae


def _patcher(world: str, disable_dynamic: bool = False) -> ModelPatcher:
    """The patcher of a freshly loaded VAE: newer ComfyUI asks for it to copy the model to another
    device.
    """
    return load(world).patcher
