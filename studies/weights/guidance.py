"""Identity guidance: a member's weights on both sides of CFG or on the positive side only, paired, on random members.

`python run.py study weights guidance` writes ``studies/results/weights_guidance.json``. Members are sampled at
random from all of the space; each is judged in two images of other scenes and noise. Edits are judged on members that
lack the attribute, in one image.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ..common import host, results
from ..world.faces import IDENTITY
from ..world.generate import Generator
from ..world.release import ASSETS, WORLD
from . import space_size
from .image_sampler import ImageSampler
from .population import Plan, Trainer
from .release import ASSET
from .setup import EDITS, NOISE, Study, factors, fractions, prompts, truth

WAYS = {"both sides": False, "positive side": True}
EDITED = ("dark skin", "red hair")
COMPONENTS = 64


def measure_identity(study: Study, count: int) -> dict[str, dict]:
    """The fraction of each member's attributes recognized in two images, and the paired difference of both ways."""
    group, numbers, found = study.members(count=count), {}, {}
    flats, known = factors(study.points(group)), truth(group)
    ways = {**{f"member, {way}": (flats, one_sided) for way, one_sided in WAYS.items()}}
    ways["base model"] = (study.base(len(group)), False)
    for name, (weights, one_sided) in ways.items():
        images = [
            study.read(weights, prompts(group, image), NOISE + 10_000 * image, one_sided=one_sided)[0]
            for image in (0, 1)
        ]
        found[name] = np.mean([fractions(seen, known) for seen in images], axis=0)
        what = "fraction of the identity's attributes recognized in two images"
        numbers[f"{name}: identity"] = results.bootstrap(found[name], what, "fraction")
    gain = found["member, positive side"] - found["member, both sides"]
    numbers["positive side less both sides: identity"] = results.bootstrap(gain, "paired difference", "fraction")
    return numbers


def measure_edit(study: Study, name: str, count: int) -> dict[str, dict]:
    """The attribute reached and the other attributes kept, at strength 1, for both ways and for the prompt."""
    group, numbers, reached, kept = study.members(without=name, count=count), {}, {}, {}
    points, texts, known = study.points(group), prompts(group), truth(group)
    attribute, values, words, _ = EDITS[name]
    column = list(IDENTITY).index(attribute)
    rest = [number for number in range(len(IDENTITY)) if number != column]
    from ..world.faces import ATTRIBUTES

    wanted = [ATTRIBUTES[attribute].index(value) for value in values]
    edited = study.edited(points, f"{name}: 1", ", ".join(other for other in EDITS if other != name))
    for way, one_sided in WAYS.items():
        before = study.read(factors(points), texts, one_sided=one_sided)[0]
        after = study.read(edited, texts, one_sided=one_sided)[0]
        reached[way], kept[way] = (
            np.isin(after[:, column], wanted),
            fractions(after, np.where(known < 0, -1, before), rest),
        )
        if not one_sided:
            requested = study.read(factors(points), prompts(group, extra=words))[0]
            reached["prompt"] = np.isin(requested[:, column], wanted)
            kept["prompt"] = fractions(requested, np.where(known < 0, -1, before), rest)
            numbers[f"{name}, unedited: reached"] = results.fraction(
                np.isin(before[:, column], wanted), f"{name} recognized"
            )
    for way in reached:
        numbers[f"{name}, {way}: reached"] = results.fraction(reached[way], f"{name} recognized")
        what = "other attributes recognized as before the edit"
        numbers[f"{name}, {way}: kept"] = results.bootstrap(kept[way], what, "fraction")
    gain = reached["positive side"].astype(float) - reached["both sides"]
    numbers[f"{name}, positive side less both sides: reached"] = results.bootstrap(
        gain, "paired difference", "fraction"
    )
    loss = kept["positive side"] - kept["both sides"]
    numbers[f"{name}, positive side less both sides: kept"] = results.bootstrap(loss, "paired difference", "fraction")
    return numbers


def run(quick: bool = False) -> Path:
    """Measure and write; ``quick`` takes fewer members and one edit."""
    space = space_size.directed(host.pack("nodes.weights.space_file").read(ASSET), COMPONENTS)
    generator, count = Generator.load(WORLD), 4 if quick else 40
    sampler = ImageSampler(generator, Trainer(generator, Plan()))
    study = Study(space, sampler, host.pack("nodes.demo.judge").load(WORLD), count)
    numbers = measure_identity(study, count)
    for name in EDITED[:1] if quick else EDITED:
        numbers |= measure_edit(study, name, count)
    command = "python run.py study weights guidance" + (" --quick" if quick else "")
    return results.write("weights_guidance_quick" if quick else "weights_guidance", command, NOISE, ASSETS, numbers)
