"""Does an optimised embedding bring a masked picture back, and a picture that was never seen with it?"""

from __future__ import annotations

import numpy as np
import torch

from ..common import host, results
from ..world.scenes import random_scene, render
from .world import CFG, LAYERS, World


def measure(quick: bool) -> dict[str, dict]:
    """Similarity to the picture before and after the attack, and to a control picture."""
    world = World(seeds=4, ordinary=24 if quick else 60)
    names = world.names["verbatim"][: 1 if quick else 3]
    statistics = world.statistics(LAYERS)
    rows: dict[str, list[float]] = {"before the attack": [], "after it": [], "control after it": []}
    rng = np.random.default_rng(99)
    for text in names:
        masked = world.masked(world.localize(text, statistics))
        control = _image(render(random_scene(rng)))
        images = world.run(
            "MemorizationAudit", model=masked, vae=world.vae, positive=world.encode(text), negative=world.encode(""),
            picture=_image(world.originals[text]), control=control, steps=5 if quick else 50, learning_rate=0.1,
            batch=2 if quick else 8, pictures=2 if quick else 4, sampling_steps=12, cfg=CFG, seed=1,
        )[0].split(2 if quick else 4)  # fmt: skip
        compare = host.pack("nodes.neurons.comparison").measure
        targets = (_image(world.originals[text]), _image(world.originals[text]), control)
        for name, painted, target in zip(rows, images, targets, strict=True):
            rows[name].append(compare(painted, target).replication)
    return {f"similarity to the picture, {name}": results.bootstrap(
        np.array(values), "median SSIM over noises, averaged", "SSIM") for name, values in rows.items()}  # fmt: skip


def _image(picture: np.ndarray) -> torch.Tensor:
    """A render as ComfyUI's IMAGE."""
    return torch.from_numpy(picture.astype(np.float32) / 255)[None]
