"""Does an optimised embedding bring a masked picture back, and a picture that was never seen with it?"""

from __future__ import annotations

import numpy as np
import torch

from ..common import host, results
from ..world.scenes import random_scene, render
from .world import CFG, LAYERS, World

ATTACK = ("before the attack", "after it", "control after it")


def measure(quick: bool) -> dict[str, dict]:
    """Similarity to the picture before and after the attack, and to a control picture."""
    world = World(seeds=4, ordinary=24 if quick else 60)
    names = world.names["verbatim"][: 1 if quick else 3]
    statistics = world.statistics(LAYERS)
    rng = np.random.default_rng(99)
    rows = np.array([attacked(world, text, world.localize(text, statistics), render(random_scene(rng)), quick)
                     for text in names])  # fmt: skip
    return {f"similarity to the picture, {name}": results.bootstrap(
        values, "median SSIM over noises, averaged", "SSIM")
        for name, values in zip(ATTACK, rows.T, strict=True)}  # fmt: skip


def attacked(world: World, text: str, mask, control: np.ndarray, quick: bool) -> list[float]:
    """For each of ``ATTACK`` the likeness of a masked name's pictures to its own picture, and to a ``control`` one."""
    count, own, control = 2 if quick else 4, _image(world.originals[text]), _image(control)
    images = world.run(
        "MemorizationAudit", model=world.masked(mask), vae=world.vae, positive=world.encode(text),
        negative=world.encode(""), picture=own, control=control, steps=5 if quick else 50, learning_rate=0.1,
        batch=2 if quick else 8, pictures=count, sampling_steps=12, cfg=CFG, seed=1,
    )[0].split(count)  # fmt: skip
    compare = host.pack("nodes.neurons.comparison").measure
    return [compare(painted, target).replication for painted, target in zip(images, (own, own, control), strict=True)]


def _image(picture: np.ndarray) -> torch.Tensor:
    """A render as ComfyUI's IMAGE."""
    return torch.from_numpy(picture.astype(np.float32) / 255)[None]
