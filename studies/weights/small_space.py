"""The space that the demo workflow learns from sixteen people in half a minute: does it hold them?

`python run.py study weights small` writes ``studies/results/weights_small.json``. W2W Train Space
at the workflow's settings, on the images that ship; who is in them is what the judge reads in most
of a person's own five images. Unseen scenes and noise, three images of a person, beside the base
model and the same images read as another person's.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from ..common import host, results
from ..world.release import ASSETS
from .guidance import WAYS
from .learned_measure import BOTH, GUIDED
from .people import SEED, person
from .setup import NOISE, factors, fractions, identity, load, prompts

FOLDER, IMAGES = "avatars-v2-people", 3


def run(quick: bool = False) -> Path:
    """Learn the space, and read its members in images."""
    study, space = load(16), _space()
    point = host.pack("nodes.weights.space").Point
    flats = factors([point(space, row) for row in space.coefficients])
    known = np.stack([_shown(study, name) for name in space.members])
    scenes = [person(number, SEED) for number in range(len(known))]
    numbers: dict[str, dict] = {}
    arms = {f"learned, {way}": (flats, WAYS[way]) for way in (GUIDED, BOTH)}
    arms["base model"] = torch.zeros_like(flats), WAYS[BOTH]
    for name, (weights, how) in arms.items():
        seen = [
            study.read(
                weights,
                prompts(scenes, image % 2),
                NOISE + 10_000 * image,
                layout=space.layout,
                **how,
            )[0]
            for image in range(1 if quick else IMAGES)
        ]
        for label, wanted in {
            "identity": known,
            "identity of the next person": np.roll(known, 1, axis=0),
        }.items():
            values = np.mean([fractions(each, wanted) for each in seen], axis=0)
            numbers[f"{name}: {label}"] = results.bootstrap(
                values, "attributes recognized in images", "fraction"
            )
    own = [study.judged(_images(name)[:1])[0] for name in space.members]
    numbers["a training image: identity"] = identity(np.stack(own), known)
    name = f"weights_small{'_quick' * quick}"
    return results.write(
        name, "python run.py study weights small", 0, [ASSETS, ASSETS.with_name(FOLDER)], numbers
    )


def _space():
    """What the demo workflow trains."""
    from tools.workflows.weights_training import TRAINING

    world = {
        name: host.pack(f"nodes.demo.{name}").load(ASSETS.name)
        for name in ("denoiser", "text_encoder", "autoencoder")
    }
    node = host.pack("nodes.weights.nodes_train_space").W2WTrainSpace
    given = {one.id: getattr(one, "default", None) for one in node.define_schema().inputs}
    given |= dict(zip(("model", "clip", "vae"), world.values(), strict=True)) | TRAINING
    given |= {"folder": FOLDER, "prompt": "portrait", "precision": "fp32", "preview_interval": 0}
    with torch.inference_mode():
        return node.execute(**given).args[0]


def _images(name: str) -> np.ndarray:
    """The images of a person, uint8 (N, 128, 128, 3)."""
    from PIL import Image

    return np.stack(
        [np.array(Image.open(path).convert("RGB")) for path in sorted(_folder(name).glob("*.webp"))]
    )


def _folder(name: str) -> Path:
    return ASSETS.with_name(FOLDER) / name


def _shown(study, name: str) -> np.ndarray:
    """The attributes (5,) that most of a person's images show."""
    return np.array([np.bincount(column).argmax() for column in study.judged(_images(name)).T])
