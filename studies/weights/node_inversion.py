"""W2W Invert as the node runs it: one image of a person who is no member, and a pencil drawing of the same.

`python run.py study weights invert` writes ``studies/results/weights_invert.json``. The node's defaults (the paper's
400 steps at a learning rate of 0.1), in float32, beside the settings of its demo workflow (60 steps at 1); drawings lie
outside the space. Each person is read in another scene, with the point on both sides of CFG.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from ..common import host, results
from ..world.generate import Generator
from ..world.release import ASSETS, WORLD
from ..world.scenes import render
from . import styles
from .image_sampler import ImageSampler
from .inversion import held_out
from .people import caption
from .population import Plan, Trainer
from .release import ASSET
from .setup import NOISE, Study, factors, identity, prompts, truth

PEOPLE, QUICK = 5, 5
#: Steps, learning rate.
SETTINGS = {"the node's defaults": (400, 0.1), "the demo workflow's settings": (60, 1.0)}


def run(quick: bool = False) -> Path:
    """Measure and write; ``quick`` takes fewer people and only the demo workflow's settings."""
    space = host.pack("nodes.weights.space_file").read(ASSET)
    generator, group = Generator.load(WORLD), held_out(QUICK if quick else PEOPLE)
    sampler = ImageSampler(generator, Trainer(generator, Plan()))
    study = Study(space, sampler, host.pack("nodes.demo.judge").load(WORLD), len(group))
    texts, known = prompts(group), truth(group)
    numbers = {"base model: identity": identity(study.read(study.base(len(group)), texts)[0], known)}
    for name, (steps, rate) in list(SETTINGS.items())[quick:]:
        for kind, draw in {"": render, ", pencil drawing": styles.pencil_drawing}.items():
            if kind and steps > 100:
                continue
            found = [
                invert(generator, space, draw(one.scenes[0]), caption(one.scenes[0]), steps, rate) for one in group
            ]
            seen = study.read(factors([point for point, _ in found]), texts)[0]
            what = f"; {steps} steps at {rate:g}, float32"
            numbers[f"{name}{kind}: identity"] = identity(seen, known, what)
            warned = np.array(["nearest member, where members are" in report for _, report in found])
            numbers[f"{name}{kind}: warned"] = results.fraction(warned, f"reports that warn of a point outside{what}")
            print(name, kind, numbers[f"{name}{kind}: identity"]["value"], warned.mean(), flush=True)
    command = "python run.py study weights invert" + (" --quick" if quick else "")
    return results.write("weights_invert_quick" if quick else "weights_invert", command, NOISE, ASSETS, numbers)


def invert(generator, space, image: np.ndarray, text: str, steps: int, rate: float) -> tuple[object, str]:
    """The point that W2W Invert finds for an image uint8 (128, 128, 3), and its report."""
    node = host.pack("nodes.weights.nodes_invert").W2WInvert
    with torch.inference_mode():
        latent = {"samples": generator.vae.encode(torch.from_numpy(image)[None].float() / 255)}
        positive = generator.condition([text])
    given = (generator.model, space, latent, positive, steps, rate, 1e-10, 10_000, 0, "fp32", False, 0, "")
    point, _, _, _, report = node.execute(*given).result
    return point, report
