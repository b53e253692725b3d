"""Do the neurons of a concept carry it? Hidden units, found by Concept Neurons, switched off and
negated.

Twenty-four pairs of captions that differ in one attribute, and other captions with it to look at
the images. The counts of neurons (ten, and all beyond chance) and both factors are set in advance.
Beside them as many random neurons, and the rival, Activation Steering along the mean difference of
the same captions, at several strengths and at that which does best on these same images.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch

from ..common import host, results
from ..world import captions, dataset, judge
from ..world.autoencoder import CHANNELS
from ..world.faces import COLORLESS_HAIR
from ..world.scenes import random_scene
from .world import CFG, SIZE, WORLD, World

PAIRS, IMAGES, QUICK_IMAGES, BATCH, STEPS = 24, 24, 8, 8, 8
#: Inputs ``count`` of Concept Neurons; 0: all that are beyond chance.
COUNTS = {"ten": 10, "all": 0}
#: Strength of NeMo Neuron Mask: factor 0 and factor -1.
STRENGTHS = {"switched off": 1.0, "negated": 2.0}
STEERING = (-0.5, -1.0, -1.5, -2.0, -3.0, -4.5)
STEERED_IDS = "*-vit-out"
#: Sunglasses hide the eyes, and mirroring shows on split backgrounds only.
_LEFT_OUT = ("eyes", "mirror")


@dataclass(frozen=True)
class Concept:
    """A value of an attribute, and the value in its place in captions without it; none: any
    other.
    """

    attribute: str
    value: str
    instead: str | None = None


CONCEPTS = {
    "sunglasses": Concept("accessory", "sunglasses", "none"),
    "red hair": Concept("hair_color", "red"),
    "beard": Concept("facial_hair", "majestic beard", "none"),
    "black skin": Concept("skin", "black"),
}


def measure(quick: bool) -> dict[str, dict]:
    """Neurons beyond chance, and how often an attribute stays and others change, by concept and
    treatment.
    """
    world, numbers = ConceptWorld(), {}
    for name, concept in list(CONCEPTS.items())[: 1 if quick else None]:
        rng = np.random.default_rng(21)
        present, absent = zip(*(pair(concept, rng) for _ in range(PAIRS)), strict=True)
        texts = [pair(concept, rng)[0] for _ in range(QUICK_IMAGES if quick else IMAGES)]
        numbers |= _treated(
            world, name, concept, texts, _models(world, name, present, absent, numbers, quick)
        )
    return numbers


def pair(concept: Concept, rng: np.random.Generator) -> tuple[str, str]:
    """The caption of a random scene with a concept, and of the same scene without it."""
    scene = random_scene(rng)
    while concept.attribute == "hair_color" and scene.face.hair in COLORLESS_HAIR:
        scene = random_scene(rng)
    others = [value for value in dataset.LABELS[concept.attribute] if value != concept.value]
    instead = concept.instead or str(rng.choice(others))
    faces = (
        replace(scene.face, **{concept.attribute: value}) for value in (concept.value, instead)
    )
    present, absent = (captions.full_caption(replace(scene, face=face)) for face in faces)
    return present, absent


class ConceptWorld(World):
    """The demo model, its judge, and Activation Steering."""

    def __init__(self):
        super().__init__(seeds=2, ordinary=2)
        self.judge = host.pack("nodes.demo.judge").load(WORLD)
        self._steering = host.pack("nodes.activations.nodes_steering")

    def readings(self, model, texts: list[str]) -> np.ndarray:
        """What the judge reads in an image of each caption, each on noise of its own; indices
        (images, labels).
        """
        return np.concatenate(
            [
                self._read(model, texts[first : first + BATCH], 5000 + first)
                for first in range(0, len(texts), BATCH)
            ]
        )

    @torch.inference_mode()
    def _read(self, model, texts: list[str], seed: int) -> np.ndarray:
        encoded = [self.encode(text)[0] for text in texts]
        positive = [[torch.cat([context for context, _ in encoded]), encoded[0][1]]]
        images = host.pack("nodes.host.evaluate").sample_images(
            model,
            self.vae,
            positive,
            self.encode(""),
            (CHANNELS, SIZE // 8, SIZE // 8),
            len(texts),
            seed,
            steps=STEPS,
            cfg=CFG,
        )
        return judge.read(self.judge, (images * 255).round().to(torch.uint8).numpy())[0]

    @torch.inference_mode()
    def direction(self, present: tuple[str, ...], absent: tuple[str, ...]):
        """The mean difference of activations of the same captions, from one noise sample each."""
        how = {
            "preset": "custom_ids",
            "ids": STEERED_IDS,
            "recorded_steps": "all",
            "seed": 1,
            "steps": STEPS,
            "cfg": CFG,
        }
        latent, lists = (
            {"samples": torch.zeros(1, CHANNELS, SIZE // 8, SIZE // 8)},
            map("\n".join, (present, absent)),
        )
        return self._steering.SteeringDirectionFromPrompts.execute(
            self.model, self.clip, latent, *lists, **how
        )[0]

    @torch.inference_mode()
    def steered(self, direction, strength: float):
        """The model with a direction added to its activations."""
        given = (self.model, direction, strength, 0.0, 1.0, "conditional", False)
        return self._steering.ActivationSteering.execute(*given)[0]


def _models(
    world: ConceptWorld, name: str, present: tuple, absent: tuple, numbers: dict, quick: bool
) -> dict:
    """The model by treatment; the neurons that are beyond chance go to ``numbers``."""
    lists = {
        "concept_prompts": "\n".join(present),
        "neutral_prompts": "\n".join(absent),
        "concept": name,
    }
    how = {"neuron_type": "feed_forward", "layers": "all", "seed": 1, "width": SIZE, "height": SIZE}
    given = {"model": world.model, "clip": world.clip, **lists, **how}
    masks = {
        number: world.run("ConceptNeurons", **given, count=count)[0]
        for number, count in COUNTS.items()
    }
    numbers[f"{name}: neurons beyond chance"] = {
        "value": masks["all"].count,
        "n": PAIRS,
        "unit": "neurons",
        "what": f"of 5,632 hidden units, over {PAIRS} pairs of captions",
    }
    models = {}
    for number, mask in masks.items():
        how = {"operation": "random_control", "count": mask.count, "neurons": "", "seed": 3}
        control, _ = world.run("NeuronMaskEdit", model=world.model, mask=mask, **how)
        models |= {
            f"{number} {what}": world.masked(mask, strength) for what, strength in STRENGTHS.items()
        }
        models[f"{number} at random negated"] = world.masked(control, STRENGTHS["negated"])
    direction, strengths = world.direction(present, absent), STEERING[1::2] if quick else STEERING
    return models | {
        f"steering {strength:g}": world.steered(direction, strength) for strength in strengths
    }


def _treated(
    world: ConceptWorld, name: str, concept: Concept, texts: list[str], models: dict
) -> dict[str, dict]:
    labels = list(dataset.LABELS)
    column, value = (
        labels.index(concept.attribute),
        dataset.LABELS[concept.attribute].index(concept.value),
    )
    others = [n for n, label in enumerate(labels) if n != column and label not in _LEFT_OUT]
    plain = world.readings(world.model, texts)
    there = plain[:, column] == value
    numbers = {
        f"{name}: untouched": results.fraction(
            there, f"images of captions with {name} in which it is read"
        )
    }
    stays, changed = {}, {}
    for what, model in models.items():
        found = world.readings(model, texts)[there]
        stays[what], changed[what] = (
            found[:, column] == value,
            (found != plain[there])[:, others].mean(1),
        )
        print(
            f"{name}, {what}: stays {stays[what].mean():.2f}, others {changed[what].mean():.2f}",
            flush=True,
        )
    steering = [what for what in models if what.startswith("steering")]
    best = min(steering, key=lambda what: stays[what].mean() + changed[what].mean())
    stays["steering, its best"], changed["steering, its best"] = stays[best], changed[best]
    for what in stays:
        how = f" ({best})" if what.endswith("best") else ""
        numbers[f"{name}, {what}: stays"] = results.fraction(
            stays[what], f"images that had it and still have it{how}"
        )
        numbers[f"{name}, {what}: others changed"] = results.bootstrap(
            changed[what],
            f"fraction of the other attributes that are read differently{how}",
            "fraction",
        )
    return numbers
