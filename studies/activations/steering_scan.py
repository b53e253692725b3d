"""Constant directions at several sites and strengths: `python run.py study activations words
--steering [--quick]`.

For each of five attributes a direction is computed from four captions with either value. Captions
that do not name the attribute are then sampled along it. Sites and strengths are scanned on two of
the captions of the directions; the best by reached less other attributes changed is reported on ten
other captions, beside the prompt, the prompt from 25 % of the steps, Edit by Words, other
strengths, and a random direction of the same lengths. Units are captions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from fnmatch import fnmatch
from functools import cache, partial

import numpy as np

from ..common import host, results
from ..world.captions import background_phrase, phrases
from ..world.scenes import Scene
from .new_images import CHOSEN_ON, FLOOR, READINGS, REPORTED, scene_of
from .new_images import TARGETS as ALL_TARGETS
from .steering import CFG, STEPS

TARGETS = {
    name: ALL_TARGETS[name]
    for name in ("skin", "hair_color", "facial_hair", "accessory", "background")
}
SITES = {
    "all transformers": "*-vit-out",
    "transformers of the decoder": "up-*-vit-out",
    "transformers of the last level": "up-level2-*-vit-out",
    "residual blocks": "*-res-out",
}
STRENGTHS = (0.3, 0.5, 1.0, 2.0)
CHOICE_SEED, SEED = 50, 0
RIVALS = (FLOOR, "prompt", "prompt from 25 %", "edit 1")
RANDOM = "random direction"


def caption(scene: Scene, attribute: str, value: str | None) -> str:
    """The caption of a scene with a value of an attribute, or without the attribute where it is
    None.
    """
    if value is not None and attribute == "background":
        scene = replace(scene, background=value)
    elif value is not None:
        scene = replace(scene, face=replace(scene.face, **{attribute: value}))
    found = {**phrases(scene.face), "background": background_phrase(scene)}
    found.pop("eyes", None)  # they are named where there are no sunglasses
    if value is None:
        del found[TARGETS[attribute][2]]
    return ", ".join(["portrait", *found.values()])


def directions(edited, attribute: str) -> dict:
    """The direction of each site, between captions with the requested value and with the other
    one.
    """
    toward, away = (
        "\n".join(caption(scene_of(seed), attribute, value) for seed in CHOSEN_ON)
        for value in TARGETS[attribute][:2]
    )
    node = host.pack("nodes.activations.nodes_steering").SteeringDirectionFromPrompts
    given = {
        "preset": "custom_ids",
        "ids": ",".join(dict.fromkeys(SITES.values())),
        "recorded_steps": "all",
    }
    given |= {"seed": CHOICE_SEED, "steps": STEPS, "cfg": CFG}
    whole = node.execute(
        edited.model, edited.clip, {"samples": edited.blank}, toward, away, **given
    ).result[0]
    return {
        site: replace(
            whole,
            vectors={id_: vector for id_, vector in whole.vectors.items() if fnmatch(id_, pattern)},
        )
        for site, pattern in SITES.items()
    }


def named(site: str, strength: float) -> str:
    """The name of a site and a strength."""
    return f"{site}, strength {strength:g}"


def row(
    edited,
    number: int,
    seed: int,
    along: Callable[[str], dict],
    settings: Sequence,
    random: tuple | None,
) -> dict:
    """READINGS of images of one caption by ``ATTRIBUTE/METHOD``: sites and strengths; rivals with a
    ``random`` one.
    """
    word_edit, half = (
        host.pack(f"nodes.activations.{one}") for one in ("word_edit", "word_edit_comfy")
    )
    node = host.pack("nodes.activations.nodes_steering").ActivationSteering
    scene, found = scene_of(number), {}

    def sampled(model, positive):
        return edited.images(model, positive, edited.blank, [seed], CFG, 1.0)

    def steered(direction, strength: float):
        return node.execute(
            edited.model, direction, strength, 0.0, 1.0, "conditional", False
        ).result[0]

    for attribute, (value, *_) in TARGETS.items():
        plain, changed = (caption(scene, attribute, one) for one in (None, value))
        positive = edited.encode(plain)
        before = sampled(edited.model, positive)
        images = {
            named(*one): sampled(steered(along(attribute)[one[0]], one[1]), positive)
            for one in settings
        }
        if random is not None:
            direction = edited.random_direction(along(attribute)[random[0]])
            model = half.edited_model(
                edited.model, edited.clip, [word_edit.WordEdit(changed, plain, 1.0)], 0.0, 1.0
            )
            images |= {
                RANDOM: sampled(steered(direction, random[1]), positive),
                FLOOR: before,
                "prompt": sampled(edited.model, edited.encode(changed)),
                "prompt from 25 %": sampled(edited.model, edited.timed(plain, changed, 0.25)),
                "edit 1": sampled(model, positive),
            }
        was = edited.names(before)[0]
        others = [name for name in was if name != attribute]
        for name, image in images.items():
            read = edited.names(image)[0]
            lost = np.mean([read[other] != was[other] for other in others])
            change = (image - before).abs().mean()
            found[f"{attribute}/{name}"] = [
                float(read[attribute] == value),
                float(lost),
                float(change),
            ]
    return found


def table(rows: list[dict], attributes: Sequence[str], method: str) -> np.ndarray:
    """READINGS by caption, means over attributes: (captions, 3)."""
    return np.array([np.mean([one[f"{name}/{method}"] for name in attributes], 0) for one in rows])


def report(edited, quick: bool) -> dict[str, dict]:
    """Means over captions of every method, the best of the scan less its rivals, and the scan."""
    name = "activations_words_steering" + "_quick" * quick
    along = cache(partial(directions, edited))
    scan = [(site, strength) for site in SITES for strength in STRENGTHS]
    given = {"targets": TARGETS, "sites": SITES, "steps": STEPS}
    rows, done = results.Rows(f"{name}_choice", {**given, "scan": scan}), []
    for one in CHOSEN_ON[:2]:
        done.append(
            rows.row(f"caption {one}", partial(row, edited, one, CHOICE_SEED, along, scan, None))
        )
        print(f"scan, caption {one}", flush=True)
    numbers: dict[str, dict] = {}
    add(
        numbers,
        "scan",
        done,
        list(TARGETS),
        [named(*one) for one in scan],
        "the captions of the scan",
    )
    score = {
        one: numbers[f"scan: {named(*one)}"]["value"]
        - numbers[f"scan: {named(*one)}, {READINGS[1]}"]["value"]
        for one in scan
    }
    best = max(score, key=score.__getitem__)
    print(f"best: {named(*best)}", flush=True)
    settings = list(
        dict.fromkeys(
            [best, *((best[0], strength) for strength in STRENGTHS), ("all transformers", 0.5)]
        )
    )
    rows, done = results.Rows(name, {**given, "settings": settings, "random": best}), []
    for one in REPORTED[: 5 if quick else None]:
        done.append(
            rows.row(f"caption {one}", partial(row, edited, one, SEED, along, settings, best))
        )
        print(f"caption {one}", flush=True)
    methods = [*RIVALS, RANDOM, *(named(*one) for one in settings)]
    for label, attributes in {"all": list(TARGETS), **{one: [one] for one in TARGETS}}.items():
        add(numbers, label, done, attributes, methods, "captions")
        for rival in (*RIVALS, RANDOM):
            pairs = (
                table(done, attributes, named(*best))[:, 0] - table(done, attributes, rival)[:, 0]
            )
            about = (
                f"reached: {named(*best)}, the best of the scan, minus {rival}, paired over "
                "captions"
            )
            numbers[f"{label}: best of the scan minus {rival}"] = results.bootstrap(
                pairs, about, "fraction"
            )
    return numbers


def add(
    numbers: dict,
    label: str,
    rows: list[dict],
    attributes: Sequence[str],
    methods: Sequence[str],
    units: str,
):
    """Add the means of each method's READINGS over captions."""
    for method in methods:
        for column, what in enumerate(READINGS):
            key = f"{label}: {method}" + (f", {what}" if column else "")
            about = f"{what}, mean over {units}" + (
                " and pixels, 0 to 1" if column == 2 else ", by the judge"
            )
            numbers[key] = results.bootstrap(
                table(rows, attributes, method)[:, column], about, "fraction"
            )
