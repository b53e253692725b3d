"""ComfyUI's classes that sockets carry and calls bring, by one name each, for annotations.

Imported under ``if TYPE_CHECKING`` alone.
"""

from __future__ import annotations

from typing import Protocol

import torch
from comfy.clip_vision import ClipVisionModel
from comfy.model_base import BaseModel
from comfy.model_patcher import ModelPatcher
from comfy.patcher_extension import WrapperExecutor
from comfy.sd import CLIP, VAE

__all__ = [
    "CLIP",
    "VAE",
    "BaseModel",
    "ClipVisionModel",
    "ModelPatcher",
    "NoiseSource",
    "WrapperExecutor",
]


class NoiseSource(Protocol):
    """A NOISE: draws the noise of a LATENT from its seed."""

    seed: int

    def generate_noise(self, latent: dict) -> torch.Tensor:
        """Noise of the LATENT's shape."""
