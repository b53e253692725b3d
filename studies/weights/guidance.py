"""Identity guidance: a member's weights on both sides of CFG or on the positive side only, paired,
on random members of the collected space.

`python run.py study weights guidance` writes ``studies/results/weights_guidance.json``. Members are
sampled at random from all of the space; each is judged in two images of other scenes and noise,
which are also compared with renders of the same scenes. Edits are judged on members that lack the
attribute, in one image. The end of the guidance was chosen on forty-eight to ninety-six members
from the end of the same random order, with other noise.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ..common import results
from ..common.similarity import frechet
from ..world import judge
from ..world.faces import ATTRIBUTES, IDENTITY
from ..world.release import ASSETS
from ..world.scenes import render
from .image_sampler import ANCESTRAL
from .release import FILE
from .setup import EDITS, NOISE, Study, factors, fractions, load, prompts, truth

GUIDED_UNTIL = 400.0  # timestep: 60 % of the noise levels
#: How the point acts: the arguments of ``Study.read``.
WAYS = {
    "both sides": ANCESTRAL,
    "positive side": {"one_sided": True, **ANCESTRAL},
    "positive side to 60 %": {
        "one_sided": True,
        "guided_until": GUIDED_UNTIL,
        "then_both": True,
        **ANCESTRAL,
    },
    "positive side to 60 %, then alone": {
        "one_sided": True,
        "guided_until": GUIDED_UNTIL,
        **ANCESTRAL,
    },
}
#: Way, and the one that it is compared with.
COMPARED = (
    ("positive side", "both sides"),
    ("positive side to 60 %", "positive side"),
    ("positive side to 60 %", "positive side to 60 %, then alone"),
)
EDITED = ("dark skin", "red hair")


def measure_identity(study: Study, count: int) -> dict[str, dict]:
    """The fraction of each member's attributes recognized in two images, paired differences, and
    distances.
    """
    group, numbers, found = study.members(count=count), {}, {}
    flats, known = factors(study.points(group)), truth(group)
    ways = {**{f"member, {way}": (flats, more) for way, more in WAYS.items()}}
    ways["member, both sides, 20 Euler steps"] = (flats, {})
    ways["base model"] = (study.base(len(group)), ANCESTRAL)
    true = np.concatenate([[render(one.further[image]) for one in group] for image in (0, 1)])
    wanted = judge.read(study.network, true)[1]
    for name, (weights, more) in ways.items():
        read = [
            study.read(weights, prompts(group, image), NOISE + 10_000 * image, **more)
            for image in (0, 1)
        ]
        found[name] = np.mean([fractions(seen, known) for seen, _ in read], axis=0)
        what = "fraction of the identity's attributes recognized in two images"
        numbers[f"{name}: identity"] = results.bootstrap(found[name], what, "fraction")
        features = judge.read(study.network, np.concatenate([images for _, images in read]))[1]
        numbers[f"{name}: distance to renders"] = results.number(
            frechet(features, wanted),
            len(wanted),
            "Frechet",
            "judge's features of images, and of renders of their scenes",
        )
    for way, other in (*COMPARED, ("both sides", "both sides, 20 Euler steps")):
        gain = found[f"member, {way}"] - found[f"member, {other}"]
        numbers[f"{way} less {other}: identity"] = results.bootstrap(
            gain, "paired difference", "fraction"
        )
    return numbers


def measure_edit(study: Study, name: str, count: int) -> dict[str, dict]:
    """The attribute reached and the other attributes kept, at strength 1, for every way and for the
    prompt.
    """
    group, numbers, reached, kept = study.members(without=name, count=count), {}, {}, {}
    points, texts, known = study.points(group), prompts(group), truth(group)
    attribute, values, words, _ = EDITS[name]
    column = IDENTITY.index(attribute)
    rest = [number for number in range(len(IDENTITY)) if number != column]
    wanted = [ATTRIBUTES[attribute].index(value) for value in values]
    edited = study.edited(
        points, f"{name}: 1", ", ".join(other for other in EDITS if other != name)
    )
    for way, more in WAYS.items():
        before = study.read(factors(points), texts, **more)[0]
        after = study.read(edited, texts, **more)[0]
        reached[way] = np.isin(after[:, column], wanted)
        kept[way] = fractions(after, np.where(known < 0, -1, before), rest)
        if way == "both sides":
            requested = study.read(factors(points), prompts(group, extra=words), **more)[0]
            reached["prompt"] = np.isin(requested[:, column], wanted)
            kept["prompt"] = fractions(requested, np.where(known < 0, -1, before), rest)
            numbers[f"{name}, unedited: reached"] = results.fraction(
                np.isin(before[:, column], wanted), f"{name} recognized"
            )
    for way in reached:
        numbers[f"{name}, {way}: reached"] = results.fraction(reached[way], f"{name} recognized")
        what = "other attributes recognized as before the edit"
        numbers[f"{name}, {way}: kept"] = results.bootstrap(kept[way], what, "fraction")
    for way, other in COMPARED:
        for what, rows in (("reached", reached), ("kept", kept)):
            gain = rows[way].astype(float) - rows[other]
            numbers[f"{name}, {way} less {other}: {what}"] = results.bootstrap(
                gain, "paired difference", "fraction"
            )
    return numbers


def run(quick: bool = False) -> Path:
    """Measure and write; ``quick`` takes fewer members and one edit."""
    count = 3 if quick else 100
    study = load(count, FILE)
    numbers = measure_identity(study, count)
    for name in EDITED[:1] if quick else EDITED:
        numbers |= measure_edit(study, name, count)
    command = "python run.py study weights guidance" + (" --quick" if quick else "")
    return results.write(
        "weights_guidance_quick" if quick else "weights_guidance", command, NOISE, ASSETS, numbers
    )
