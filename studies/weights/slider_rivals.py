"""Train Slider beside every other way to ask for a concept: four attributes of a person and six
phrases outside the identity.

`python run.py study weights slider_rivals` writes its result to
``studies/results/weights_slider_rivals.json``. Captions of random scenes leave the concept open;
each way asks for it by the same words, in the same noise: Train Slider's LoRA, Edit by Words and
Activation Steering at several strengths, the words in the prompt, and there with weights.
"Reached": the judge reads what is requested; "kept": the fraction of all other attributes that are
read as in the image of the same noise without the edit; "as named": the fraction of what the
caption names that is read. All are means over four noise seeds a caption. Curves are compared with
the prompt where as much is kept, and a way chosen on half of the captions is judged on the other
half. The four attributes are also trained with the node's default inputs, whose base prompt is one
word, and with these for 60 steps at the rate that the help names for the demo. The six phrases are
also tried inside the learned space, on members and beside the prompt there; the four attributes are
in `matched` and `matched_seeds`.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from ..common import host, results
from ..world import dataset
from ..world.autoencoder import CHANNELS
from ..world.faces import Face
from ..world.generate import Generator
from ..world.release import ASSETS, WORLD
from ..world.scenes import Scene
from . import chosen, phrases
from .matched import GUIDED, matched_difference
from .people import Person, varying
from .release import ASSET
from .setup import EDITS, NOISE, Study, factors, load
from .slider_captions import (
    CONCEPTS,
    NAMED,
    OUTSIDE,
    Concept,
    caption,
    named_values,
    scenes,
    traits,
)

SEED, SCENES, QUICK_SCENES, NOISE_SEEDS = 20261129, 16, 4, 4
STEPS, CFG = 12, 3.0
STRENGTHS = {
    "slider": (0.5, 1.0, 1.5, 2.0),
    "defaults": (1.0, 2.0),
    "one prompt": (1.0, 2.0),
    "edit by words": (0.5, 1.0, 1.5),
    "steering": (0.5, 1.0),
    "prompt at weight": (0.8, 1.3),
}
COLUMNS = ("reached", "kept", "as named", "probability", "another value")
SPACE_STRENGTHS, MEMBERS = (0.5, 1.0, 1.5), 16
#: Of the demo workflow, but for more steps: 40 leave a mouth at .59 that 100 bring to .81.
TRAINING = phrases.SETTINGS | {
    "steps": 100,
    "learning_rate": 0.01,
    "guidance_scale": 2.0,
    "batch_size": 4,
    "images": 12,
    "seed": 0,
}
_NO_FILES = {"preview_interval": 0, "filename_prefix": ""}
#: What is changed of the node's defaults: their rate is the paper's, for large models.
DEFAULTS = {
    "defaults": _NO_FILES,
    "one prompt": _NO_FILES | {"steps": 60, "learning_rate": TRAINING["learning_rate"]},
}
#: Captions of so many other scenes are a slider's base prompts.
BASE_PROMPTS = 12
STEERED = {"preset": "custom_ids", "ids": "*-vit-out", "recorded_steps": "all"}
STEERED |= {"seed": SEED, "steps": 8, "cfg": CFG}


@dataclass
class Contest:
    """Everything that asks for a concept on the shipped model, and the judge."""

    generator: Generator
    judge: torch.nn.Module
    count: int

    def measure(self, name: str) -> dict[str, list]:
        """For each way but sliders and each caption the ``COLUMNS``, means over noise seeds."""
        concept = CONCEPTS[name]
        group = scenes(concept, self.count, SEED)
        plain = [caption(scene, concept) for scene in group]
        prompted = [caption(scene, concept, concept.increase) for scene in group]
        model = self.generator.model
        images = {"plain": self.sample(model, plain), "prompt": self.sample(model, prompted)}
        for weight in STRENGTHS["prompt at weight"]:
            asking = f"({concept.increase}:{weight})"
            texts = [caption(scene, concept, asking) for scene in group]
            images[f"prompt at weight {weight}"] = self.sample(model, texts)
        direction = self.direction(concept)
        for strength in STRENGTHS["steering"]:
            images[f"steering {strength}"] = self.sample(self.steered(direction, strength), plain)
        for strength in STRENGTHS["edit by words"]:
            images[f"edit by words {strength}"] = np.concatenate(
                [
                    self.sample(self.with_words(*texts, strength), [texts[0]], place)
                    for place, texts in enumerate(zip(plain, prompted, strict=True))
                ]
            )
        return self.read(images, concept, group)

    def measure_slider(
        self, name: str, lora: dict[str, torch.Tensor], way: str = "slider"
    ) -> dict[str, list]:
        """The same of a LoRA of Train Slider."""
        concept = CONCEPTS[name]
        group = scenes(concept, self.count, SEED)
        plain = [caption(scene, concept) for scene in group]
        images = {"plain": self.sample(self.generator.model, plain)}
        for strength in STRENGTHS[way]:
            images[f"{way} {strength}"] = self.sample(self.with_lora(lora, strength), plain)
        return self.read(images, concept, group)

    def read(
        self, images: dict[str, np.ndarray], concept: Concept, group: list[Scene]
    ) -> dict[str, list]:
        """The ``COLUMNS`` of each way and caption, means over noise seeds."""
        known = [named_values(scene, concept) for scene in group for _ in range(NOISE_SEEDS)]
        return {
            way: rows.reshape(-1, NOISE_SEEDS, len(COLUMNS)).mean(axis=1).tolist()
            for way, rows in read_ways(self.judge, images, concept, known).items()
        }

    def sample(self, model: object, texts: list[str], first: int = 0) -> np.ndarray:
        """Images of every text, each with ``NOISE_SEEDS`` noise seeds of its own."""
        generator = Generator(model, self.generator.clip, self.generator.vae)
        repeated = [text for text in texts for _ in range(NOISE_SEEDS)]
        seed = SEED + NOISE_SEEDS * first
        return generator.sample(repeated, seed, cfg=CFG, steps=STEPS)

    def with_lora(self, lora: dict[str, torch.Tensor], strength: float) -> object:
        """The MODEL with a slider, as Load LoRA puts it on."""
        from comfy.sd import load_lora_for_models

        return load_lora_for_models(self.generator.model, None, lora, strength, 0.0)[0]

    def direction(self, concept: Concept) -> object:
        """A steering direction from captions of four other scenes with either phrase."""
        group = scenes(concept, 4, SEED + 1)
        toward, away = (
            "\n".join(caption(scene, concept, phrase) for scene in group)
            for phrase in (concept.increase, concept.decrease)
        )
        node = host.pack("nodes.activations.nodes_steering").SteeringDirectionFromPrompts
        with torch.inference_mode():
            return node.execute(
                model=self.generator.model,
                clip=self.generator.clip,
                latent={"samples": torch.zeros(1, CHANNELS, 16, 16)},
                toward_prompts=toward,
                away_prompts=away,
                **STEERED,
            ).result[0]

    def steered(self, direction: object, strength: float) -> object:
        """The MODEL with Activation Steering."""
        node = host.pack("nodes.activations.nodes_steering").ActivationSteering
        return node.execute(
            model=self.generator.model,
            direction=direction,
            strength=strength,
            start_percent=0.0,
            end_percent=1.0,
            rows="conditional",
            preserve_norm=False,
        ).result[0]

    def with_words(self, plain: str, prompted: str, strength: float) -> object:
        """The MODEL with the edit of Edit by Words from one caption to the other."""
        edit = host.pack("nodes.activations.word_edit").WordEdit(prompted, plain, strength)
        edited_model = host.pack("nodes.activations.word_edit_comfy").edited_model
        return edited_model(
            self.generator.model, self.generator.clip, [edit], start_percent=0.0, end_percent=1.0
        )


def read_ways(
    judge: torch.nn.Module,
    images: dict[str, np.ndarray],
    concept: Concept,
    known: list[dict[str, int]],
) -> dict[str, np.ndarray]:
    """The ``COLUMNS`` of every image (n, 5) of each way; "plain" is the image without the edit.

    ``known``: for each image the class numbers of what its caption names.
    """
    read = {way: _probabilities(judge, made) for way, made in images.items()}
    before = {name: rows.argmax(axis=1) for name, rows in read["plain"].items()}
    requested = [dataset.LABELS[concept.attribute].index(value) for value in concept.values]
    # A mirrored ground is seen only where it is split.
    others = [name for name in before if name not in (*NAMED[concept.trait], "mirror")]
    found = {}
    for way, odds in read.items():
        after = {name: rows.argmax(axis=1) for name, rows in odds.items()}
        value = after[concept.attribute]
        reached = np.isin(value, requested)
        same = np.mean([after[name] == before[name] for name in others], axis=0)
        named = [
            np.mean([after[name][row] == number for name, number in numbers.items()])
            for row, numbers in enumerate(known)
        ]
        probability = odds[concept.attribute][:, requested].sum(axis=1)
        passing = ~reached & (value != before[concept.attribute])
        found[way] = np.stack([reached, same, named, probability, passing], axis=1)
    return found


def _probabilities(judge: torch.nn.Module, images: np.ndarray) -> dict[str, np.ndarray]:
    pixels = torch.from_numpy(images).permute(0, 3, 1, 2).float() / 255
    with torch.inference_mode():
        logits = judge(pixels)
    return {name: logits[name].float().softmax(dim=1).numpy() for name in dataset.LABELS}


def train(
    generator: Generator, concept: Concept, way: str = "slider"
) -> tuple[dict[str, torch.Tensor], float]:
    """Train Slider by the two phrases: a LoRA, and processor seconds."""
    node = host.pack("nodes.weights.nodes_train_slider").TrainSlider
    others = scenes(concept, BASE_PROMPTS, SEED + 9)
    settings = TRAINING | {
        "base_prompt": "\n".join(caption(scene, concept, "WORD") for scene in others)
    }
    if way in DEFAULTS:
        settings = host.default_inputs(node) | DEFAULTS[way]
    settings |= {"increase": concept.increase, "decrease": concept.decrease}
    started = time.process_time()
    _, loras, *_ = node.execute(
        model=generator.model,
        clip=generator.clip,
        latent={"samples": torch.zeros(1, CHANNELS, 16, 16)},
        **settings,
    ).args
    return loras[0], time.process_time() - started


def numbers_of(name: str, found: dict[str, list], units: str) -> dict[str, dict]:
    """The entries of a result for one concept: every way, curves at the prompt's loss, the choice
    on other units, and how gradually strengths act.
    """
    rows = {way: np.array(values) for way, values in found.items()}
    numbers: dict[str, dict] = {}
    for way, values in rows.items():
        for place, what in enumerate(COLUMNS[:3]):
            numbers[f"{name}, {way}: {what}"] = results.bootstrap(
                values[:, place], f"{what}; {units}", "fraction"
            )
    pairs = {way: values[:, :2] for way, values in rows.items()}
    curves: dict[str, list[str]] = {}
    for way in rows:
        if way not in ("plain", "prompt"):
            curves.setdefault(way.rpartition(" ")[0], []).append(way)
    for curve, ways in curves.items():
        joined = np.stack([pairs["plain"], *(pairs[way] for way in ways), pairs["prompt"]], axis=1)
        numbers[f"{name}, {curve} less prompt at its loss: reached"] = results.bootstrap(
            joined,
            "reached where as much is kept; paired",
            "fraction",
            lambda values: matched_difference(values[:, :-1], values[:, -1]),
        )
        if curve != "prompt at weight":
            numbers |= _gradual(f"{name}, {curve}", [rows["plain"], *(rows[way] for way in ways)])
    ours = [way for curve, ways in curves.items() if curve != "prompt at weight" for way in ways]
    differences, ways = chosen.judged_on_others(pairs, "prompt", ours)
    for place, what in enumerate(("reached", "kept")):
        numbers[f"{name}, chosen on others less prompt: {what}"] = results.bootstrap(
            differences[:, place], f"paired; chosen: {', '.join(ways)}", "fraction"
        )
    return numbers


def means_of(kind: str, measured: dict[str, dict]) -> dict[str, dict]:
    """Reached and kept of every way, means over concepts."""
    numbers: dict[str, dict] = {}
    for way in next(iter(measured.values())):
        means = np.array([np.mean(found[way], axis=0) for found in measured.values()])
        for place, what in enumerate(COLUMNS[:3]):
            numbers[f"{kind}, {way}: {what}"] = results.bootstrap(
                means[:, place], f"{what}, mean over concepts: {', '.join(measured)}", "fraction"
            )
    return numbers


def _gradual(name: str, curve: list[np.ndarray]) -> dict[str, dict]:
    """Rank correlation of strength and the judge's probability, and frames of another value."""
    import scipy.stats

    readings = np.stack([rows[:, 3] for rows in curve], axis=1)
    order = np.arange(readings.shape[1])
    correlations = [
        # Readings that are all alike have no rank: nothing is changed.
        float(scipy.stats.spearmanr(order, row).statistic) if np.ptp(row) else 0.0
        for row in readings
    ]
    passing = np.mean([rows[:, 4] for rows in curve[1:]], axis=0)
    return {
        f"{name}: rank correlation": results.bootstrap(
            np.array(correlations),
            "of strength and the judge's probability of the concept",
            "correlation",
        ),
        f"{name}: another value": results.bootstrap(
            passing, "frames where a value is read that is neither old nor new", "fraction"
        ),
    }


