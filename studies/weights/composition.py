"""Composed people: each attribute from another member, beside the other ways to sample.

`python run.py study weights composition` writes ``studies/results/weights_composition.json``. Sixty
points of each of three seeds, two images of each in other scenes and noise, identity guidance to
60 %. A point is a person where both images show the same attributes; a composed one is the person
requested where they show the values that it was composed of. It is no new person where they show
the attributes of the member nearest to it. Numbers are means over the seeds for each place in the
sample, so that an interval is over sixty.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from ..common import host, results
from ..world.faces import IDENTITY
from ..world.release import ASSETS
from .guidance import WAYS
from .learned_measure import GUIDED
from .people import SEED, person
from .release import ASSET
from .setup import NOISE, Study, factors, fractions, load, prompts, truth

POINTS, SEEDS = 60, (3, 11, 23)
LAWS = ("composed", "normal", "near members")
QUICK = 5
UNITS = {
    "consistent": "attributes recognized equally in two images of one point",
    "chance agreement": "the same of two points",
    "of its nearest member": "attributes of the nearest member recognized, in two images",
    "as requested": "values that the point was composed of recognized, in two images",
}


def value_numbers(values: dict[str, str]) -> list[int]:
    """The judge's class numbers (5,) of a value of each attribute; -1 where one cannot be seen."""
    face_words = host.pack("nodes.weights.composition").FACE_WORDS
    face: dict[str, str] = {}
    for name, (attribute, value) in zip(IDENTITY, values.items(), strict=True):
        word_of = {text: word for word, text in face_words[attribute].items()}
        face[name] = word_of[value].replace("-", " ")
    example = person(0)
    return truth([replace(example, face=replace(example.face, **face))])[0].tolist()


def laws(study: Study, seed: int, count: int) -> dict[str, Callable[[], tuple[list, np.ndarray]]]:
    """Ways to sample by name: points, and the values they should show (n, 5), -1 where none is
    named.
    """
    points, composition = (
        host.pack("nodes.weights.points"),
        host.pack("nodes.weights.composition"),
    )
    space = study.space
    components = space.components
    unnamed = np.full((count, len(IDENTITY)), -1)

    def composed() -> tuple[list, np.ndarray]:
        drawn = composition.compose(
            composition.fit(space), seed, count=count, components=components, spread=1.0
        )
        wanted = np.array([value_numbers(each.values) for each in drawn])
        return [each.point for each in drawn], wanted

    return {
        "composed": composed,
        "near members": lambda: (
            points.near_members(space, seed, count, components, 1.0),
            unnamed,
        ),
        "normal": lambda: (points.sample(space, seed, count, components, 1.0), unnamed),
    }


def measure(study: Study, sampled: list, wanted: np.ndarray, seed: int) -> dict[str, np.ndarray]:
    """What ``UNITS`` names, for each point (n,)."""
    nearest = host.pack("nodes.weights.projection").nearest_members
    group = study.members(count=len(sampled))
    noise = NOISE + 1_000_000 * seed
    seen = []
    for image in (0, 1):
        texts = prompts(group, image)
        read = study.read(factors(sampled), texts, noise + 10_000 * image, **WAYS[GUIDED])
        seen.append(read[0])
    members = [study.space.members.index(nearest(point, 1)[0][0]) for point in sampled]
    near = truth([person(member, SEED) for member in members])
    measured = {
        "consistent": fractions(seen[0], seen[1]),
        "chance agreement": fractions(seen[0], np.roll(seen[1], 1, axis=0)),
        "of its nearest member": np.mean([fractions(each, near) for each in seen], axis=0),
    }
    if (wanted >= 0).any():
        measured["as requested"] = np.mean([fractions(each, wanted) for each in seen], axis=0)
    return measured


def run(quick: bool = False) -> Path:
    """Measure and write; ``quick`` takes few points of one seed. Finished parts are kept."""
    count = QUICK if quick else POINTS
    study = load(count)
    name = "weights_composition" + "_quick" * quick
    rows = results.Rows(name, {"count": count, "space": results.assets_hash(ASSET)})
    found: dict[str, dict[str, list]] = {}
    for law in LAWS:
        for seed in SEEDS[: 1 if quick else None]:
            sample = laws(study, seed, count)[law]

            def part(sample=sample, seed=seed) -> dict[str, list[float]]:
                measured = measure(study, *sample(), seed=seed)
                return {key: value.tolist() for key, value in measured.items()}

            row = rows.row(f"{law}, seed {seed}", part)
            print(law, seed, {key: round(float(np.mean(v)), 3) for key, v in row.items()})
            for key, values in row.items():
                found.setdefault(law, {}).setdefault(key, []).append(values)
    numbers = {}
    means: dict[str, np.ndarray] = {}
    for law, columns in found.items():
        for key, values in columns.items():
            mean = np.mean(values, axis=0)
            numbers[f"{law}: {key}"] = results.bootstrap(mean, UNITS[key], "fraction")
            if key == "consistent":
                means[law] = mean
    for rival in ("near members", "normal"):
        gain = means["composed"] - means[rival]
        numbers[f"composed less {rival}: consistent"] = results.bootstrap(
            gain, "difference of the means over seeds", "fraction"
        )
    command = "python run.py study weights composition" + " --quick" * quick
    path = results.write(name, command, NOISE, (ASSETS, ASSET), numbers)
    rows.finished()
    return path
