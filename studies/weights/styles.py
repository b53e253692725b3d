"""Another way of drawing: pale pencil drawings of the same scenes, and what they do to people of
the space.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import torch
from PIL import Image, ImageEnhance, ImageFilter

from ..common import results
from ..common.training import device
from ..world import captions
from ..world.scenes import Scene, render
from . import lora_sums
from .grouped import Population, adapted
from .people import Encoded, encode, people
from .population import Trainer, descend
from .setup import Study, factors, identity, prompts, truth

SATURATION, PAPER, COLORED_PAPER = 0.35, 0.45, 0.15
PEOPLE, ROWS, STEPS = 12, 8, 60
STRENGTHS = (0.5, 1.0)


def pencil_drawing(scene: Scene) -> np.ndarray:
    """A scene as a pencil drawing uint8 (128, 128, 3): paler, less colored, with dark outlines."""
    return _drawing(scene, SATURATION, PAPER)


def colored_drawing(scene: Scene) -> np.ndarray:
    """The same outlines uint8 (128, 128, 3) on the scene's full colors, a little paler."""
    return _drawing(scene, 1.0, COLORED_PAPER)


def _drawing(scene: Scene, saturation: float, paper: float) -> np.ndarray:
    image = Image.fromarray(render(scene))
    pale = Image.blend(
        ImageEnhance.Color(image).enhance(saturation), Image.new("RGB", image.size, "white"), paper
    )
    edges = (
        np.asarray(image.convert("L").filter(ImageFilter.FIND_EDGES), np.float32)[..., None] / 255
    )
    edges[:1] = edges[-1:] = edges[:, :1] = edges[:, -1:] = 0
    return (np.asarray(pale, np.float32) * (1 - edges.clip(0, 0.25) * 3)).round().astype(np.uint8)


def saturation(images: np.ndarray) -> np.ndarray:
    """Mean difference of the largest and the smallest color channel of each image (n,), in 0..1."""
    return (images.max(axis=-1).astype(np.float32) - images.min(axis=-1)).mean(axis=(1, 2)) / 255


@cache
def _middle() -> float:
    """The saturation midway between renders and pencil drawings of the same scenes."""
    scenes = [one.scenes[0] for one in people(24)]
    kinds = [np.stack([draw(scene) for scene in scenes]) for draw in (render, pencil_drawing)]
    return float(np.mean([saturation(images).mean() for images in kinds]))


def pencil_fraction(images: np.ndarray) -> dict:
    """The fraction of images that are as pale as pencil drawings."""
    return results.fraction(
        saturation(images) < _middle(), "paler than midway between renders and pencil drawings"
    )


def measure(study: Study) -> dict[str, dict]:
    """A style LoRA on members (appendix H): identity and style at two strengths, and the
    instruments on truth.
    """
    group = study.members()
    texts, known, plain = prompts(group), truth(group), factors(study.points(group))
    style, numbers = train(study.sampler), {}
    drawn = np.stack([pencil_drawing(one.further[0]) for one in group])
    numbers["pencil drawings, judge: identity"] = identity(
        study.judged(drawn), known, " in true pencil drawings"
    )
    numbers["pencil drawings: pencil"] = pencil_fraction(drawn)
    for strength in (0.0, *STRENGTHS):
        layout, flats = lora_sums.together(study.space.layout, plain, style, strength)
        seen, images = study.read(flats, texts, layout=layout)
        numbers[f"style merge, style {strength}: identity"] = identity(seen, known)
        numbers[f"style merge, style {strength}: pencil"] = pencil_fraction(images)
    return numbers


def train(sampler) -> torch.Tensor:
    """A LoRA of the pencil style: flat factors (D,), from drawings of many people whose captions
    say all there is.
    """
    plan = replace(sampler.trainer.plan, rows=ROWS)
    trainer = Trainer(sampler.generator, plan)
    encoded = encode(people(PEOPLE), sampler.generator, pencil_drawing, captions.full_caption)
    data = Encoded(*(part.flatten(0, 1)[None] for part in (encoded.latents, encoded.contexts)))
    population = Population(trainer.layout, 1, plan.seed, device())
    optimizer = torch.optim.AdamW([population.flat], lr=plan.learning_rate, weight_decay=0.01)
    with adapted(trainer.network, population):
        for step in range(STEPS):
            loss = trainer.loss(population, data, torch.Generator().manual_seed(88_000_000 + step))
            descend(optimizer, loss, step, STEPS)
    return population.flat.detach()[0].cpu()
