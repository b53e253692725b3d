"""The identities of the population: images of each, in which everything varies but who it is.

Identity is skin, hair, its color, facial hair and accessory (`faces.IDENTITY`). Mouth, eyes,
clothing, background and place vary; captions name what varies and never the identity, so that only
the weights can carry it. Everybody sits for the same ten scenes, so that members differ by who they
are and by nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from ..world import captions
from ..world.faces import IDENTITY, Face, random_face
from ..world.scenes import Metadata, Scene, random_scene, render

#: Images of a person that are trained on, and further ones for what is measured.
IMAGES, FURTHER = 10, 2
SEED = 406_094_13
#: Labels of a member: name -> whether an identity has it.
LABELS = {
    "dark skin": lambda face: face.skin in ("brown", "black"),
    "pale skin": lambda face: face.skin in ("pale", "light"),
    "beard": lambda face: face.facial_hair in ("light beard", "majestic beard"),
    "moustache": lambda face: face.facial_hair == "moustache",
    "round glasses": lambda face: face.accessory == "round glasses",
    "sunglasses": lambda face: face.accessory == "sunglasses",
    "bald": lambda face: face.hair == "bald",
    "long hair": lambda face: face.hair in ("big", "bob", "long", "straight", "dreads"),
    "afro": lambda face: face.hair in ("afro", "curly"),
    "dark hair": lambda face: face.hair_color in ("black", "brown"),
    "bright hair": lambda face: face.hair_color in ("blonde", "platinum", "gray"),
    "red hair": lambda face: face.hair_color == "red",
    "pink hair": lambda face: face.hair_color == "pink",
}


@dataclass(frozen=True)
class Person:
    """One identity, the scenes it is trained in, and ``further`` ones that no training sees."""

    name: str
    face: Face
    scenes: list[Scene]
    further: list[Scene]

    def labels(self) -> list[float]:
        """1 or 0 for each of LABELS."""
        return [float(holds(self.face)) for holds in LABELS.values()]


def people(count: int, seed: int = SEED) -> list[Person]:
    """The first ``count`` identities of a seed; more of them begin with the same ones."""
    return [person(number, seed) for number in range(count)]


def person(number: int, seed: int = SEED, own_scenes: bool = False) -> Person:
    """One identity and its further scenes, from a generator of its own; the scenes of training are
    everybody's, unless it has ``own_scenes``.
    """
    rng = np.random.default_rng([seed, number])
    common = rng if own_scenes else np.random.default_rng(seed)
    face = random_face(rng)
    kept = {name: getattr(face, name) for name in IDENTITY}
    scenes = [
        random_scene(source, Metadata(), smallest=0.8)
        for source in [common] * IMAGES + [rng] * FURTHER
    ]
    scenes = [replace(scene, face=replace(scene.face, **kept)) for scene in scenes]
    return Person(f"person_{number:04}", face, scenes[:IMAGES], scenes[IMAGES:])


def caption(scene: Scene) -> str:
    """All that varies in an image and has words, and nothing of the identity.

    Eyes are named behind sunglasses, too: else their name would tell who wears none, and a slider
    for sunglasses would work against a prompt with "open eyes".
    """
    return ", ".join(["portrait", *varying(scene)])


def varying(scene: Scene) -> list[str]:
    """The phrases of what varies between a person's images: clothing, mouth, eyes, background."""
    described = captions.phrases(scene.face)
    return [
        described["clothing"],
        described["mouth"],
        captions.eyes_phrase(scene.face),
        captions.background_phrase(scene),
    ]


@dataclass(frozen=True)
class Encoded:
    """Latents in the model's scale float16 (people, IMAGES, 24, 16, 16), and the text model's (…,
    77, 128) of each.
    """

    latents: torch.Tensor
    contexts: torch.Tensor


def encode(group: list[Person], generator, draw=render, say=caption, batch: int = 50) -> Encoded:
    """Images and captions of a group of people as the model sees them; ``draw`` and ``say`` make
    them of a scene.
    """
    scenes = [scene for one in group for scene in one.scenes]
    process, latents, rows = generator.model.get_model_object("process_latent_in"), [], []
    with torch.inference_mode():
        for start in range(0, len(scenes), batch):
            part = scenes[start : start + batch]
            images = torch.from_numpy(np.stack([draw(scene) for scene in part])).float() / 255
            latents.append(process(generator.vae.encode(images)).half())
            rows.append(generator.condition([say(scene) for scene in part])[0][0].half())
    shape = (len(group), IMAGES)
    return Encoded(*(torch.cat(parts).unflatten(0, shape).clone() for parts in (latents, rows)))


def cached(group: list[Person], generator, path: Path) -> Encoded:
    """``encode``, kept in a file."""
    if not path.exists():
        encoded, temporary = encode(group, generator), path.with_suffix(".tmp")
        path.parent.mkdir(parents=True, exist_ok=True)
        torch.save({"latents": encoded.latents, "contexts": encoded.contexts}, temporary)
        temporary.replace(path)
    return Encoded(**torch.load(path, weights_only=True))
