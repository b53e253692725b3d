"""Edits of new images whose caption names the attribute: `python run.py study activations words
--new [--quick]`.

Ten full captions of the demo world, eight attributes: Edit by Words from several parts of the run
on and at the chosen setting, against the changed prompt from the first step, later, and at a higher
CFG. Then two and three edits at once, and edits in an area. The judge reads everything; units are
captions. ``--choose`` scans start, end and strength on other captions and seeds; `CHOSEN` is what
changes the fewest pixels of the settings that reach what the prompt does.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import torch

from ..common import host, results
from ..world.captions import background_phrase, phrases
from ..world.faces import COLORLESS_HAIR
from ..world.scenes import Metadata, Scene, random_scene
from .steering import CFG, STEPS

#: The value that is requested, and what instead where the caption has it; the phrase that names it.
TARGETS = {
    "skin": ("brown", "pale", "skin"),
    "hair": ("long", "short", "hair"),
    "hair_color": ("red", "black", "hair"),
    "facial_hair": ("majestic beard", "none", "facial_hair"),
    "accessory": ("sunglasses", "none", "accessory"),
    "clothing_color": ("green", "red", "clothing"),
    "mouth": ("sad", "smiling", "mouth"),
    "background": ("blue", "yellow", "background"),
}
SEVERAL = {
    "two": ("hair_color", "accessory"),
    "three": ("hair_color", "clothing_color", "accessory"),
}
#: Attributes whose area the judge knows, and its name there.
AREAS = {"hair_color": "hair", "clothing_color": "clothing", "background": "background"}
#: Start, end, strength: the best by --choose; the last changes that a number in a document may
#: have.
CHOSEN = (0.375, 1.0, 3.0)
#: Start, end, strength of Edit by Words or None for the changed prompt, and CFG.
METHODS = {
    "prompt": (0.0, 1.0, None, CFG),
    "prompt from 12.5 %": (0.125, 1.0, None, CFG),
    "prompt from 25 %": (0.25, 1.0, None, CFG),
    "prompt from 37.5 %": (0.375, 1.0, None, CFG),
    "prompt at CFG 6": (0.0, 1.0, None, 2 * CFG),
    "edit 2 from 12.5 %": (0.125, 1.0, 2.0, CFG),
    "edit 2 from 25 %": (0.25, 1.0, 2.0, CFG),
    "edit 2 from 37.5 %": (0.375, 1.0, 2.0, CFG),
    "edit 2 from 50 %": (0.5, 1.0, 2.0, CFG),
    "chosen edit": (*CHOSEN, CFG),
}
#: Those that seeds after the first have too, without several edits and areas.
MAIN = (
    "prompt",(
        "prompt from 25 "
        "%"
    ),(
        "prompt from 37.5 "
        "%"
    ),(
        "edit 2 from 25 "
        "%"
    ),(
        "edit 2 from 37.5 "
        "%"
    ),(
        "chosen "
        "edit"
    ),
)  # fmt: skip
TOGETHER = ("prompt", "prompt from 25 %", "edit 2 from 25 %", "chosen edit")
SCAN = {"prompt": METHODS["prompt"]} | {
    f"{start:g} to {end:g}, strength {strength:g}": (start, end, strength, CFG)
    for start, end, several in (
        (0.25, 1.0, (1.5, 2.0)),
        (0.25, 0.75, (3.0,)),
        (0.375, 1.0, (2.0, 3.0, 4.0)),
        (0.375, 0.75, (4.0,)),
    )
    for strength in several
}
#: Captions by the seeds of their scenes; seeds of the noise in the batches in which they are
#: sampled.
REPORTED, CHOSEN_ON = tuple(range(700, 710)), tuple(range(900, 904))
SEEDS, CHOSEN_SEEDS = ((0,), (1,), (2, 3, 4)), ((50,),)
FLOOR = "caption unchanged"
READINGS = ("reached", "other attributes changed", "pixels changed")


def scene_of(seed: int) -> Scene:
    """A scene whose hair has a color."""
    rng = np.random.default_rng(seed)
    while (scene := random_scene(rng, Metadata())).face.hair in COLORLESS_HAIR:
        pass
    return scene


def texts(scene: Scene, attributes: Sequence[str]) -> tuple[str, str, dict[str, str]]:
    """The caption, the caption with other values for attributes, and these values."""
    has = {
        name: scene.background if name == "background" else getattr(scene.face, name)
        for name in attributes
    }
    wanted = {name: TARGETS[name][has[name] == TARGETS[name][0]] for name in attributes}
    face = replace(
        scene.face, **{name: value for name, value in wanted.items() if name != "background"}
    )
    other = replace(scene, face=face, background=wanted.get("background", scene.background))
    before, after = (
        {**phrases(one.face), "background": background_phrase(one)} for one in (scene, other)
    )
    named = {TARGETS[name][2] for name in attributes}
    # Eyes behind sunglasses are not named, as in the captions that the model was trained on.
    changed = {
        key: after[key] if key in named else text for key, text in before.items() if key in after
    }
    return *(", ".join(["portrait", *parts.values()]) for parts in (before, changed)), wanted


def first_step(model, start: float) -> int:
    """The first step of a run that a part of the run from ``start`` on acts in."""
    import comfy.samplers

    sampling = model.get_model_object("model_sampling")
    sigmas = comfy.samplers.calculate_sigmas(sampling, "normal", STEPS)
    return int((sigmas[:-1] > sampling.percent_to_sigma(start)).sum())


class NewImages:
    """Images of one caption from some seeds, and what the judge reads in them."""

    def __init__(self, edited, scene: Scene, seeds: Sequence[int]):
        self._edited, self._scene, self._seeds = edited, scene, seeds
        self._words, self._half = (
            host.pack(f"nodes.activations.{one}") for one in ("word_edit", "word_edit_comfy")
        )
        self._plain = texts(scene, ())[0]
        self._steps: list[torch.Tensor] = []  # of the caption's run: the latents before each step
        self.before = self._sampled(edited.model, edited.encode(self._plain), CFG)
        self._traits = edited.names(self.before)

    @torch.inference_mode()
    def _sampled(self, model, positive, cfg: float, start: float = 0.0) -> torch.Tensor:
        """Images (B, H, W, 3). What acts from ``start`` on goes on from the caption's latents
        before that step.
        """
        import comfy.sample

        edited, first = self._edited, first_step(self._edited.model, start)
        noise_for = host.pack("nodes.host.evaluate").noise_for
        noise = torch.cat([noise_for(edited.blank, seed) for seed in self._seeds])
        latent = torch.zeros_like(noise)
        if first:
            latent, noise = edited.model.model.process_latent_out(self._steps[first]), latent
        keep = (
            None
            if self._steps
            else lambda step, denoised, latents, steps: self._steps.append(latents.clone())
        )
        given = {
            "disable_noise": first > 0,
            "start_step": first,
            "callback": keep,
            "disable_pbar": True,
        }
        samples = comfy.sample.sample(
            model,
            noise,
            STEPS,
            cfg,
            "euler",
            "normal",
            positive,
            edited.encode(""),
            latent,
            **given,
        )
        return edited._vae.decode(samples)

    def changed(
        self, attributes: Sequence[str], method: tuple, mask: torch.Tensor | None = None
    ) -> torch.Tensor:
        """The images with attributes changed."""
        (start, end, strength, cfg), edited = method, self._edited
        if strength is None:
            positive = edited.timed(*texts(self._scene, attributes)[:2], start)
            return self._sampled(edited.model, positive, cfg, start)
        each = [
            self._words.WordEdit(texts(self._scene, [one])[1], self._plain, strength)
            for one in attributes
        ]
        model = self._half.edited_model(edited.model, edited.clip, each, start, end, mask)
        return self._sampled(model, edited.encode(self._plain), cfg, start)

    def read(self, attributes: Sequence[str], found: torch.Tensor) -> np.ndarray:
        """READINGS of each image: (images, 3)."""
        wanted = texts(self._scene, attributes)[2]
        others = [name for name in self._traits[0] if name not in wanted]
        pixels = (found - self.before).abs().mean((1, 2, 3))
        return np.array([
            (all(one[name] == value for name, value in wanted.items()),
             np.mean([one[name] != was[name] for name in others]), float(change))
            for one, was, change in zip(
                self._edited.names(found), self._traits, pixels, strict=True)
        ], float)  # fmt: skip

    def in_area(self, attribute: str) -> dict[str, list]:
        """Reached, and pixels changed outside of the attribute's area (a little enlarged), with and
        without a mask.
        """
        parts = self._edited.judge.locate(self.before.movedim(-1, 1).float())[0]
        judge = host.pack("nodes.demo.judge")
        area = (parts[:, judge.PARTS.index(AREAS[attribute])] > 0.5).float()
        area = torch.nn.functional.max_pool2d(area[:, None], 9, 1, 4)[:, 0]
        found = {}
        for name, mask in (("in the area", area), ("everywhere", None)):
            images = self.changed([attribute], METHODS["chosen edit"], mask)
            outside = ((images - self.before).abs().mean(-1) * (1 - area)).sum((1, 2)) / (
                1 - area
            ).sum((1, 2))
            found[name] = [self.read([attribute], images)[:, 0].tolist(), outside.tolist()]
        return found


def row(edited, seed: int, seeds: Sequence[int], methods: dict[str, tuple], further: bool) -> dict:
    """READINGS of the images of one caption by ``ATTRIBUTE/METHOD``; ``further``: several at once,
    and areas too.
    """
    images = NewImages(edited, scene_of(seed), seeds)
    plan = {name: ([name], methods) for name in TARGETS}
    if further:
        plan |= {
            name: (several, {one: methods[one] for one in TOGETHER})
            for name, several in SEVERAL.items()
        }
    found: dict = {}
    for label, (attributes, some) in plan.items():
        found[f"{label}/{FLOOR}"] = images.read(attributes, images.before).tolist()
        for name, method in some.items():
            found[f"{label}/{name}"] = images.read(
                attributes, images.changed(attributes, method)
            ).tolist()
    for attribute in AREAS if further else ():
        found |= {
            f"{attribute}, {name}": value for name, value in images.in_area(attribute).items()
        }
    return found


def measured(
    edited, name: str, settings: dict, captions: Sequence[int], blocks: Sequence[Sequence[int]]
) -> list[dict]:
    """For each caption what ``row`` gives, over all seeds; the rows of the first seeds of all
    captions come first.
    """
    rows, methods = results.Rows(name, settings), settings["methods"]
    found: dict[int, list] = {}
    for seeds, caption in itertools.product(blocks, captions):
        later = seeds != blocks[0]
        some = {one: methods[one] for one in MAIN} if later else methods
        make = partial(row, edited, caption, seeds, some, settings["further"] and not later)
        found.setdefault(caption, []).append(rows.row(f"caption {caption}, seeds {seeds}", make))
        print(f"caption {caption}, seeds {seeds}", flush=True)
    return [
        {key: [one[key] for one in some if key in one] for key in some[0]}
        for some in found.values()
    ]


def choose(edited, quick: bool) -> dict[str, dict]:
    """Means over the captions that settings are chosen on."""
    captions = CHOSEN_ON[: 2 if quick else None]
    settings = {"methods": SCAN, "targets": TARGETS, "further": False, "steps": STEPS}
    rows = measured(
        edited, "activations_words_choice" + "_quick" * quick, settings, captions, CHOSEN_SEEDS
    )
    return summary(rows, {"all": list(TARGETS)}, SCAN)


def report(edited, quick: bool) -> dict[str, dict]:
    """Means over the reported captions, and paired differences and ratios to the prompt."""
    captions, blocks = (REPORTED[:5], ((0,),)) if quick else (REPORTED, SEEDS)
    settings = {"methods": METHODS, "targets": TARGETS, "further": True, "steps": STEPS}
    rows = measured(edited, "activations_words_new" + "_quick" * quick, settings, captions, blocks)
    numbers = summary(rows, {"all": list(TARGETS), **{name: [name] for name in TARGETS}}, METHODS)
    numbers |= summary(
        rows, {name: [name] for name in SEVERAL}, {name: METHODS[name] for name in TOGETHER}
    )
    for area in ("in the area", "everywhere"):
        values = np.array([
            np.mean([np.concatenate(one[f"{name}, {area}"], axis=1).mean(1) for name in AREAS], 0)
            for one in rows
        ])  # fmt: skip
        about = "hair, clothing and background, mean over captions"
        numbers[f"mask: {area}"] = results.bootstrap(values[:, 0], f"reached: {about}", "fraction")
        what = f"mean absolute change outside of the area: {about}"
        numbers[f"mask: {area}, pixels changed outside"] = results.bootstrap(
            values[:, 1], what, "fraction"
        )
    return numbers


def summary(
    rows: list[dict], labels: dict[str, Sequence[str]], methods: dict[str, tuple]
) -> dict[str, dict]:
    """Means over captions of each method, and each method less the prompt, paired over captions and
    seeds.
    """
    numbers = {}
    for label, attributes in labels.items():
        for name in (FLOOR, *methods):
            seeds = len(rows[0][f"{attributes[0]}/{name}"])
            found, prompt = (table(rows, attributes, one, seeds) for one in (name, "prompt"))
            for column, what in enumerate(READINGS):
                key = f"{label}: {name}" + (f", {what}" if column else "")
                about = f"{what}, mean over captions" + (
                    " and pixels, 0 to 1" if column == 2 else ", by the judge"
                )
                numbers[key] = results.bootstrap(found[:, column], about, "fraction")
                if name != "prompt" and column < 2:
                    pairs = found[:, column] - prompt[:, column]
                    about = f"{what}: {name} minus prompt, paired over captions"
                    numbers[f"{label}: {name} minus prompt, {what}"] = results.bootstrap(
                        pairs, about, "fraction"
                    )
            if name not in (FLOOR, "prompt"):
                pairs = np.stack([found[:, 2], prompt[:, 2]], axis=1)
                about = f"pixels changed by {name} over those by the prompt, over captions"
                numbers[f"{label}: {name}, pixels over the prompt's"] = results.bootstrap(
                    pairs, about, "ratio", lambda drawn: np.divide(*drawn.mean(0))
                )
    return numbers


def table(rows: list[dict], attributes: Sequence[str], method: str, blocks: int) -> np.ndarray:
    """READINGS of the first blocks of seeds by caption, means over attributes and seeds: (captions,
    3).
    """
    return np.array([
        np.mean(
            [np.concatenate(one[f"{name}/{method}"][:blocks]).mean(0) for name in attributes], 0)
        for one in rows
    ])  # fmt: skip
