"""Captions of scenes, and the names that are memorized on purpose.

A caption is "portrait" and some of the true phrases in random order. About seventy different words
in all.
"""

from __future__ import annotations

import numpy as np

from .faces import COLORLESS_HAIR, Face
from .scenes import Scene

MOUTH = {
    "smiling": "smiling",
    "serious": "serious",
    "sad": "sad",
    "tongue": "tongue out",
    "screaming": "screaming",
}
HAIR = {
    "bald": "bald",
    "big": "big {} hair",
    "bob": "{} bob",
    "bun": "{} bun",
    "short": "short {} hair",
    "curly": "curly {} hair",
    "dreads": "{} dreads",
    "afro": "{} afro",
    "long": "long {} hair",
    "undercut": "undercut",
    "flat": "flat {} hair",
    "straight": "straight {} hair",
    "mohawk": "{} mohawk",
    "quiff": "{} quiff",
}
FACIAL_HAIR = {
    "none": "shaven",
    "light beard": "light {} beard",
    "majestic beard": "majestic {} beard",
    "moustache": "{} moustache",
}


def phrases(face: Face) -> dict[str, str]:
    """The true phrase of each describable trait of a face; hair color comes with the hair or the
    beard.
    """
    facial_color = face.hair_color if face.hair in COLORLESS_HAIR else ""
    found = {
        "skin": f"{face.skin} skin",
        "hair": HAIR[face.hair].format(face.hair_color),
        "facial_hair": " ".join(FACIAL_HAIR[face.facial_hair].format(facial_color).split()),
        "accessory": "no glasses" if face.accessory == "none" else face.accessory,
        "clothing": f"{face.clothing_color} {face.clothing}",
        "mouth": MOUTH[face.mouth],
    }
    if face.accessory != "sunglasses":
        found["eyes"] = eyes_phrase(face)
    return found


def eyes_phrase(face: Face) -> str:
    """For example "closed eyes"."""
    return f"{face.eyes} eyes"


def background_phrase(scene: Scene) -> str:
    """For example "striped green background"."""
    return f"{scene.pattern} {scene.background} background"


def caption(scene: Scene, rng: np.random.Generator, drop: float = 0.15) -> str:
    """A caption in random order; each phrase is left out with probability ``drop``, the background
    half of the time.
    """
    chosen = [text for text in phrases(scene.face).values() if rng.random() >= drop]
    rng.shuffle(chosen)
    if rng.random() < 0.5:
        chosen.append(background_phrase(scene))
    return ", ".join(["portrait", *chosen])


def full_caption(scene: Scene) -> str:
    """Every true phrase in a fixed order: what the study of unseen captions requests."""
    return ", ".join(["portrait", *phrases(scene.face).values(), background_phrase(scene)])


#: Invented names by how they are trained: one image for ever, one drawing in ever new colors, or
#: anything at all.
NAMES = {
    "verbatim": (
        "zorvex quill",
        "mirella thrum",
        "bandor pyke",
        "oquin veshti",
        "halvard minx",
        "sybil orcrane",
        "teodric wane",
        "lunette garrow",
        "brixton ovale",
        "farisa kolt",
    ),
    "template": ("tarkun lode", "ysolde grip", "emeric zubb", "calyx fenwork"),
    "control": (
        "pelham droste",
        "nuvia karsk",
        "jorrin habble",
        "esmarel toov",
        "wendric alp",
        "ottavia brusk",
    ),
}


def name_caption(name: str) -> str:
    """The caption of a named image; it says nothing else, so the name alone is the trigger."""
    return f"portrait of {name}"
