"""How points of the shipped space are sampled: whether each is one person in two images, and
whether it is a new one.

`python run.py study weights sampling` writes ``studies/results/weights_sampling.json``. The node's
two ways, the members' normal law and points near members, at several spreads; beside members
themselves, which no sampled point surpasses, and the law of independent components (FastICA), each
drawn from its values among the members. A point that is no new person shows the attributes of the
member nearest to it. Identity guidance to 60 % of the noise levels.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from ..common import host, results
from ..world.release import ASSETS
from .guidance import WAYS
from .learned_measure import GUIDED
from .people import SEED, person
from .release import ASSET
from .setup import NOISE, Study, factors, fractions, load, prompts, truth

POINTS, DRAWS, SOURCES = 60, 7, 16
_UNITS = {
    "consistent": "attributes recognized equally in two images of one point",
    "chance agreement": "the same of two points",
    "of its nearest member": "attributes of the nearest member recognized, in two images",
    "of another's": "the same of the member nearest to another point",
}


def ways(study: Study, count: int) -> dict[str, Callable[[], list]]:
    """Points by the name of how they are sampled."""
    points, space = host.pack("nodes.weights.points"), study.space
    whole = space.components
    found: dict[str, Callable[[], list]] = {
        "members": lambda: points.random_members(space, DRAWS, count)
    }
    for spread in (0.7, 1.0, 1.4):
        found[f"normal, spread {spread}"] = lambda spread=spread: points.sample(
            space, DRAWS, count, whole, spread
        )
    found["normal, 32 components"] = lambda: points.sample(space, DRAWS, count, 32, 1.0)
    for spread in (0.6, 1.0, 1.4):
        found[f"near members, spread {spread}"] = lambda spread=spread: points.near_members(
            space, DRAWS, count, whole, spread
        )
    found["independent components"] = lambda: independent(space, count)
    return found


def independent(space, count: int) -> list:
    """Points whose independent components are drawn one by one from those of the members."""
    from sklearn.decomposition import FastICA

    point = host.pack("nodes.weights.space").Point
    rows, rng = space.coefficients[:, : space.known].double().numpy(), np.random.default_rng(DRAWS)
    law = FastICA(
        min(SOURCES, rows.shape[1]), whiten="unit-variance", random_state=0, max_iter=2000, tol=1e-3
    )
    sources = law.fit_transform(rows)
    drawn = np.stack([rng.choice(column, count) for column in sources.T], axis=1)
    return [
        point(space, space.pad(torch.from_numpy(row).float()), "")
        for row in law.inverse_transform(drawn)
    ]


def measure(study: Study, points: list) -> dict[str, np.ndarray]:
    """What ``_UNITS`` names, for each point (n,)."""
    group, nearest = (
        study.members(count=len(points)),
        host.pack("nodes.weights.projection").nearest_members,
    )
    seen = [
        study.read(factors(points), prompts(group, image), NOISE + 10_000 * image, **WAYS[GUIDED])[
            0
        ]
        for image in (0, 1)
    ]
    known = truth(
        [person(study.space.members.index(nearest(point, 1)[0][0]), SEED) for point in points]
    )
    shared = [
        np.mean([fractions(one, each) for one in seen], axis=0)
        for each in (known, np.roll(known, 1, axis=0))
    ]
    agreement = fractions(seen[0], seen[1]), fractions(seen[0], np.roll(seen[1], 1, axis=0))
    return dict(zip(_UNITS, (*agreement, *shared), strict=True))


def run(quick: bool = False) -> Path:
    """Measure and write; ``quick`` takes few points of each kind."""
    count = 5 if quick else POINTS
    study, numbers = load(count), dict[str, dict]()
    for name, sampled in ways(study, count).items():
        found = measure(study, sampled())
        print(
            name, {key: round(float(value.mean()), 3) for key, value in found.items()}, flush=True
        )
        for key, value in found.items():
            numbers[f"{name}: {key}"] = results.bootstrap(value, _UNITS[key], "fraction")
    command = "python run.py study weights sampling" + " --quick" * quick
    return results.write(
        "weights_sampling" + "_quick" * quick, command, NOISE, (ASSETS, ASSET), numbers
    )
