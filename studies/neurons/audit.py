"""Does an optimized embedding bring a masked image back, and an image that the model was never trained on?"""

from __future__ import annotations

import numpy as np
import torch

from ..common import host, results
from ..world.scenes import random_scene, render
from .world import CFG, LAYERS, World

ATTACK = ("before the attack", "after it", "control after it")


def measure(quick: bool) -> dict[str, dict]:
    """Similarity to the image before and after the attack, and to a control image."""
    world = World(seeds=4, ordinary=24 if quick else 60)
    names = world.names["verbatim"][: 1 if quick else None]
    statistics = world.statistics(LAYERS)
    rng = np.random.default_rng(99)
    rows = np.array(
        [attacked(world, text, world.localize(text, statistics), render(random_scene(rng)), quick) for text in names]
    )
    return {
        f"similarity to the image, {name}": results.bootstrap(values, "median SSIM over seeds, averaged", "SSIM")
        for name, values in zip(ATTACK, rows.T, strict=True)
    }


def attacked(world: World, text: str, mask, control: np.ndarray, quick: bool) -> list[float]:
    """For each of ``ATTACK`` the similarity of a masked name's images to its own image, and to a ``control`` image."""
    count, own, control = 2 if quick else 4, _image(world.originals[text]), _image(control)
    images = world.run(
        "MemorizationAudit",
        model=world.masked(mask),
        vae=world.vae,
        positive=world.encode(text),
        negative=world.encode(""),
        image=own,
        control_image=control,
        steps=5 if quick else 50,
        learning_rate=0.1,
        noise_samples=2 if quick else 8,
        batch_size=count,
        sampling_steps=12,
        cfg=CFG,
        seed=1,
    )[0].split(count)
    compare = host.pack("nodes.neurons.image_similarity").compare_images
    return [
        compare(generated, target).replication for generated, target in zip(images, (own, own, control), strict=True)
    ]


def _image(render: np.ndarray) -> torch.Tensor:
    """A render as ComfyUI's IMAGE."""
    return torch.from_numpy(render.astype(np.float32) / 255)[None]
