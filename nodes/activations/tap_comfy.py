"""Tap activations of a MODEL: the evaluations, their noise level and the images."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from comfy.model_management import get_free_memory
from comfy_execution.utils import get_executing_context
from torch.nn import functional as F

from ..common.pil_images import rgb
from ..host import evaluate as host
from ..host.hooks import hook_calls
from ..host.latent_shapes import split
from ..host.progress import with_progress
from ..host.routes import running_server
from ..host.schema import later_seed
from . import paper_tables
from .activation_spec import ActivationSpec
from .activations import Activations
from .tap import CallTap, EvaluatedTexts, TapSettings, call_settings, kept_bytes, merge
from .tap_inputs import NoiseUnit

if TYPE_CHECKING:
    from ..common.network_call import Call
    from ..host.socket_types import VAE, ModelPatcher

_USUAL = 64 * 64  # latent positions of an image of 512 x 512 pixels
#: From how many times that, and from how many bytes of activations on, a tap says before what it
#: will take.
_MUCH = 16.0
_MUCH_MEMORY = 2**30


def tap_noise_samples(
    model: ModelPatcher,
    positive: list,
    latent: dict,
    sigma: float,
    specs: list[ActivationSpec],
    settings: TapSettings,
    seed: int,
    noise_samples: int,
) -> Iterator[Activations]:
    """The activations of one evaluation for each noise sample, from seeds ``seed``, ``seed`` + 1,
    ...
    """
    timestep = host.timestep_of(model, sigma)
    sigma = float(torch.tensor(sigma))
    for number in with_progress(range(noise_samples)):
        calls: list[CallTap] = []

        def calling(call: Call, calls: list[CallTap] = calls) -> tuple:
            calls.append(CallTap(specs, settings, call))
            return calls[-1].receivers()

        host.evaluate(
            hook_calls(model, calling, watches=True),
            positive,
            samples=latent,
            sigma=sigma,
            seed=later_seed(seed, number),
        )
        if not calls:
            raise ValueError(
                "No part of the conditioning acts at this noise level (timestep ranges). Tap "
                "another level, or a conditioning without ranges."
            )
        tensors, rows = merge(calls, specs)
        yield Activations(
            tensors=tensors,
            rows=rows,
            sigma=sigma,
            timestep=timestep,
            settings=call_settings(calls, specs) | EvaluatedTexts.of(calls).setting(),
        )


def clean_latent(
    latent: dict | None, image: torch.Tensor | None, vae: VAE, largest_size: int = 0
) -> dict:
    """The images as a LATENT, larger ones scaled to a longer side of ``largest_size`` pixels before
    (0: as they are).

    Sides become multiples of the VAE's factor by scaling, since ComfyUI would cut them, and what is
    cut off the left and the top shifts all positions. Raises ValueError unless exactly one of
    latent and image is connected.
    """
    if latent is not None and image is None:
        return latent
    if latent is None and image is not None and vae is not None:
        return {
            "samples": vae.encode(
                _scaled(rgb(image).float(), largest_size, vae.spacial_compression_encode())
            )
        }
    raise ValueError("Connect either latent, or image together with vae.")


def _scaled(images: torch.Tensor, largest: int, multiple: int) -> torch.Tensor:
    """Images (B, H, W, 3) of at most that side (0: any), whose sides are multiples."""
    factor = min(largest / max(images.shape[1:3]), 1.0) if largest else 1.0
    size = [max(round(side * factor / multiple), 1) * multiple for side in images.shape[1:3]]
    if size == list(images.shape[1:3]):
        return images
    scaled = F.interpolate(images.movedim(-1, 1), size=size, mode="bicubic", antialias=True)
    return scaled.movedim(1, -1).clamp(0, 1)


def announce(
    model: ModelPatcher,
    positive: list,
    latent: dict,
    specs: list[ActivationSpec],
    settings: TapSettings,
    noise_samples: int,
) -> str:
    """What a tap will take, in a line, shown before it begins where it is much; ValueError beyond
    free memory.
    """
    samples = split(latent["samples"])[0]  # of video with sound the video, whose layers are tapped
    tokens = positive[0][0].shape[1]
    size = (samples.shape[-2], samples.shape[-1])
    rows = len(samples) * math.prod(samples.shape[2:-2])
    needed = kept_bytes(specs, size, rows=rows, tokens=tokens, settings=settings)
    work = rows * noise_samples * math.prod(size) / _USUAL
    line = (
        f"{rows} images of {size[1]} x {size[0]} latent positions, {noise_samples} evaluations: "
        f"{work:.1f} times the positions of one 512 x 512 image (self-attention grows with their "
        f"square), {needed / 2**30:.2f} GiB of activations."
    )
    if needed > get_free_memory(torch.device("cpu")):
        raise ValueError(
            f"The activations would not fit into memory: {line} Set largest_size, set a larger "
            "pool_size, or select fewer IDs (those that end in self-map are the largest)."
        )
    if work > _MUCH or needed > _MUCH_MEMORY:
        logging.info("%s", line)
        running = get_executing_context()
        server = running_server()
        if running is not None and server is not None:
            server.send_progress_text(line, running.node_id)
    return line


def sigma_of(model: ModelPatcher, specs: list[ActivationSpec], unit: str, level: float) -> float:
    """The sigma of a noise level in a ``NoiseUnit``."""
    if unit != NoiseUnit.PAPER_T:
        return host.sigma_at(
            model, level, host.PERCENT if unit == NoiseUnit.PERCENT else host.SIGMA
        )
    context = model.model.model_config.unet_config.get("context_dim")
    timestep = paper_tables.timestep_for(level, paper_tables.architecture(specs), context)
    return host.sigma_at(model, timestep, host.TIMESTEP)
