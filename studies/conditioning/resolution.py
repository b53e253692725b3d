"""The shipped model beyond its size, with and without the noise that the size asks for."""

from __future__ import annotations

import numpy as np
from PIL import Image

from ..common import host, results
from . import sampled_images

TRAINED = 128


def measure(quick: bool) -> dict[str, dict]:
    """Attributes found at 1.5 and 2 times the trained size, brought back to it for the judge."""
    generator, network = sampled_images.load()
    sampling, numbers = host.pack("nodes.conditioning.noise_rescale_comfy"), {}
    requested = sampled_images.scenes(5 if quick else 32)
    prompts = sampled_images.encoded(generator, sampled_images.texts(requested))
    sizes = ((TRAINED, "the trained size"), (192, "1.5 times"), (256, "2 times"))
    for side, name in sizes[1:2] if quick else sizes:
        for mode in ("stock",) if side == TRAINED else ("stock", *sampling.MODES):
            model = (
                generator.model
                if mode == "stock"
                else sampling.rescaled(generator.model, side / TRAINED, mode)
            )
            made = sampled_images.generated(generator, prompts, model, side=side, batch=8)
            label = f"{name}, {mode}"
            numbers[f"{label}: captions obeyed"] = results.bootstrap(
                sampled_images.obeyed(network, shrunk(made), requested),
                "fraction of requested attributes that the judge finds",
                "fraction",
            )
            numbers[f"{label}: contrast"] = results.bootstrap(
                made.reshape(len(made), -1).std(1), "deviation of all values of an image", "levels"
            )
    return numbers


def shrunk(made: np.ndarray) -> np.ndarray:
    """Images uint8 (N, side, side, 3) brought to the trained size by averaging."""
    return np.stack(
        [
            np.asarray(Image.fromarray(image).resize((TRAINED, TRAINED), Image.Resampling.BOX))
            for image in made
        ]
    )
