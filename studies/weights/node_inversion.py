"""W2W Invert as the node runs it: one image of a person who is no member, and a pencil drawing of the same.

`python run.py study weights invert` writes ``studies/results/weights_invert.json``. The node's defaults in the space
that ships, in float32, and the paper's settings in the collected space; drawings lie outside both. Each person is read
in another scene, with the point on both sides of CFG, and on the positive side to 60 % of the noise levels. Points are
kept in .cache/weights/inverted, so that a run which was stopped goes on.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from ..common import host, results
from ..world.release import ASSETS
from ..world.scenes import render
from . import styles
from .guidance import WAYS
from .image_sampler import ANCESTRAL
from .inversion import held_out
from .people import caption, people
from .release import ASSET, FILE
from .setup import NOISE, Study, factors, fractions, identity, load, prompts, truth

POINTS = host.ROOT / ".cache" / "weights" / "inverted"
QUICK = 3
SHOWN = ("both sides", "positive side to 60 %")
DRAWINGS = {"": render, ", pencil drawing": styles.pencil_drawing}


@dataclass(frozen=True)
class Settings:
    """Steps, learning rate and space of an inversion, and how many people and pencil drawings it is measured on."""

    steps: int
    rate: float
    people: int
    drawings: int
    space: Path = ASSET


SETTINGS = {
    "the node's defaults": Settings(120, 0.15, 40, 4),
    "collected space, the paper's settings": Settings(400, 0.1, 10, 2, FILE),
}


def run(quick: bool = False) -> Path:
    """Measure and write; ``quick`` takes fewer people and only the node's defaults."""
    group, numbers = held_out(QUICK if quick else max(one.people for one in SETTINGS.values())), {}
    warn = host.pack("nodes.weights.space_report").warn_outside
    seen_of: dict[str, list[np.ndarray]] = {way: [] for way in SHOWN}
    for name, settings in list(SETTINGS.items())[: 1 if quick else None]:
        study = load(len(group), settings.space)
        if settings.space == ASSET:
            texts, known = prompts(group), truth(group)
            numbers["base model: identity"] = identity(study.read(study.base(len(group)), texts, **ANCESTRAL)[0], known)
            called = np.array([bool(warn(point)) for point in study.points(people(len(study.space.members)))])
            what = "members that would be warned of as points outside"
            numbers["members: warned"] = results.fraction(called, what)
        for kind, draw in DRAWINGS.items():
            count = min(len(group), settings.drawings if kind else settings.people)
            found = [invert(study, draw(one.scenes[0]), one, settings) for one in group[:count]]
            for way in SHOWN:
                seen = study.read(factors(found), texts[:count], **WAYS[way])[0]
                what = f"; {settings.steps} steps at {settings.rate:g}, float32"
                numbers[f"{name}{kind}, {way}: identity"] = identity(seen, known[:count], what)
                if not kind:
                    seen_of[way].append(fractions(seen, known[:count]))
            warned = np.array([bool(warn(point)) for point in found])
            numbers[f"{name}{kind}: warned"] = results.fraction(warned, f"reports that warn of a point outside{what}")
            print(name, kind, numbers[f"{name}{kind}, {way}: identity"]["value"], warned.mean(), flush=True)
    for way, (first, *others) in seen_of.items():
        for other in others:
            gain = first[: len(other)] - other
            numbers[f"the node's defaults less the paper's way, {way}: identity"] = results.bootstrap(
                gain, "paired difference on the same people", "fraction"
            )
    command = "python run.py study weights invert" + (" --quick" if quick else "")
    return results.write("weights_invert_quick" if quick else "weights_invert", command, NOISE, ASSETS, numbers)


def invert(study: Study, image: np.ndarray, one, settings: Settings):
    """The point that W2W Invert finds for an image uint8 (128, 128, 3) of a person, kept as a file."""
    inputs = f"{results.assets_hash(ASSETS)} {settings.steps} {settings.rate} {caption(one.scenes[0])}".encode()
    inputs += settings.space.read_bytes() + image.tobytes()
    path = POINTS / f"{hashlib.sha256(inputs).hexdigest()[:24]}.pt"
    if path.is_file():
        return host.pack("nodes.weights.space").Point(study.space, torch.load(path, weights_only=True), "inverted")
    node, generator = host.pack("nodes.weights.nodes_invert").W2WInvert, study.sampler.generator
    with torch.inference_mode():
        latent = {"samples": generator.vae.encode(torch.from_numpy(image)[None].float() / 255)}
        positive = generator.condition([caption(one.scenes[0])])
    given = (generator.model, study.space, latent, positive, settings.steps, settings.rate)
    point = node.execute(*given, 1e-10, 10_000, 0, "fp32", False, 0, "").result[0]
    POINTS.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp")
    torch.save(point.coefficients, temporary)
    temporary.replace(path)
    return point
