"""Activation patching: activations of one run replace, or mix with, those of another (arXiv
2202.05262, section 2.1).

``h' = h + strength * mask * (h_source - h)`` at some IDs and steps, and how much of the source's
image that restores.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ..common.network_call import TILED, WHOLE, Part
from .activation_edit import Edit, mask_at
from .activation_spec import ActivationSpec
from .activations import Activations


@dataclass(frozen=True, kw_only=True)
class PatchingSettings:
    """``strength``: 0 keeps the run's own activations, 1 replaces them; ``mask``: (M, H, W) in 0..1
    or None.
    """

    strength: float = 1.0
    mask: torch.Tensor | None = None


def kinds_of(source: Activations) -> set[bool]:
    """Which conditionings' rows activations have: True for the positive one, False for the negative
    one.
    """
    return {row.conditional for row in source.rows}


def patch(source: Activations, settings: PatchingSettings) -> Edit:
    """The edit that mixes recorded activations into those of a call.

    A single recorded image is used for all images. The edit raises ValueError for another number of
    images or size, and where the network sees a part of the image alone.
    """

    def edit(spec: ActivationSpec, part: Part, feature: torch.Tensor, frames: int) -> torch.Tensor:
        if part.area is None:
            raise ValueError(f"{TILED}: recorded activations cannot be placed.")
        if not part.area.whole:
            raise ValueError(
                "The prompt acts in an area of the image, and the recording is of the whole "
                "image. Use one conditioning without areas."
            )
        value = source.tensors[spec.id][[row.conditional == part.side for row in source.rows]]
        if len(value) == frames:
            value = value.repeat(len(feature) // frames, 1, 1, 1)
        if value.shape != feature.shape:
            raise ValueError(
                f"The recording of {spec.id} has {_size(value, frames)}, and this run has "
                f"{_size(feature, frames)}. Record and sample at one size, with pool_size 1 and "
                "one image or the same number of images."
            )
        weight = (
            torch.tensor(settings.strength)
            if settings.mask is None
            else settings.strength * mask_at(settings.mask, feature, frames, part.area)
        )
        return torch.lerp(feature, value.to(feature), weight.to(feature.device))

    return edit


def _size(feature: torch.Tensor, frames: int) -> str:
    return f"{len(feature) // frames} images of {feature.shape[2]} x {feature.shape[3]} positions"


def restored_fraction(
    patched: torch.Tensor,
    source: torch.Tensor,
    target: torch.Tensor,
    mask: torch.Tensor | None = None,
) -> float:
    """How much of the source's latents (B, C, ...) a patched run has: 1 - |patched - source|^2 /
    |target - source|^2.

    Summed over all images, and with a mask (M, H, W) over the area alone. 1: the source's image, 0:
    as far from it as the unpatched run, below 0: farther. Raises ValueError when the two runs do
    not differ.
    """
    error, distance = (one.double() - source.double() for one in (patched, target))
    if mask is not None:
        weight = mask_at(mask, error.flatten(1, -3), 1, WHOLE).double().sqrt()
        error = error.flatten(1, -3) * weight
        distance = distance.flatten(1, -3) * weight
    before = float(distance.square().sum())
    if before == 0:
        raise ValueError(
            "Both prompts give the same image, so nothing can be restored. Enter different prompts."
        )
    return 1 - float(error.square().sum()) / before