def member_prompts(group: list[Person], concept: Concept, phrase: str = "") -> list[str]:
    """A caption of what varies in a further image of each person, without the concept's trait."""
    texts = []
    for one in group:
        left_out = traits(one.further[0])[concept.trait]
        rest = [text for text in varying(one.further[0]) if text != left_out]
        texts.append(", ".join(["portrait", *([phrase] if phrase else []), *rest]))
    return texts


def measure_in_space(study: Study, name: str, count: int) -> dict[str, list]:
    """The ``COLUMNS`` of a direction that the phrases train in the learned space, on members."""
    concept = CONCEPTS[name]
    group = [one for one in study.members() if _can_change(one.further[0].face, concept)][:count]
    points = study.points(group)
    plain = factors(points)
    texts = member_prompts(group, concept)
    prompted = member_prompts(group, concept, concept.increase)
    images = {
        "plain": study.sampler.sample(plain, texts, NOISE, **GUIDED),
        "prompt": study.sampler.sample(plain, prompted, NOISE, **GUIDED),
    }
    for strength in SPACE_STRENGTHS:
        moved = study.edited(points, f"{concept.increase}: {strength}")
        images[f"phrases {strength}"] = study.sampler.sample(moved, texts, NOISE, **GUIDED)
    known = [named_values(one.further[0], concept) for one in group]
    read = read_ways(study.network, images, concept, known)
    return {way: rows.tolist() for way, rows in read.items()}


