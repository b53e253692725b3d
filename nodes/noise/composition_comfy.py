"""Guides for Composition Noise from what is connected: a LATENT, a mask with two colors, or
both.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import torch

from ..host.latent_shapes import view
from .composition import latent_of_color, mask_guide, part_means

if TYPE_CHECKING:
    from ..host.socket_types import VAE, ModelPatcher

_COLOR = re.compile(r"#?([0-9a-fA-F]{6})")


def guide_latent(
    like: torch.Tensor,
    guide: dict | None,
    mask: torch.Tensor | None,
    colors: tuple[str, str],
    model: ModelPatcher,
    vae: VAE,
) -> tuple[torch.Tensor, str]:
    """The guide (M, C, ..., h, w) for a latent `like`, in the scale of the MODEL where there is
    one; and what it is.

    A LATENT is taken as it is; with a mask, its mean values inside and outside are the two colors.
    A mask alone takes `colors` (inside, outside) as #rrggbb: encoded by the VAE, or else the
    likeliest latents by the model's preview. Raises ValueError where neither is connected, and for
    colors that nothing here can make latents of.
    """
    if mask is None:
        if guide is None:
            raise ValueError("There is nothing to follow: connect a guide, a mask, or both.")
        return view(guide, model).parts[0], "the guide"
    if guide is not None:
        means = part_means(view(guide, model).parts[0], mask)
        return mask_guide(
            mask, like, *means
        ), "the mask, in the guide's mean values inside and outside of it"
    inside, outside = map(_rgb, colors)
    if vae is not None:
        image = _colored(mask, like, vae=vae, inside=inside, outside=outside)
        return view({"samples": vae.encode(image)}, model).parts[
            0
        ], "the mask in two colors, by the VAE"
    return mask_guide(
        mask, like, *_previewed(model, inside, outside)
    ), "the mask in two colors, by the model's preview"


def _rgb(color: str) -> torch.Tensor:
    """The parts (3,) in 0..1 of a color."""
    found = _COLOR.fullmatch(color.strip())
    if not found:
        raise ValueError(f"{color!r} is not a color: enter six digits such as #edb98a.")
    return torch.tensor(list(bytes.fromhex(found[1]))) / 255


def _colored(
    mask: torch.Tensor, like: torch.Tensor, vae: VAE, inside: torch.Tensor, outside: torch.Tensor
) -> torch.Tensor:
    """The mask in two colors: an image (M, H, W, 3) as large as the latent."""
    factor = vae.spacial_compression_encode()
    size = tuple(round(side * factor) for side in like.shape[-2:])
    mask = torch.nn.functional.interpolate(
        mask.float().reshape(-1, 1, *mask.shape[-2:]), size, mode="bilinear"
    )
    return mask.movedim(1, -1) * inside + (1 - mask.movedim(1, -1)) * outside


def _previewed(model: ModelPatcher, *colors: torch.Tensor) -> list[torch.Tensor]:
    """Latent values (C,) of colors in 0..1, by the linear preview that ComfyUI shows while it
    samples.
    """
    form = None if model is None else model.get_model_object("latent_format")
    factors = getattr(form, "latent_rgb_factors", None)
    if form is None or factors is None or len(factors) != form.latent_channels:
        raise ValueError(
            "Two colors need the VAE, or a MODEL with a preview in colors: connect vae or model, "
            "or a guide, whose values inside and outside of the mask are then taken."
        )
    bias = torch.tensor(getattr(form, "latent_rgb_factors_bias", None) or [0.0] * 3)
    return [latent_of_color(2 * color - 1, torch.tensor(factors), bias) for color in colors]
