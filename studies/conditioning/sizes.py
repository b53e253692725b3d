"""Original sizes above the trained one, as SDXL artists request them: what a network does that
never saw them.

The shipped model takes a larger size as its own, so here it is given to the network as it is, which
is what SDXL gets.
"""

from __future__ import annotations

from unittest import mock

import numpy as np
import torch

from ..common import host, results
from ..world.measure import sharpness
from ..world.scenes import render
from . import sampled_images
from .gate import FULL, scheduled

SIZES = (192, 256, 512)
EXPONENT = 2.0


def measure(quick: bool) -> dict[str, dict]:
    """Content change, sharpness and followed captions at larger sizes, stock and with Metadata
    Schedule.
    """
    generator, network = sampled_images.load()
    requested = sampled_images.scenes(6 if quick else 48)
    prompts = sampled_images.encoded(generator, sampled_images.texts(requested))
    sharp = sharpness(np.stack([render(scene) for scene in requested]))
    full = sampled_images.generated(generator, prompts, height=FULL, width=FULL)
    numbers = _numbers_of(f"size {FULL}", full, network, requested, sharp)
    gated = scheduled(generator.model, EXPONENT)
    with mock.patch.object(generator.model.model, "encode_adm", _as_is):
        for size in SIZES[1:2] if quick else SIZES:
            for name, model in (("stock", None), (f"gated, exponent {EXPONENT:g}", gated)):
                made = sampled_images.generated(generator, prompts, model, height=size, width=size)
                label = f"size {size}, {name}"
                numbers |= sampled_images.content_change(network, full, made, label)
                numbers |= _numbers_of(label, made, network, requested, sharp)
    return numbers


def _as_is(**kwargs):
    """The model's vector of numbers with no bound on the sizes."""
    numbers = [
        kwargs.get("height", FULL),
        kwargs.get("width", FULL),
        kwargs.get("crop_h", 0),
        kwargs.get("crop_w", 0),
    ]
    numbers.append(FULL * float(kwargs.get("mirror", 0)))
    return host.pack("nodes.demo.architecture").metadata_vector(
        torch.tensor([numbers], dtype=torch.float32)
    )


def _numbers_of(
    name: str, images: np.ndarray, network, requested: list, sharp: np.ndarray
) -> dict[str, dict]:
    return {
        f"{name}: sharpness": results.bootstrap(
            sharpness(images) / sharp, "over that of a render", "ratio"
        ),
        f"{name}: captions obeyed": results.bootstrap(
            sampled_images.obeyed(network, images, requested),
            "fraction of requested attributes found",
            "fraction",
        ),
    }