def _can_change(face: Face, concept: Concept) -> bool:
    if concept.attribute == "background":
        return True
    seen = concept.attribute != "eyes" or face.accessory != "sunglasses"
    return seen and getattr(face, concept.attribute) not in concept.values


def trained_in_space(study: Study, names: Sequence[str]) -> Study:
    """The study with a direction more for each concept, named as its phrase, all in one training
    on scenes of members whom nothing is measured on.
    """
    node = host.pack("nodes.weights.nodes_train_slider").TrainSlider
    late = study.members(count=len(study.space.members))[-phrases.SCENES :]
    *_, trained = node.execute(
        model=study.sampler.generator.model,
        clip=study.sampler.generator.clip,
        increase="\n".join(CONCEPTS[name].increase for name in names),
        decrease="\n".join(CONCEPTS[name].decrease for name in names),
        base_prompt="\n".join(
            ", ".join(["portrait", "WORD", *varying(one.further[0])]) for one in late
        ),
        latent={"samples": torch.zeros(1, CHANNELS, 16, 16)},
        space=study.space,
        **phrases.SETTINGS,
    ).args
    return Study(trained, study.sampler, study.network, study.count)


def _slider(contest: Contest, name: str, way: str) -> dict:
    lora, seconds = train(contest.generator, CONCEPTS[name], way)
    return {"minutes": seconds / 60, "read": contest.measure_slider(name, lora, way)}


