"""Delayed injection (arXiv 2406.09413, appendix I) in the shipped space: an edit that starts at a
timestep.

`python run.py study weights delayed` writes ``studies/results/weights_delayed.json``. Random
members that lack the attribute, W2W Edit at .75 from the start and from later timesteps on: what is
reached, what is kept of the other attributes, and how much of the unedited image stays. Identity
guidance to 60 % of the noise levels, in which the point that takes over acts too.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ..common import results
from ..world.faces import ATTRIBUTES, IDENTITY
from ..world.release import ASSETS
from .editing import TIMESTEPS
from .guidance import WAYS
from .learned_measure import GUIDED
from .matched import KEPT
from .release import ASSET
from .setup import EDITS, NOISE, Study, factors, fractions, load, prompts, truth

NAMES, STRENGTH, COUNT = ("dark skin", "beard"), 0.75, 50


def measure_edit(study: Study, name: str) -> dict[str, dict]:
    """What an edit reaches, keeps and changes from each timestep on."""
    group = study.members(without=name)
    points, texts, own, numbers = study.points(group), prompts(group), truth(group), {}
    base, moved = factors(points), study.edited(points, f"{name}: {STRENGTH}")
    attribute, values, *_ = EDITS[name]
    column = IDENTITY.index(attribute)
    wanted = [ATTRIBUTES[attribute].index(value) for value in values]
    rest = [number for number in range(len(IDENTITY)) if number != column]
    seen, plain = study.read(base, texts, **WAYS[GUIDED])
    known = np.where(own < 0, -1, seen)
    for start in (1000, *TIMESTEPS):
        after, images = study.read(
            base, texts, later=moved, from_timestep=float(start), **WAYS[GUIDED]
        )
        label = f"{name}, T {start}"
        numbers[f"{label}: reached"] = results.fraction(
            np.isin(after[:, column], wanted), f"{name} recognized"
        )
        numbers[f"{label}: kept"] = results.bootstrap(
            fractions(after, known, rest), KEPT["kept"], "fraction"
        )
        change = np.abs(images.astype(np.float32) - plain).mean(axis=(1, 2, 3)) / 255
        what = "mean absolute difference from the unedited image"
        numbers[f"{label}: image change"] = results.bootstrap(change, what, "of the range")
    return numbers


def run(quick: bool = False) -> Path:
    """Measure and write; ``quick`` takes few people and one edit."""
    study, numbers = load(3 if quick else COUNT), {}
    for name in NAMES[: 1 if quick else None]:
        numbers |= measure_edit(study, name)
        print(name, flush=True)
    command = "python run.py study weights delayed" + " --quick" * quick
    return results.write(
        "weights_delayed" + "_quick" * quick, command, NOISE, (ASSETS, ASSET), numbers
    )
