"""Whether a slider moves gradually, where it acts, and on whom: what the judge reads along W2W
Edit's strengths from 0 to 1.

`python run.py study weights gradual` writes ``studies/results/weights_gradual.json``, and beside
the space what its sliders do, ``SIDECAR``. Members who lack the attribute, one unseen scene and
noise of each, identity guidance to 60 %, directions as W2W Fit Directions fits them by default, and
those that two phrases train (phrases.py). For the member of the first workflow every slider is
tried at 1 with its prompt and noise, on candidates at random.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import torch

from ..common import host, results
from ..world.faces import ATTRIBUTES, Face
from ..world.release import ASSETS
from . import phrases
from .guidance import WAYS
from .learned_measure import GUIDED
from .people import LABELS, SEED, Person, person
from .release import ASSET
from .setup import EDITS, NOISE, Study, factors, load, prompts

#: Label -> the attribute that it is of.
LABELED = {
    "dark skin": "skin",
    "pale skin": "skin",
    "beard": "facial_hair",
    "moustache": "facial_hair",
    "round glasses": "accessory",
    "sunglasses": "accessory",
    "bald": "hair",
    "long hair": "hair",
    "afro": "hair",
    "dark hair": "hair_color",
    "bright hair": "hair_color",
    "red hair": "hair_color",
    "pink hair": "hair_color",
}
STRENGTHS = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
MEMBERS, QUICK = 16, 3
#: A member and so many others, with the first workflow's prompt and noise.
FRONT = "person_0001"
CANDIDATES, PROMPT, SEED_OF_NOISE = 8, "blue hoodie, smiling, open eyes, plain green background", 5
SIDECAR = ASSET.with_suffix(".sliders.json")
UNITS = {
    "rank correlation": "of strength and the judge's probability of the attribute, along a slider",
    "largest step": "of the rise of that probability, the fraction between two of six strengths",
    "another value": "frames where neither the value at 0 nor the attribute is recognized",
    "reached": "members in whom the attribute is recognized at a strength of 1",
    "appears": "least strength at which the attribute is recognized, where it is at one",
}


def values_of(label: str) -> tuple[str, ...]:
    """The values of its attribute that a label holds for."""
    plain = Face(**{name: values[0] for name, values in ATTRIBUTES.items()})
    attribute = LABELED[label]
    return tuple(
        value
        for value in ATTRIBUTES[attribute]
        if LABELS[label](dataclasses.replace(plain, **{attribute: value}))
    )


def lacking(study: Study, slider: str, count: int) -> list[Person]:
    """Members at random without the attribute; for a color of hair, with hair that has one."""
    attribute = LABELED[slider]
    values = values_of(slider)
    order = np.random.default_rng(20261122).permutation(len(study.space.members))
    group = []
    for number in order:
        one = person(int(number), SEED)
        seen = attribute != "hair_color" or one.face.hair not in ("bald", "undercut")
        if seen and getattr(one.face, attribute) not in values:
            group.append(one)
    return group[:count]


def read_along(
    study: Study, slider: str, group: list[Person], direction: str
) -> tuple[np.ndarray, np.ndarray]:
    """The judge's probability of the slider's attribute, and the value of it that the judge
    recognizes along a direction: each (members, strengths).
    """
    attribute = LABELED[slider]
    numbers = [ATTRIBUTES[attribute].index(value) for value in values_of(slider)]
    texts, points = prompts(group), study.points(group)
    probabilities, recognized = [], []
    for strength in STRENGTHS:
        flats = study.edited(points, f"{direction}: {strength:g}") if strength else factors(points)
        images = study.sampler.sample(flats, texts, NOISE, **WAYS[GUIDED])
        pixels = torch.from_numpy(images).permute(0, 3, 1, 2).float() / 255
        with torch.inference_mode():
            odds = study.network(pixels)[attribute].float().softmax(dim=-1)
        probabilities.append(odds[:, numbers].sum(dim=-1).numpy())
        recognized.append(odds.argmax(dim=-1).numpy())
    return np.stack(probabilities, axis=1), np.stack(recognized, axis=1)


def judged(slider: str, probabilities: np.ndarray, recognized: np.ndarray) -> dict[str, list]:
    """What ``UNITS`` names, for each member."""
    import scipy.stats

    numbers = [ATTRIBUTES[LABELED[slider]].index(value) for value in values_of(slider)]
    correlations = [
        # Readings that are all alike have no rank: the slider does nothing.
        float(scipy.stats.spearmanr(STRENGTHS, row).statistic) if np.ptp(row) else 0.0
        for row in probabilities
    ]
    rises = np.diff(probabilities, axis=1)
    total = np.maximum(rises, 0).sum(axis=1).clip(1e-9)
    start = recognized[:, :1]
    shown = np.isin(recognized, numbers)
    other = ~shown & (recognized != start)
    first = np.array(STRENGTHS)[shown.argmax(axis=1)]
    return {
        "rank correlation": correlations,
        "largest step": (np.maximum(rises.max(axis=1), 0) / total).tolist(),
        "another value": other[:, 1:].mean(axis=1).tolist(),
        "reached": shown[:, -1].tolist(),
        "appears": first[shown.any(axis=1)].tolist(),
    }


def acting(study: Study, person_number: int) -> list[bool]:
    """For each label whether its slider at 1 shows on a member, with the first workflow's prompt
    and noise.
    """
    point = study.points([person(person_number, SEED)])[0]
    found = []
    for label, attribute in LABELED.items():
        flats = study.edited([point], f"{label}: 1")
        texts = [f"portrait, {PROMPT}"]
        images = study.sampler.sample(flats, texts, SEED_OF_NOISE, **WAYS[GUIDED])
        pixels = torch.from_numpy(images).permute(0, 3, 1, 2).float() / 255
        with torch.inference_mode():
            number = int(study.network(pixels)[attribute].argmax(dim=-1))
        found.append(ATTRIBUTES[attribute][number] in values_of(label))
    return found


def run(quick: bool = False) -> Path:
    """Measure and write; ``quick`` takes few members. Finished sliders are kept."""
    count = QUICK if quick else MEMBERS
    study = load(count)
    fit = host.pack("nodes.weights.directions")
    study.space = study.space.with_directions(
        fit.fit(
            study.space,
            dict(study.space.labels),
            study.space.components,
            fit.FitMethod.MOST_RELIABLE,
            beside=dict(study.space.labels),
        )
    )
    name = "weights_gradual" + "_quick" * quick
    rows = results.Rows(name, {"count": count, "space": results.assets_hash(ASSET)})
    directions = {label: label for label in LABELED}
    phrased = {f"{label}, phrases": phrases.direction_of(label) for label in EDITS}
    if not quick:
        directions |= phrased
        if not all(slider in rows for slider in phrased):
            study = phrases.train(study, list(EDITS))
    numbers = {}
    measured = {}
    for slider, direction in directions.items():
        label = slider.removesuffix(", phrases")
        group = lacking(study, label, count)

        def part(label=label, group=group, direction=direction) -> dict[str, list]:
            return judged(label, *read_along(study, label, group, direction))

        row = rows.row(slider, part)
        print(slider, {key: round(float(np.mean(value)), 3) for key, value in row.items() if value})
        if slider in LABELED:
            appears = np.quantile(row["appears"], (0.25, 0.75)) if row["appears"] else (1.0, 1.0)
            measured[slider] = {
                "reached": float(np.mean(row["reached"])),
                "appears": [round(float(value), 2) for value in appears],
            }
        for key, values in row.items():
            if not values:
                continue
            numbers[f"{slider}: {key}"] = (
                results.fraction(np.array(values), UNITS[key])
                if key == "reached"
                else results.bootstrap(np.array(values), UNITS[key], "fraction")
            )
    if not quick:
        order = np.random.default_rng(20261122).permutation(len(study.space.members))
        for number in [study.space.members.index(FRONT), *order[:CANDIDATES].tolist()]:
            found = rows.row(
                f"member {number}", lambda number=number: {"acting": acting(study, number)}
            )
            numbers[f"{study.space.members[number]}: sliders that act at 1"] = results.fraction(
                np.array(found["acting"]), "of all labels, on the first workflow's image"
            )
        SIDECAR.write_text(json.dumps(measured, indent=1) + "\n", "utf-8")
    command = "python run.py study weights gradual" + " --quick" * quick
    path = results.write(name, command, NOISE, (ASSETS, ASSET), numbers)
    rows.finished()
    return path
