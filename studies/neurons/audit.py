"""Does an optimized embedding bring a masked image back, and an image that the model was never
trained on?
"""

from __future__ import annotations

import numpy as np
import torch

from ..common import host, results
from ..world.scenes import random_scene, render
from .masks import any_neurons
from .world import CFG, LAYERS, World

ATTACK = ("before the attack", "after it", "control after it")


def measure(quick: bool) -> dict[str, dict]:
    """Similarity to the image before and after the attack on the mask and on random neurons, and to
    a control image.
    """
    world = World(seeds=2 if quick else 4, ordinary=24 if quick else 60)
    names = world.names["verbatim"][: 1 if quick else None]
    statistics = world.statistics(LAYERS)
    rng = np.random.default_rng(99)
    rows = []
    for text in names:
        mask = world.localize(text, statistics)
        random = world.masked(any_neurons(world, mask))
        rows.append(attacked(world, world.masked(mask), text, quick, render(random_scene(rng))))
        rows[-1] += attacked(world, random, text, quick)
        print(text, [round(value, 3) for value in rows[-1]], flush=True)
    what = (*ATTACK, *(f"random neurons, {when}" for when in ATTACK[:2]))
    return {
        f"similarity to the image, {name}": results.bootstrap(
            values, "median SSIM over seeds, averaged", "SSIM"
        )
        for name, values in zip(what, np.array(rows).T, strict=True)
    }


def attacked(
    world: World, model, text: str, quick: bool, control: np.ndarray | None = None
) -> list[float]:
    """For each of ``ATTACK`` the similarity of a name's images to its own image, and to that of a
    ``control``.
    """
    count, own = 2 if quick else 4, as_image(world.originals[text])
    other = None if control is None else as_image(control)
    images = world.run(
        "MemorizationAudit",
        model=model,
        vae=world.vae,
        positive=world.encode(text),
        negative=world.encode(""),
        image=own,
        control_image=other,
        steps=5 if quick else 50,
        learning_rate=0.1,
        noise_samples=2 if quick else 8,
        batch_size=count,
        sampling_steps=12,
        cfg=CFG,
        seed=1,
    )[0].split(count)
    compare, targets = (
        host.pack("nodes.neurons.image_similarity").compare_images,
        (own, own, other)[: len(images)],
    )
    return [
        compare(generated, target).replication
        for generated, target in zip(images, targets, strict=True)
    ]


def as_image(render: np.ndarray) -> torch.Tensor:
    """A render as ComfyUI's IMAGE."""
    return torch.from_numpy(render.astype(np.float32) / 255)[None]
