"""A layout carried by noise: Composition Noise beside stock img2img, at what each costs the
caption.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ..common import host
from .sheet import Bars, draw

#: Column -> the way of the study.
COLUMNS = {
    "its guide": None,
    "noise as drawn": "noise as drawn",
    "Composition Noise": "photograph, soft",
    "img2img, denoise .85": "photograph, img2img 0.85",
    "img2img, denoise .8": "photograph, img2img 0.8",
    "img2img, denoise .7": "photograph, img2img 0.7",
}
CAPTIONS = 3
BARS = tuple(
    Bars(title, "noise_layouts", {name: f"{of}: {what}" for name, of in COLUMNS.items() if of})
    for title, what in (
        ("layout of\nthe guide\n(24 captions)", "layout"),
        ("captions\nlost", "captions lost"),
    )
)


def make():
    """The figure."""
    from ..conditioning import sampled_images
    from ..noise import layouts
    from ..world import captions

    host.prepare()
    generator, _ = sampled_images.load()
    scenes = [replace(scene, pattern="plain") for scene in sampled_images.scenes(CAPTIONS)]
    texts = [captions.full_caption(one).rsplit(", ", 1)[0] for one in scenes]
    prompts = sampled_images.encoded(generator, texts)
    stock = layouts.sample(generator, prompts, layouts.STEPS, lambda noise: noise)
    scene = layouts.Scene(generator, *layouts.SCENES[0], generator.latents(stock))
    ways, found = scene.ways(), [np.repeat(scene.photo[None], CAPTIONS, 0), stock]
    for of in list(COLUMNS.values())[2:]:
        found.append(layouts.sample(generator, prompts, layouts.STEPS, *ways[of]))
    rows = {_wrapped(text): [images[row] for images in found] for row, text in enumerate(texts)}
    return draw(list(COLUMNS), rows, BARS)


def _wrapped(text: str) -> str:
    return ",\n".join(text.split(", ")[1:])
