"""The demo autoencoder as an ordinary VAE."""

from __future__ import annotations

import comfy.sd

from . import architecture, assets


def load(world: str):
    """The autoencoder of a demo world: 128 px to a 16 x 16 latent of 8 channels and back."""
    weights = {name: value.float() for name, value in assets.read(world, "autoencoder").items()}
    vae = comfy.sd.VAE(sd=weights, config={"params": dict(architecture.AUTOENCODER)})
    architecture.widen_groups(vae.first_stage_model)
    vae.latent_channels = architecture.LATENT_CHANNELS
    vae.patcher.cached_patcher_init = (_patcher, (world,))
    return vae


def _patcher(world: str, disable_dynamic: bool = False):
    """The patcher of a freshly loaded VAE: newer ComfyUI asks for it to copy the model to another device."""
    return load(world).patcher
