"""Padding at inference, on a model that was trained with its text model's own padding."""

from __future__ import annotations

import numpy as np
import torch

from ..common import host, results
from ..common.similarity import frechet
from ..world import judge
from ..world.scenes import Metadata, random_scene, render
from . import pictures

SETTINGS = (("stock", 0.0), ("zeros", 0.0), ("copies", 0.0), ("noisy copies", 0.02), ("noisy copies", 0.1),
            ("noisy copies", 0.2))  # fmt: skip


def repadded(generator, texts: list[str], padding: str, strength: float) -> list[torch.Tensor]:
    """Each text (1, 77, 128) with its padding replaced as the node does it; text i with noise of seed i."""
    prompts_of, replicate = host.pack("nodes.host.prompts"), host.pack("nodes.conditioning.padding.replicate")
    settings, rows = replicate.Settings(padding, strength, True), []
    for index, text in enumerate(texts):
        tokens, conditioning = prompts_of.encode(generator.clip, text)
        blocks = [replicate.Block(part.encoder, part.rows, part.channels, part.real)
                  for part in prompts_of.chunks(generator.clip, tokens, conditioning[0][0].shape)]  # fmt: skip
        rows.append(replicate.padded(conditioning[0][0], blocks, settings, index))
    return rows


def measure(quick: bool) -> dict[str, dict]:
    """Captions obeyed and Frechet distance for every padding; the empty prompt stays stock."""
    generator, network = pictures.load()
    asked = pictures.scenes(16 if quick else 64)
    rng = np.random.default_rng(7)
    real = np.stack([render(random_scene(rng, Metadata())) for _ in range(200 if quick else 600)])
    features, numbers = judge.read(network, real)[1], {}
    for padding, strength in SETTINGS[::3] if quick else SETTINGS:
        made = pictures.painted(generator, repadded(generator, pictures.texts(asked), padding, strength))
        name = padding + (f" {strength:g}" if strength else "")
        numbers[f"{name}: captions obeyed"] = results.bootstrap(
            pictures.obeyed(network, made, asked), "share of asked attributes that the judge finds", "share")
        numbers[f"{name}: Frechet distance"] = results.bootstrap(
            judge.read(network, made)[1], f"{len(asked)} pictures against {len(real)} renders in judge features; a "
            "resampled set repeats members, so the interval lies above the value", "distance",
            lambda rows: frechet(rows, features), draws=40)
    return numbers
