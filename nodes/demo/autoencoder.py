"""The demo autoencoder as an ordinary VAE."""

from __future__ import annotations

import json

import comfy.ops
import comfy.sd
from comfy.ldm.models.autoencoder import AutoencoderKL

from . import architecture, assets
from .patch_autoencoder import PatchAutoencoder


def load(world: str):
    """The autoencoder of a demo world: 128 px to a 16 x 16 latent of 8 (avatars-v1) or 24 channels, and back."""
    weights = {name: value.float() for name, value in assets.read(world, "autoencoder").items()}
    header = assets.header(world, "autoencoder")
    vae = _patch_vae(weights, header, world) if "widths" in header else _convolutional_vae(weights)
    vae.patcher.cached_patcher_init = (_patcher, (world,))
    return vae


def _convolutional_vae(weights):
    vae = comfy.sd.VAE(sd=weights, config={"params": dict(architecture.AUTOENCODER)})
    architecture.widen_groups(vae.first_stage_model)
    vae.latent_channels = architecture.LATENT_CHANNELS
    return vae


def _patch_vae(weights, header: dict[str, str], world: str):
    """ComfyUI's VAE around a ``PatchAutoencoder``: made around one of ComfyUI's classes, then exchanged."""
    own = AutoencoderKL(**architecture.AUTOENCODER)
    vae = comfy.sd.VAE(sd=own.state_dict(), config={"params": dict(architecture.AUTOENCODER)})
    vae.latent_channels = int(header["channels"])
    network = PatchAutoencoder(vae.latent_channels, json.loads(header["widths"]), comfy.ops.disable_weight_init)
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
    return vae


def _patcher(world: str, disable_dynamic: bool = False):
    """The patcher of a freshly loaded VAE: newer ComfyUI asks for it to copy the model to another device."""
    return load(world).patcher
