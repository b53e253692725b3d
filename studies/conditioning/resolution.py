"""The shipped model beyond its size, with and without the noise that the size asks for."""

from __future__ import annotations

import numpy as np
from PIL import Image

from ..common import host, results
from . import pictures

TRAINED = 128


def measure(quick: bool) -> dict[str, dict]:
    """Attributes found at 1.5 and 2 times the trained size, brought back to it for the judge."""
    generator, network = pictures.load()
    sampling, numbers = host.pack("nodes.host.sampling"), {}
    asked = pictures.scenes(8 if quick else 32)
    prompts = pictures.encoded(generator, pictures.texts(asked))
    sizes = ((TRAINED, "the trained size"), (192, "1.5 times"), (256, "2 times"))
    for side, name in sizes[1:2] if quick else sizes:
        for mode in ("stock",) if side == TRAINED else ("stock", *sampling.MODES):
            model = generator.model if mode == "stock" else sampling.rescaled(generator.model, side / TRAINED, mode)
            made = pictures.painted(generator, prompts, model, side=side, batch=8)
            label = f"{name}, {mode}"
            numbers[f"{label}: captions obeyed"] = results.bootstrap(
                pictures.obeyed(network, shrunk(made), asked), "share of asked attributes that the judge finds",
                "share")  # fmt: skip
            numbers[f"{label}: contrast"] = results.bootstrap(
                made.reshape(len(made), -1).std(1), "deviation of all values of a picture", "levels")
    return numbers


def shrunk(made: np.ndarray) -> np.ndarray:
    """Pictures uint8 (N, side, side, 3) brought to the trained size by averaging."""
    return np.stack([np.asarray(Image.fromarray(picture).resize((TRAINED, TRAINED), Image.Resampling.BOX))
                     for picture in made])  # fmt: skip
