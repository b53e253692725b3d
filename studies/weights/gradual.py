"""Whether a slider moves gradually: what the judge reads along W2W Edit's strengths from 0 to 1.

`python run.py study weights gradual` writes ``studies/results/weights_gradual.json``. Members who
lack the attribute, one unseen scene and noise of each, identity guidance to 60 %, directions as
W2W Fit Directions fits them by default.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from ..common import host, results
from ..world.faces import ATTRIBUTES
from ..world.release import ASSETS
from .guidance import WAYS
from .learned_measure import GUIDED
from .people import SEED, Person, person
from .release import ASSET
from .setup import NOISE, Study, factors, load, prompts

#: Slider -> the attribute that it changes, and the values that show it.
SLIDERS = {
    "beard": ("facial_hair", ("light beard", "majestic beard")),
    "dark skin": ("skin", ("brown", "black")),
    "red hair": ("hair_color", ("red",)),
    "round glasses": ("accessory", ("round glasses",)),
    "sunglasses": ("accessory", ("sunglasses",)),
    "bald": ("hair", ("bald",)),
}
STRENGTHS = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
MEMBERS, QUICK = 16, 3
UNITS = {
    "rank correlation": "of strength and the judge's probability of the attribute, along a slider",
    "largest step": "of the rise of that probability, the fraction between two of six strengths",
    "another value": "frames where neither the value at 0 nor the attribute is recognized",
    "reached": "members in whom the attribute is recognized at a strength of 1",
}


def lacking(study: Study, slider: str, count: int) -> list[Person]:
    """Members at random without the attribute; for a color of hair, with hair that has one."""
    attribute, values = SLIDERS[slider]
    order = np.random.default_rng(20261122).permutation(len(study.space.members))
    group = []
    for number in order:
        one = person(int(number), SEED)
        seen = attribute != "hair_color" or one.face.hair not in ("bald", "undercut")
        if seen and getattr(one.face, attribute) not in values:
            group.append(one)
    return group[:count]


def read_along(study: Study, slider: str, group: list[Person]) -> tuple[np.ndarray, np.ndarray]:
    """The judge's probability of the slider's attribute, and the value of it that the judge
    recognizes: each (members, strengths).
    """
    attribute, values = SLIDERS[slider]
    numbers = [ATTRIBUTES[attribute].index(value) for value in values]
    texts, points = prompts(group), study.points(group)
    probabilities, recognized = [], []
    for strength in STRENGTHS:
        flats = study.edited(points, f"{slider}: {strength:g}") if strength else factors(points)
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

    attribute, values = SLIDERS[slider]
    numbers = [ATTRIBUTES[attribute].index(value) for value in values]
    correlations = [
        # Readings that are all alike have no rank: the slider does nothing.
        float(scipy.stats.spearmanr(STRENGTHS, row).statistic) if np.ptp(row) else 0.0
        for row in probabilities
    ]
    rises = np.diff(probabilities, axis=1)
    total = np.maximum(rises, 0).sum(axis=1).clip(1e-9)
    start = recognized[:, :1]
    other = ~np.isin(recognized, numbers) & (recognized != start)
    return {
        "rank correlation": correlations,
        "largest step": (rises.max(axis=1) / total).tolist(),
        "another value": other[:, 1:].mean(axis=1).tolist(),
        "reached": np.isin(recognized[:, -1], numbers).tolist(),
    }


def run(quick: bool = False) -> Path:
    """Measure and write; ``quick`` takes few members. Finished sliders are kept."""
    count = QUICK if quick else MEMBERS
    study = load(count)
    fit = host.pack("nodes.weights.directions")
    labels = {name: study.space.labels[name] for name in SLIDERS}
    study.space = study.space.with_directions(
        fit.fit(
            study.space,
            labels,
            study.space.components,
            fit.FitMethod.MOST_RELIABLE,
            beside=dict(study.space.labels),
        )
    )
    name = "weights_gradual" + "_quick" * quick
    rows = results.Rows(name, {"count": count, "space": results.assets_hash(ASSET)})
    numbers = {}
    for slider in SLIDERS:
        group = lacking(study, slider, count)

        def part(slider=slider, group=group) -> dict[str, list]:
            return judged(slider, *read_along(study, slider, group))

        row = rows.row(slider, part)
        print(slider, {key: round(float(np.mean(value)), 3) for key, value in row.items()})
        for key, values in row.items():
            numbers[f"{slider}: {key}"] = (
                results.fraction(np.array(values), UNITS[key])
                if key == "reached"
                else results.bootstrap(np.array(values), UNITS[key], "fraction")
            )
    command = "python run.py study weights gradual" + " --quick" * quick
    path = results.write(name, command, NOISE, (ASSETS, ASSET), numbers)
    rows.finished()
    return path
