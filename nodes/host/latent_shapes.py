"""ComfyUI's LATENT as plain tensors: its parts, its mask as weights, and the noise numbers of its
batch.

A LATENT of several parts (a nested tensor, such as video with sound) has one tensor a part, each
with the whole batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import comfy.nested_tensor
import comfy.sample
import comfy.utils
import torch

if TYPE_CHECKING:
    from .socket_types import ModelPatcher

_FACTOR = "spacial_downscale_ratio"  # of newer ComfyUI's latent formats
#: Pixels a position where that is not 8, by the class of the latent format, for older ComfyUI,
#: whose formats do not say it.
_PIXELS = {
    "SC_Prior": 42,
    "SC_B": 4,
    "Flux2": 16,
    "LTXV": 32,
    "Wan22": 16,
    "HunyuanImage21": 32,
    "HunyuanVideo15": 16,
    "ChromaRadiance": 1,
}


@dataclass(frozen=True)
class LatentView:
    """What a method needs of a LATENT."""

    parts: list[
        torch.Tensor
    ]  # in the model's own scale when a model was given, else as the VAE gave them
    weights: (
        list[torch.Tensor] | None
    )  # one a part, 0 to 1, in the part's shape; None without a mask
    numbers: list[int]  # the number of each image's noise in the stream of draws of a seed
    blank: torch.Tensor  # which images are empty: constant in every channel


def view(latent: dict, model: ModelPatcher | None = None) -> LatentView:
    """The parts, weights and noise numbers of a LATENT; with a MODEL, in the scale in which the
    model works.

    Raises ValueError when the LATENT has a `batch_index` of another length than its batch.
    """
    parts = split(latent["samples"])
    count = len(parts[0])
    numbers = list(map(int, latent.get("batch_index") or range(count)))
    if len(numbers) != count:
        raise ValueError(
            f"The latent holds {count} images but its batch_index names {len(numbers)}: take both "
            "from one Latent From Batch or Repeat Latent Batch node."
        )
    blank = torch.stack([_is_blank(part) for part in parts]).all(dim=0)
    weights = None if latent.get("noise_mask") is None else _weights(latent["noise_mask"], parts)
    return LatentView(_scaled(parts, model), weights, numbers, blank)


def split(samples: torch.Tensor) -> list[torch.Tensor]:
    """The parts of a LATENT's samples: one tensor, or those of a nested tensor."""
    return list(samples.unbind()) if getattr(samples, "is_nested", False) else [samples]


def matching_channels(samples: torch.Tensor, model: ModelPatcher) -> torch.Tensor:
    """Samples (B, C, ...) with the channels and dimensions of a MODEL; empty ones are repaired as
    KSampler does, which may give them a sound.

    Raises ValueError for samples of another kind of model.
    """
    samples = comfy.sample.fix_empty_latent_channels(model, samples)
    first = split(samples)[0]
    channels = split(_empty(first, model))[0].shape[1]
    dimensions = model.get_model_object("latent_format").latent_dimensions
    if first.shape[1] != channels or first.ndim != dimensions + 2:
        raise ValueError(
            f"The latent has the shape {tuple(first.shape)} and the model takes {channels} "
            f"channels and {dimensions} dimensions: encode the images with the VAE of this model."
        )
    return samples


def silence(videos: Sequence[torch.Tensor], model: ModelPatcher) -> list[list[torch.Tensor]]:
    """For each video the other parts of the empty LATENT that ComfyUI samples it beside (MiniMax
    H3); no such list for models that sample images or videos alone.
    """
    parts = [split(_empty(video, model))[1:] for video in videos]
    return [others for others in parts if others]


def with_silence(samples: torch.Tensor, model: ModelPatcher) -> torch.Tensor:
    """Samples of a LATENT beside the parts that it lacks, see `silence`."""
    others = [] if len(split(samples)) > 1 else silence([samples], model)
    return join([samples, *others[0]]) if others else samples


def _empty(samples: torch.Tensor, model: ModelPatcher) -> torch.Tensor:
    """What KSampler makes of an empty LATENT of one image of a shape (B, C, ...)."""
    return comfy.sample.fix_empty_latent_channels(model, torch.zeros_like(samples[:1]))


def pixels_a_position(model: ModelPatcher) -> int:
    """How many pixels a side a position of the MODEL's latents stands for."""
    latent_format = model.get_model_object("latent_format")
    default = _PIXELS.get(type(latent_format).__name__, 8)
    return getattr(latent_format, _FACTOR, default)


def pixels(latent: dict, model: ModelPatcher) -> tuple[int, int]:
    """(width, height) in pixels of the image that a LATENT stands for, with the MODEL's own
    factor.
    """
    part = split(latent["samples"])[0]
    factor = pixels_a_position(model)
    return part.shape[-1] * factor, part.shape[-2] * factor


def join(parts: list[torch.Tensor], like: torch.Tensor | None = None) -> torch.Tensor:
    """Parts as samples again, nested when `like` is, or without it where they are several."""
    nested = len(parts) > 1 if like is None else getattr(like, "is_nested", False)
    return comfy.nested_tensor.NestedTensor(parts) if nested else parts[0]


def batched(latents: Sequence[torch.Tensor]) -> torch.Tensor:
    """Samples as one batch; those of several parts part by part."""
    parts = zip(*map(split, latents), strict=True)
    return join([torch.cat(rows) for rows in parts], like=latents[0])


def extended(latent: dict, numbers: list[int]) -> dict:
    """A LATENT with one image for each noise number: the batch repeated, for drawing as many noise
    samples.
    """
    parts = split(latent["samples"])
    total = len(numbers)
    count = len(parts[0])
    repeated = [part.new_empty(total, *part.shape[1:]) for part in parts]
    for part, whole in zip(parts, repeated, strict=True):
        for first in range(0, total, count):  # a pool of thousands is some gigabytes
            whole[first : first + count] = part[: total - first]
    return {"samples": join(repeated, like=latent["samples"]), "batch_index": list(numbers)}


def _scaled(parts: list[torch.Tensor], model: ModelPatcher) -> list[torch.Tensor]:
    """Latents as the sampler hands them to the model; ComfyUI leaves a LATENT of zeros as it is,
    and so does this.
    """
    if model is None or not any(torch.count_nonzero(part) for part in parts):
        return parts
    process = model.get_model_object("process_latent_in")
    if len(parts) == 1:
        return [process(parts[0])]
    packed, shapes = comfy.utils.pack_latents(parts)
    return comfy.utils.unpack_latents(process(packed), shapes)


def _weights(mask: Any, parts: list[torch.Tensor]) -> list[torch.Tensor]:
    """The mask at the size of each part; parts without a mask of their own count whole, as in
    ComfyUI's sampler.
    """
    masks = split(mask)[: len(parts)]
    sized = [
        comfy.utils.reshape_mask(single.float(), part.shape).to(part.device).clamp(0, 1)
        for single, part in zip(masks, parts, strict=False)
    ]
    return sized + [torch.ones_like(part, dtype=torch.float32) for part in parts[len(sized) :]]


def _is_blank(part: torch.Tensor) -> torch.Tensor:
    flat = (
        part.flatten(2)
        if part.ndim > 2 and part[0, 0].numel() > 1
        else part.flatten(1).unsqueeze(1)
    )
    return (flat.amax(dim=-1) == flat.amin(dim=-1)).all(dim=-1)
