"""W2W Invert as the node runs it: one image of a person who is no member, and pencil and colored
drawings of the same.

`python run.py study weights invert` writes ``studies/results/weights_invert.json``. The node's
defaults in the space that ships, in float32, and the paper's settings in the collected space;
drawings lie outside both. Each person is read in another scene, with the point on both sides of
CFG, and on the positive side to 60 % of the noise levels. Rivals on the same people: a LoRA of the
space's layers and rank from that image, whose steps and rate are the best on ten others; and a
prompt that names each of the person's attributes. Points are kept in .cache/weights/inverted, so
that a run which was stopped goes on.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from ..common import host, results
from ..world import captions, dataset, judge
from ..world.faces import IDENTITY
from ..world.release import ASSETS
from ..world.scenes import render
from . import styles
from .guidance import WAYS
from .image_sampler import ANCESTRAL
from .inversion import LORA_ONE, find, held_out
from .people import caption, encode, people
from .release import ASSET, FILE
from .setup import NOISE, Study, factors, fractions, identity, load, prompts, truth

POINTS = host.ROOT / ".cache" / "weights" / "inverted"
QUICK = 3
SHOWN = ("both sides", "positive side to 60 %")
DRAWINGS = {
    "": render,
    ", pencil drawing": styles.pencil_drawing,
    ", colored drawing": styles.colored_drawing,
}
#: Steps, a row each, and rates that a LoRA is tried with: up to the 720 rows of the node's defaults
#: (120 steps of six), and beyond the rate that is best with 200 (.018; .006 is worse there).
TRIED = ((400, 0.018), (720, 0.018), (720, 0.054))
#: On so many people of numbers from here on.
TRIERS, OTHERS = 10, 910_000
#: Attributes that a pencil drawing shows.
DRAWN = [IDENTITY.index(name) for name in ("hair", "facial_hair", "accessory")]

#: Numbers of images, and people that they are measured on: the node has one prompt for all of them.
IMAGES, SEVERAL, PROMPT = (1, 3, 10), 12, "portrait"

_SCENE = [
    list(dataset.LABELS).index(name)
    for name in ("clothing", "clothing_color", "mouth", "background", "pattern")
]
_SCENE_ABOUT = "what the caption of the scene names, recognized", "fraction"


@dataclass(frozen=True)
class Settings:
    """Steps, learning rate and space of an inversion, and how many people and drawings it is
    measured on.
    """

    steps: int
    rate: float
    people: int
    drawings: int
    space: Path = ASSET


SETTINGS = {
    "the node's defaults": Settings(120, 0.15, 40, 12),
    "collected space, the paper's settings": Settings(400, 0.1, 10, 2, FILE),
}


def run(quick: bool = False) -> Path:
    """Measure and write; ``quick`` takes fewer people and only the node's defaults.

    Numbers of the collected space are carried over where it is not on this machine.
    """
    group, numbers = held_out(QUICK if quick else max(one.people for one in SETTINGS.values())), {}
    warn = host.pack("nodes.weights.space_report").warn_outside
    seen_of: dict[str, list[np.ndarray]] = {way: [] for way in SHOWN}
    followed: dict[str, np.ndarray] = {}
    for name, settings in list(SETTINGS.items())[: 1 if quick else None]:
        if not settings.space.is_file():
            numbers |= results.carried("weights_invert", name)
            continue
        study = load(len(group), settings.space)
        if settings.space == ASSET:
            texts, known = prompts(group), truth(group)
            numbers["base model: identity"] = identity(
                study.read(study.base(len(group)), texts, **ANCESTRAL)[0], known
            )
            called = np.array(
                [bool(warn(point)) for point in study.points(people(len(study.space.members)))]
            )
            what = "members that would be warned of as points outside"
            numbers["members: warned"] = results.fraction(called, what)
        for kind, draw in DRAWINGS.items():
            count = min(len(group), settings.drawings if kind else settings.people)
            found = [
                invert(study, [draw(one.scenes[0])], caption(one.scenes[0]), settings)
                for one in group[:count]
            ]
            for way in SHOWN:
                seen, images = study.read(factors(found), texts[:count], **WAYS[way])
                what = f"; {settings.steps} steps at {settings.rate:g}, float32"
                numbers[f"{name}{kind}, {way}: identity"] = identity(seen, known[:count], what)
                if kind:
                    numbers[f"{name}{kind}, {way}: drawn attributes"] = results.bootstrap(
                        fractions(seen, known[:count], DRAWN),
                        f"hair, facial hair and accessory, recognized{what}",
                        "fraction",
                    )
                else:
                    seen_of[way].append(fractions(seen, known[:count]))
                    followed.setdefault(way, scene_followed(study, images, group))
                    numbers[f"{name}, {way}: scene"] = results.bootstrap(
                        scene_followed(study, images, group), *_SCENE_ABOUT
                    )
            warned = np.array([bool(warn(point)) for point in found])
            numbers[f"{name}{kind}: warned"] = results.fraction(
                warned, f"reports that warn of a point outside{what}"
            )
            print(
                name,
                kind,
                numbers[f"{name}{kind}, {way}: identity"]["value"],
                warned.mean(),
                flush=True,
            )
        if settings.space == ASSET and not quick:
            numbers |= _rivals(study, group, seen_of, followed)
    for way, (first, *others) in seen_of.items():
        for other in others:
            gain = first[: len(other)] - other
            numbers[f"the node's defaults less the paper's way, {way}: identity"] = (
                results.bootstrap(gain, "paired difference on the same people", "fraction")
            )
    command = "python run.py study weights invert" + (" --quick" if quick else "")
    return results.write(
        "weights_invert_quick" if quick else "weights_invert",
        command,
        NOISE,
        (ASSETS, ASSET),
        numbers,
    )


def run_images(quick: bool = False) -> Path:
    """Measure the node at its defaults on one, three and ten images of a person with a prompt for
    all; and write.
    """
    group, settings = held_out(QUICK if quick else SEVERAL), SETTINGS["the node's defaults"]
    study, numbers, first = load(len(group), settings.space), {}, dict[str, np.ndarray]()
    for count in IMAGES[: 2 if quick else None]:
        found = []
        for one in group:
            found.append(
                invert(study, [render(scene) for scene in one.scenes[:count]], PROMPT, settings)
            )
            print(count, one.name, flush=True)
        for way in SHOWN:
            seen = fractions(
                study.read(factors(found), prompts(group), **WAYS[way])[0], truth(group)
            )
            about = f"{count} image{'s' * (count > 1)}, {way}: identity"
            numbers[about] = results.bootstrap(
                seen, "attributes recognized in an unseen scene", "fraction"
            )
            if count > 1:
                gain = seen - first[way]
                numbers[f"{about} less one's"] = results.bootstrap(
                    gain, "paired on the same people", "fraction"
                )
            first.setdefault(way, seen)
    command = "python run.py study weights images" + (" --quick" if quick else "")
    return results.write(
        "weights_images" + "_quick" * quick, command, NOISE, (ASSETS, ASSET), numbers
    )


def _rivals(study: Study, group: list, seen_of: dict, followed: dict) -> dict[str, dict]:
    """A LoRA of each person's image, and a prompt that names the person, beside the node on the
    same people.
    """
    numbers, generator, others = {}, study.sampler.generator, held_out(TRIERS, OTHERS)
    tried, known = encode(others, generator), truth(others)
    rows = results.Rows("weights_invert_lora", {"people": TRIERS, "first": OTHERS, "way": SHOWN[1]})

    def score(steps: int, rate: float) -> dict:
        flats, _ = find(study.sampler, study.space, tried, LORA_ONE, steps, rate)
        seen = study.read(flats, prompts(others), **WAYS[SHOWN[1]])[0]
        return {"identity": float(fractions(seen, known).mean())}

    scores = {
        each: rows.row("{} {}".format(*each), lambda each=each: score(*each))["identity"]
        for each in TRIED
    }
    steps, rate = max(scores, key=scores.__getitem__)
    what = f"best on other people, at a rate of {rate:g}"
    numbers[f"{LORA_ONE}: steps"] = results.number(steps, TRIERS, "steps", what)
    flats, _ = find(study.sampler, study.space, encode(group, generator), LORA_ONE, steps, rate)
    ways = {
        LORA_ONE: (flats, prompts(group)),
        "the base model": (study.base(len(group)), prompts(group)),
        "the base model, each attribute named": (study.base(len(group)), named(group)),
    }
    paired = "paired difference on the same people", "fraction"
    for name, (flats, texts) in ways.items():
        for way in SHOWN:
            seen, images = study.read(flats, texts, **WAYS[way])
            scene, about = scene_followed(study, images, group), f"{name}, {way}"
            numbers[f"{about}: identity"] = identity(seen, truth(group))
            numbers[f"{about}: scene"] = results.bootstrap(scene, *_SCENE_ABOUT)
            less = f"the node's defaults less {about}"
            gain = seen_of[way][0] - fractions(seen, truth(group))
            numbers[f"{less}: identity"] = results.bootstrap(gain, *paired)
            numbers[f"{less}: scene"] = results.bootstrap(followed[way] - scene, *paired)
            print(about, numbers[f"{about}: identity"]["value"], scene.mean(), flush=True)
    rows.finished()
    return numbers


def scene_followed(study: Study, images: np.ndarray, group: list) -> np.ndarray:
    """For each person the fraction (n,) of what the caption of the scene names that is read in the
    image.
    """
    wanted = np.array([dataset.labels(one.further[0]) for one in group[: len(images)]])
    return fractions(judge.read(study.network, images)[0], wanted, _SCENE)


def named(group: list) -> list[str]:
    """Captions of the scenes that are judged, which name everything that is seen."""
    return [captions.full_caption(one.further[0]) for one in group]


def invert(study: Study, images: list[np.ndarray], text: str, settings: Settings):
    """The point that W2W Invert finds for images uint8 (128, 128, 3) of a person and a prompt, kept
    as a file.
    """
    inputs = f"{results.assets_hash(ASSETS)} {settings.steps} {settings.rate} {text}".encode()
    inputs += settings.space.read_bytes() + b"".join(image.tobytes() for image in images)
    path = POINTS / f"{hashlib.sha256(inputs).hexdigest()[:24]}.pt"
    if path.is_file():
        return host.pack("nodes.weights.space").Point(
            study.space, torch.load(path, weights_only=True), "inverted"
        )
    node, generator = host.pack("nodes.weights.nodes_invert").W2WInvert, study.sampler.generator
    with torch.inference_mode():
        latent = {"samples": generator.vae.encode(torch.from_numpy(np.stack(images)).float() / 255)}
        positive = generator.condition([text])
    given = (generator.model, study.space, latent, positive, settings.steps, settings.rate)
    point = node.execute(*given, 1e-10, 10_000, 0, "fp32", False, 0, "").result[0]
    POINTS.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp")
    torch.save(point.coefficients, temporary)
    temporary.replace(path)
    return point
