"""The concepts that sliders are trained for, and captions that leave them open."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..world import captions, dataset
from ..world.scenes import Scene, random_scene
from .setup import EDITS


@dataclass(frozen=True)
class Concept:
    """The values of an attribute that a phrase asks for, the phrase for it and the one against it,
    and the trait of the caption that leaves it open when it is taken out.
    """

    attribute: str
    values: tuple[str, ...]
    increase: str
    decrease: str
    trait: str


OUTSIDE = {
    "smiling": Concept("mouth", ("smiling",), "smiling", "sad", "mouth"),
    "screaming": Concept("mouth", ("screaming",), "screaming", "serious", "mouth"),
    "closed eyes": Concept("eyes", ("closed",), "closed eyes", "open eyes", "eyes"),
    "green clothes": Concept(
        "clothing_color", ("green",), "green hoodie", "white hoodie", "clothing"
    ),
    "overall": Concept("clothing", ("overall",), "blue overall", "blue hoodie", "clothing"),
    "blue ground": Concept(
        "background",
        ("blue",),
        "plain blue background",
        "plain yellow background",
        "background",
    ),
}
_TRAITS = {"hair_color": "hair"}
CONCEPTS = OUTSIDE | {
    name: Concept(attribute, values, increase, decrease, _TRAITS.get(attribute, attribute))
    for name, (attribute, values, increase, decrease) in EDITS.items()
}
#: Trait of a caption -> the attributes that it names.
NAMED = {
    "skin": ("skin",),
    "hair": ("hair", "hair_color"),
    "facial_hair": ("facial_hair",),
    "accessory": ("accessory",),
    "clothing": ("clothing", "clothing_color"),
    "mouth": ("mouth",),
    "eyes": ("eyes",),
    "background": ("background", "pattern"),
}


def scenes(concept: Concept, count: int, seed: int) -> list[Scene]:
    """Random scenes in which the concept can be seen and is not there already."""
    rng = np.random.default_rng(seed)
    found: list[Scene] = []
    while len(found) < count:
        scene = random_scene(rng)
        known = dict(zip(dataset.LABELS, dataset.labels(scene), strict=True))
        value = known[concept.attribute]
        requested = [dataset.LABELS[concept.attribute].index(one) for one in concept.values]
        if value >= 0 and value not in requested:
            found.append(scene)
    return found


def traits(scene: Scene) -> dict[str, str]:
    """The phrase of every trait of a scene."""
    return captions.phrases(scene.face) | {"background": captions.background_phrase(scene)}


def caption(scene: Scene, concept: Concept, phrase: str = "") -> str:
    """The scene's full caption without the concept's trait, with a phrase before the rest.

    Behind the ground, where no caption of the training has one, "green hoodie" makes black ones.
    """
    rest = [text for trait, text in traits(scene).items() if trait != concept.trait]
    return ", ".join(["portrait", *([phrase] if phrase else []), *rest])


def named_values(scene: Scene, concept: Concept) -> dict[str, int]:
    """The class number of every attribute that the caption names; those that cannot be seen, and
    the concept's, are left out.
    """
    known = dict(zip(dataset.LABELS, dataset.labels(scene), strict=True))
    named = [
        attribute for trait in traits(scene) if trait != concept.trait for attribute in NAMED[trait]
    ]
    return {name: known[name] for name in named if known[name] >= 0}