def run(quick: bool = False) -> Path:
    """Measure and write; ``quick`` takes one concept, fewer captions and no space."""
    names = list(CONCEPTS)[: 1 if quick else None]
    count = QUICK_SCENES if quick else SCENES
    stem = "weights_slider_rivals" + "_quick" * quick
    settings = {"count": count, "seeds": NOISE_SEEDS, "world": results.assets_hash(ASSETS)}
    kept = results.Rows(stem, settings | {"space": results.assets_hash(ASSET)})
    numbers: dict[str, dict] = {}
    generator = Generator.load(WORLD)
    contest = Contest(generator, host.pack("nodes.demo.judge").load(WORLD), count)
    measured: dict[str, dict] = {}
    minutes = []
    for name in names:
        measured[name] = dict(kept.row(name, lambda name=name: contest.measure(name)))
        for way in ("slider", *(DEFAULTS if name in EDITS else ())):
            slider = kept.row(
                f"{name}, {way}", lambda name=name, way=way: _slider(contest, name, way)
            )
            measured[name] |= slider["read"]
            if way == "slider":
                minutes.append(slider["minutes"])
        numbers |= numbers_of(name, measured[name], f"captions, {NOISE_SEEDS} noise seeds each")
        means = {way: np.mean(rows, axis=0).round(2) for way, rows in measured[name].items()}
        print(name, {way: values.tolist() for way, values in means.items()})
    numbers["training: processor minutes a slider"] = results.number(
        float(np.mean(minutes)),
        len(minutes),
        "minutes",
        f"{TRAINING['steps']} steps of {TRAINING['batch_size']} images, {BASE_PROMPTS} sampled",
    )
    if not quick:
        for kind, group in (("six phrases", list(OUTSIDE)), ("four attributes", list(EDITS))):
            numbers |= means_of(kind, {name: measured[name] for name in group})
        # Trained only where a row is not kept.
        study = functools.cache(lambda: trained_in_space(load(64), list(OUTSIDE)))
        inside: dict[str, dict] = {}
        for name in OUTSIDE:
            found = inside[name] = kept.row(
                f"{name}, in the space",
                lambda name=name: measure_in_space(study(), name, MEMBERS),
            )
            numbers |= numbers_of(f"{name}, in the space", found, "members of the space")
            print(name, {way: np.mean(rows, 0).round(2).tolist() for way, rows in found.items()})
        numbers |= means_of("six phrases, in the space", inside)
    command = "python run.py study weights slider_rivals" + " --quick" * quick
    path = results.write(stem, command, SEED, (ASSETS, ASSET), numbers)
    kept.finished()
    return path
