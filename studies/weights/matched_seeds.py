"""Edits at the prompt's loss where every person is read with four noise seeds, on other people than
matched.py has.

`python run.py study weights matched_seeds` writes its result to
``studies/results/weights_matched_seeds.json``. One noise decides an attribute of one image; here
what is reached and what is kept of a person are means over four. "Kept" counts the person's other
attributes that are read as they are. Ways: directions fitted to labels, directions that two phrases
train (phrases.py), the phrase in the prompt, and for red hair the prompt that names the person's
own style in red. Every edit is kept as it is done.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from ..common import results
from ..world import captions
from ..world.faces import ATTRIBUTES, IDENTITY
from ..world.release import ASSETS
from . import gradual, phrases
from .matched import GUIDED, matched_difference
from .people import Person
from .release import ASSET
from .setup import EDITS, NOISE, Study, factors, fractions, load, prompts, truth

NOISE_SEEDS, MEMBERS, QUICK = 4, 50, 3
#: Members whom matched.py may have measured are left out: the first so many of the random order.
LEFT_OUT = 128
STRENGTHS = (0.5, 0.75, 1.0)
OWN_STYLE = "prompt, own style"


def lacking(study: Study, name: str, count: int) -> list[Person]:
    """Members without the attribute, none of matched.py's; for red hair, with hair of a color."""
    every = study.space.members
    order = np.random.default_rng(20261122).permutation(len(every))
    measured = {every[number] for number in order[:LEFT_OUT]}
    group = gradual.lacking(study, name, len(every))
    return [one for one in group if one.name not in measured][:count]


def asking(group: list[Person], name: str, way: str) -> list[str]:
    """Prompts that ask for the attribute: by the phrase of EDITS, or in each person's own style."""
    if way != OWN_STYLE:
        return prompts(group, extra=EDITS[name][2])
    return [prompts([one], extra=captions.HAIR[one.face.hair].format("red"))[0] for one in group]


def measure_edit(study: Study, name: str, group: list[Person]) -> dict[str, list]:
    """For each way the fractions of every person, reached and kept: means over the noise seeds."""
    attribute, values, *_ = EDITS[name]
    column = IDENTITY.index(attribute)
    numbers = [ATTRIBUTES[attribute].index(value) for value in values]
    rest = [place for place in range(len(IDENTITY)) if place != column]
    own = truth(group)
    points = study.points(group)
    plain = factors(points)
    texts = prompts(group)

    def read(flats: torch.Tensor, captions: list[str]) -> list[list[float]]:
        rows = []
        for noise in range(NOISE_SEEDS):
            after = study.read(flats, captions, NOISE + 100_000 * (noise + 1), **GUIDED)[0]
            rows.append(
                np.stack([np.isin(after[:, column], numbers), fractions(after, own, rest)], axis=1)
            )
        return np.mean(rows, axis=0).tolist()

    found = {"unedited": read(plain, texts)}
    for way in ("prompt", *([OWN_STYLE] if name == "red hair" else [])):
        found[way] = read(plain, asking(group, name, way))
    for way, direction in (("labels", name), ("phrases", phrases.direction_of(name))):
        for strength in STRENGTHS:
            moved = study.edited(points, f"{direction}: {strength}")
            found[f"{way} {strength}"] = read(moved, texts)
    return found


def run(quick: bool = False) -> Path:
    """Measure and write; ``quick`` takes fewer people and one edit."""
    count = QUICK if quick else MEMBERS
    study = load(count)
    names = list(EDITS)[: 1 if quick else None]
    study = phrases.train(study, names)
    stem = "weights_matched_seeds" + "_quick" * quick
    kept = results.Rows(stem, {"count": count, "space": results.assets_hash(ASSET)})
    numbers: dict[str, dict] = {}
    for name in names:
        group = lacking(study, name, count)
        found = kept.row(name, lambda name=name, group=group: measure_edit(study, name, group))
        rows = {way: np.array(values) for way, values in found.items()}
        for way, values in rows.items():
            for place, what in enumerate(("reached", "kept")):
                numbers[f"{name}, {way}: {what}"] = results.bootstrap(
                    values[:, place],
                    f"{what}, mean over {NOISE_SEEDS} noise seeds a person",
                    "fraction",
                )
        for way in ("labels", "phrases"):
            curve = [rows["unedited"], *(rows[f"{way} {strength}"] for strength in STRENGTHS)]
            for rival in ("prompt", *([OWN_STYLE] if OWN_STYLE in rows else [])):
                joined = np.stack([*curve, rows[rival]], axis=1)
                numbers[f"{name}, {way} less {rival} at its loss: reached"] = results.bootstrap(
                    joined,
                    "reached where as much of the person is kept; paired",
                    "fraction",
                    lambda values: matched_difference(values[:, :-1], values[:, -1]),
                )
        print(
            name, {way: np.round(values.mean(axis=0), 3).tolist() for way, values in rows.items()}
        )
    command = "python run.py study weights matched_seeds" + " --quick" * quick
    path = results.write(stem, command, NOISE, (ASSETS, ASSET), numbers)
    kept.finished()
    return path
