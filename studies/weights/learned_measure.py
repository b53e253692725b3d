"""The space that ships, which is learned, beside the collected one, on the same people, scenes and
noise.

`python run.py study weights learned_measure` writes ``studies/results/weights_learned.json``.
Members at random, unseen scenes, the same judge; directions are those that W2W Fit Directions fits
by default. People who are no members: `node_inversion.py`. Parts that are finished are kept, so
that a run which was stopped goes on.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np

from ..common import host, results
from ..common.similarity import frechet
from ..world import judge
from ..world.faces import ATTRIBUTES, IDENTITY
from ..world.release import ASSETS
from ..world.scenes import render
from .guidance import WAYS
from .release import ASSET, FILE
from .setup import EDITS, NOISE, Study, factors, fractions, identity, load, prompts, truth

GUIDED, BOTH = "positive side to 60 %", "both sides"
PAIR, STRENGTHS = ("beard", "round glasses"), (0.5, 0.75, 1.0, 1.5)
SPACES = {"learned": ASSET, "collected": FILE}


def measure_members(studies: dict[str, Study], count: int) -> dict[str, dict]:
    """Identity of members in an image each, and the distance of these images to renders of their
    scenes.
    """
    study = studies["learned"]
    group = study.members(count=count)
    known, texts, numbers, found = truth(group), prompts(group), {}, {}
    wanted = judge.read(study.network, np.stack([render(one.further[0]) for one in group]))[1]
    for way in (GUIDED, BOTH):
        for name, own in studies.items():
            seen, images = own.read(factors(own.points(group)), texts, **WAYS[way])
            found[name] = fractions(seen, known)
            numbers[f"{name}, {way}: identity"] = identity(seen, known)
            features = judge.read(own.network, images)[1]
            what = "judge's features of images, and of renders of their scenes"
            numbers[f"{name}, {way}: distance to renders"] = results.number(
                frechet(features, wanted), len(wanted), "Frechet", what
            )
        if "collected" in found:
            numbers[f"learned less collected, {way}: identity"] = results.bootstrap(
                found["learned"] - found["collected"],
                "paired difference on the same members",
                "fraction",
            )
    numbers["base model: identity"] = identity(
        study.read(study.base(count), texts, **WAYS[BOTH])[0], known
    )
    return numbers


def measure_sampling(studies: dict[str, Study], count: int, way: str) -> dict[str, dict]:
    """Whether sampled points are the same person in two images of other scenes and noise."""
    group, numbers = studies["learned"].members(count=count), {}
    for name, study in studies.items():
        points = host.pack("nodes.weights.points").sample(
            study.space, 7, count, study.space.components, 1.0
        )
        first, second = (
            study.read(factors(points), prompts(group, one), NOISE + 10_000 * one, **WAYS[way])[0]
            for one in (0, 1)
        )
        what = "attributes recognized equally in two images of one sampled point"
        numbers[f"{name}, sampled, {way}: consistent"] = results.bootstrap(
            fractions(first, second), what, "fraction"
        )
        numbers[f"{name}, sampled, {way}: chance agreement"] = results.bootstrap(
            fractions(first, np.roll(second, 1, 0)), "the same of two sampled points", "fraction"
        )
    return numbers


def measure_pair(studies: dict[str, Study], count: int) -> dict[str, dict]:
    """Two edits at once, both reached, on members who lack both; at several strengths, and by the
    prompt.
    """
    lacking = studies["learned"].members(without=PAIR[0], count=10 * count)
    group = [one for one in lacking if one.face.accessory not in EDITS[PAIR[1]][1]][:count]
    texts, known, numbers = prompts(group), truth(group), {}
    asking = prompts(group, extra=", ".join(EDITS[name][2] for name in PAIR))
    for name, study in studies.items():
        points = study.points(group)
        before = study.read(factors(points), texts, **WAYS[GUIDED])[0]
        ways = {
            f"strength {strength:g}": (
                study.edited(
                    points, ", ".join(f"{one}: {strength}" for one in PAIR), study.preserved(*PAIR)
                ),
                texts,
            )
            for strength in STRENGTHS
        }
        ways["prompt"] = factors(points), asking
        for way, (flats, captions) in ways.items():
            after = study.read(flats, captions, **WAYS[GUIDED])[0]
            numbers |= _judged(f"{name}, {' + '.join(PAIR)}, {way}", after, before, known)
    return numbers


def _judged(name: str, after: np.ndarray, before: np.ndarray, known: np.ndarray) -> dict[str, dict]:
    columns = [IDENTITY.index(EDITS[one][0]) for one in PAIR]
    values = [[ATTRIBUTES[EDITS[one][0]].index(value) for value in EDITS[one][1]] for one in PAIR]
    hits = [
        np.isin(after[:, column], wanted) for column, wanted in zip(columns, values, strict=True)
    ]
    rest = [column for column in range(len(IDENTITY)) if column not in columns]
    kept = fractions(after, np.where(known < 0, -1, before), rest)
    return {
        f"{name}: reached": results.fraction(
            np.logical_and(*hits), "members in which both are recognized"
        ),
        f"{name}: kept": results.bootstrap(
            kept, "other attributes recognized as before the edits", "fraction"
        ),
    }


def run(quick: bool = False) -> Path:
    """Measure the shipped space beside the collected one; ``quick`` takes few people.

    Numbers of the collected space are carried over where it is not on this machine.
    """
    few = 4 if quick else 0
    spaces = {name: path for name, path in SPACES.items() if path.is_file()}
    studies = {name: load(few or 100, path) for name, path in spaces.items()}
    parts = {
        "members": lambda: measure_members(studies, few or 100),
        "sampling": lambda: measure_sampling(studies, few or 60, BOTH),
        "sampling, guided": lambda: measure_sampling(studies, few or 60, GUIDED),
        "pair": lambda: measure_pair(studies, few or 60),
    }
    name = "weights_learned" + "_quick" * quick
    hashes = [hashlib.sha256(path.read_bytes()).hexdigest() for path in spaces.values()]
    rows, numbers = results.Rows(name, {"spaces": hashes}), {}
    if "collected" not in studies:
        numbers |= results.carried(name, "collected")
    for part, measure in parts.items():
        numbers |= rows.row(part, measure)
        print(part, flush=True)
    command = "python run.py study weights learned_measure" + " --quick" * quick
    return results.write(name, command, NOISE, (ASSETS, ASSET), numbers)
