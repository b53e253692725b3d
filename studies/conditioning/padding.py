"""Padding at inference, on a model that was trained with its text model's own padding."""

from __future__ import annotations

import numpy as np
import torch

from ..common import host, results
from ..common.similarity import frechet
from ..world import judge
from ..world.scenes import Metadata, random_scene, render
from . import sampled_images

SETTINGS = (
    ("stock", 0.0),
    ("zeros", 0.0),
    ("copies", 0.0),
    ("noisy_copies", 0.02),
    ("noisy_copies", 0.1),
    ("noisy_copies", 0.2),
)


def repadded(generator, texts: list[str], padding: str, strength: float) -> list[torch.Tensor]:
    """Each text (1, 77, 128) with its padding replaced as the node does it; text i with noise of
    seed i.
    """
    prompts_of, replicate = (
        host.pack("nodes.host.text_encoding"),
        host.pack("nodes.conditioning.replicate_padding"),
    )
    settings, rows = (
        replicate.PaddingSettings(padding=padding, strength=strength, scale_by_copies=True),
        [],
    )
    for index, text in enumerate(texts):
        tokens, conditioning = prompts_of.encode(generator.clip, text)
        chunks = [
            replicate.PromptChunk(part.encoder, part.rows, part.channels, part.real)
            for part in prompts_of.chunks(generator.clip, tokens, conditioning[0][0].shape)
        ]
        rows.append(replicate.replace_padding(conditioning[0][0], chunks, settings, index))
    return rows


def measure(quick: bool) -> dict[str, dict]:
    """Captions obeyed and Frechet distance for every padding; the empty prompt stays stock."""
    generator, network = sampled_images.load()
    requested = sampled_images.scenes(8 if quick else 64)
    rng = np.random.default_rng(7)
    real = np.stack([render(random_scene(rng, Metadata())) for _ in range(200 if quick else 600)])
    features, numbers, stock = judge.read(network, real)[1], {}, None
    for padding, strength in SETTINGS[::3] if quick else SETTINGS:
        made = sampled_images.generated(
            generator, repadded(generator, sampled_images.texts(requested), padding, strength)
        )
        name = padding + (f" {strength:g}" if strength else "")
        found = sampled_images.obeyed(network, made, requested)
        what = "fraction of requested attributes that the judge finds"
        numbers[f"{name}: captions obeyed"] = results.bootstrap(found, what, "fraction")
        if stock is None:
            stock = found
        else:
            numbers[f"{name} less stock: captions obeyed"] = results.bootstrap(
                found - stock, f"{what}, paired", "fraction"
            )
        numbers[f"{name}: Frechet distance"] = {
            "value": frechet(judge.read(network, made)[1], features),
            "n": len(made),
            "unit": "distance",
            "what": f"{len(made)} images against {len(real)} renders in judge features",
        }
    return numbers
