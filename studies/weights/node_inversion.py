"""W2W Invert as the node runs it: one image of a person who is no member, and a pencil drawing of the same.

`python run.py study weights invert` writes ``studies/results/weights_invert.json``. The node's defaults (the paper's
400 steps at a learning rate of 0.1), in float32, beside the settings of its demo workflow (60 steps at 1); drawings lie
outside the space. Each person is read in another scene, with the point on both sides of CFG. Points are kept in
.cache/weights/inverted, so that a run which was stopped goes on.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
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
from .people import caption, people
from .population import Plan, Trainer
from .release import ASSET
from .setup import NOISE, Study, factors, identity, prompts, truth

POINTS = host.ROOT / ".cache" / "weights" / "inverted"
QUICK = 3
DRAWINGS = {"": render, ", pencil drawing": styles.pencil_drawing}


@dataclass(frozen=True)
class Settings:
    """Steps and learning rate of an inversion, and how many people and pencil drawings it is measured on."""

    steps: int
    rate: float
    people: int
    drawings: int


SETTINGS = {
    "the node's defaults": Settings(400, 0.1, 10, 2),
    "the demo workflow's settings": Settings(60, 1.0, 14, 14),
}


def run(quick: bool = False) -> Path:
    """Measure and write; ``quick`` takes fewer people and only the demo workflow's settings."""
    space = host.pack("nodes.weights.space_file").read(ASSET)
    most = QUICK if quick else max(one.people for one in SETTINGS.values())
    generator, group = Generator.load(WORLD), held_out(most)
    sampler = ImageSampler(generator, Trainer(generator, Plan()))
    study = Study(space, sampler, host.pack("nodes.demo.judge").load(WORLD), most)
    texts, known = prompts(group), truth(group)
    numbers = {"base model: identity": identity(study.read(study.base(most), texts)[0], known)}
    warn = host.pack("nodes.weights.space_report").warn_outside
    called = np.array([bool(warn(point)) for point in study.points(people(len(space.members)))])
    numbers["members: warned"] = results.fraction(called, "members that would be warned of as points outside")
    for name, settings in list(SETTINGS.items())[quick:]:
        for kind, draw in DRAWINGS.items():
            count = min(most, settings.drawings if kind else settings.people)
            found = [invert(generator, space, draw(one.scenes[0]), one, settings) for one in group[:count]]
            seen = study.read(factors(found), texts[:count])[0]
            what = f"; {settings.steps} steps at {settings.rate:g}, float32"
            numbers[f"{name}{kind}: identity"] = identity(seen, known[:count], what)
            warned = np.array([bool(warn(point)) for point in found])
            numbers[f"{name}{kind}: warned"] = results.fraction(warned, f"reports that warn of a point outside{what}")
            print(name, kind, numbers[f"{name}{kind}: identity"]["value"], warned.mean(), flush=True)
    command = "python run.py study weights invert" + (" --quick" if quick else "")
    return results.write("weights_invert_quick" if quick else "weights_invert", command, NOISE, ASSETS, numbers)


def invert(generator, space, image: np.ndarray, one, settings: Settings):
    """The point that W2W Invert finds for an image uint8 (128, 128, 3) of a person, kept as a file."""
    inputs = f"{results.assets_hash(ASSETS)} {settings.steps} {settings.rate} {caption(one.scenes[0])}"
    path = POINTS / f"{hashlib.sha256(inputs.encode() + ASSET.read_bytes() + image.tobytes()).hexdigest()[:24]}.pt"
    if path.is_file():
        return host.pack("nodes.weights.space").Point(space, torch.load(path, weights_only=True), "inverted")
    node = host.pack("nodes.weights.nodes_invert").W2WInvert
    with torch.inference_mode():
        latent = {"samples": generator.vae.encode(torch.from_numpy(image)[None].float() / 255)}
        positive = generator.condition([caption(one.scenes[0])])
    given = (generator.model, space, latent, positive, settings.steps, settings.rate, 1e-10, 10_000, 0, "fp32", False)
    point = node.execute(*given, 0, "").result[0]
    POINTS.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp")
    torch.save(point.coefficients, temporary)
    temporary.replace(path)
    return point
