"""A U-Net's inner features at their trained size in larger images, while the layout settles.

Kohya's Deep Shrink, as core's PatchModelAddDownscale has it, with the factor that the size of each latent requires;
HiDiffusion (arXiv 2311.17528) changes the same place of the network. A layer then sees as much of the image as in
training.
"""

from __future__ import annotations

import math

import torch.nn.functional as F
from comfy.ldm.modules.diffusionmodules.openaimodel import Downsample


def with_downscaled_features(patcher, trained: int, end: float):
    """A clone of a MODEL with a U-Net whose features behind the first downsampling have at most their trained size.

    For a latent s times as large as the trained one (s the linear ratio of the areas, ``trained`` pixels a side), they
    are resized by 1 / s (bicubic) down to the noise level ``end``, and back where the skip connection of that place
    joins them. Up to the trained size nothing changes, bit for bit.
    """
    clone, network = patcher.clone(), patcher.model.diffusion_model
    pixels = getattr(patcher.get_model_object("latent_format"), "spacial_downscale_ratio", 8)
    first = next(
        number
        for number, block in enumerate(network.input_blocks)
        if any(isinstance(layer, Downsample) for layer in block)
    )

    def shrink(features, options):
        if options["block"][1] != first or float(options["sigmas"].max()) < end:
            return features
        factor = math.sqrt(math.prod(options["original_shape"][-2:])) * pixels / trained
        if factor <= 1:
            return features
        return _resized(features, [max(round(side / factor), 1) for side in features.shape[-2:]])

    def restore(features, skip, _options):
        if features.shape[-2:] != skip.shape[-2:]:
            features = _resized(features, skip.shape[-2:])
        return features, skip

    clone.set_model_input_block_patch_after_skip(shrink)
    clone.set_model_output_block_patch(restore)
    return clone


def _resized(features, sides):
    return F.interpolate(features, sides, mode="bicubic")
