"""A U-Net's inner features at their trained size in larger images, while the layout settles.

Kohya's Deep Shrink, as core's PatchModelAddDownscale has it, with the factor that the size of each
latent requires; HiDiffusion (arXiv 2311.17528) changes the same place of the network. A layer then
sees as much of the image as in training.
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch.nn.functional as F
from comfy.ldm.modules.diffusionmodules.openaimodel import Downsample
from comfy.patcher_extension import WrappersMP

from ..host.evaluate import evaluating, levels_of
from ..host.latent_shapes import pixels_a_position

if TYPE_CHECKING:
    import torch

    from ..host.socket_types import BaseModel, ModelPatcher, WrapperExecutor


def with_downscaled_features(patcher: ModelPatcher, trained: int, end: float) -> ModelPatcher:
    """A clone of a MODEL with a U-Net whose features behind the first downsampling have at most
    their trained size.

    For a latent s times as large as the trained one (s the linear ratio of the areas, ``trained``
    pixels a side), they are resized by 1 / s (bicubic) down to the noise level ``end``, and back
    where the skip connection of that place joins them. Up to the trained size nothing changes, bit
    for bit.
    """
    clone = patcher.clone()
    network = patcher.model.diffusion_model
    pixels = pixels_a_position(patcher)
    first = next(
        number
        for number, block in enumerate(network.input_blocks)
        if any(isinstance(layer, Downsample) for layer in block)
    )

    def shrink(features: torch.Tensor, options: dict) -> torch.Tensor:
        if options["block"][1] != first or max(levels_of(options["sigmas"])) < end:
            return features
        factor = math.sqrt(math.prod(options["original_shape"][-2:])) * pixels / trained
        if factor <= 1:
            return features
        return _resized(features, [max(round(side / factor), 1) for side in features.shape[-2:]])

    def restore(
        features: torch.Tensor, skip: torch.Tensor, _options: dict
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if features.shape[-2:] != skip.shape[-2:]:
            features = _resized(features, skip.shape[-2:])
        return features, skip

    def evaluate(
        executor: WrapperExecutor,
        model: BaseModel,
        conds: list,
        x: torch.Tensor,
        timestep: torch.Tensor,
        *args: Any,
    ) -> Any:
        with evaluating(timestep):
            return executor(model, conds, x, timestep, *args)

    clone.add_wrapper_with_key(
        WrappersMP.CALC_COND_BATCH, f"glassbox_downscale_{uuid.uuid4().hex}", evaluate
    )
    clone.set_model_input_block_patch_after_skip(shrink)
    clone.set_model_output_block_patch(restore)
    return clone


def _resized(features: torch.Tensor, sides: Sequence[int]) -> torch.Tensor:
    return F.interpolate(features, list(sides), mode="bicubic")
