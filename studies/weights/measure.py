"""The paper's claims on the demo world, in a space collected as in the paper; writes
``studies/results/weights.json``.

What an identity is, is known here: skin, hair, its color, facial hair and accessory. The judge
reads them in images; its own error on renders of the same people is printed beside. Every image is
of a scene that was not trained on, and its caption says nothing of the identity.
"""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import torch

from ..common import host, results
from ..world.faces import IDENTITY
from ..world.release import ASSETS
from ..world.scenes import render
from . import editing, inversion, space_size, styles
from .release import FILE
from .setup import NOISE, Study, factors, fractions, identity, load, prompts, truth


def measure_judge(study: Study) -> dict[str, dict]:
    """The instrument's own error, on renders of the scenes that are texts for."""
    group = study.members()
    seen = study.judged(np.stack([render(one.further[0]) for one in group]))
    return {"judge on renders: identity": identity(seen, truth(group))}


def measure_members(study: Study) -> dict[str, dict]:
    """Whether members draw their person, attribute by attribute, beside the base model."""
    group, numbers = study.members(), {}
    known, texts = truth(group), prompts(group)
    for name, flats in {
        "member": factors(study.points(group)),
        "base model": study.base(len(group)),
    }.items():
        seen, _ = study.read(flats, texts)
        numbers[f"{name}: identity"] = identity(seen, known)
        for column, attribute in enumerate(IDENTITY):
            visible_rows = known[:, column] >= 0
            hits = seen[visible_rows, column] == known[visible_rows, column]
            numbers[f"{name}: {attribute}"] = results.fraction(
                hits, f"{attribute} of the identity recognized"
            )
    return numbers


def measure_sampling(study: Study) -> dict[str, dict]:
    """Whether sampled points are somebody new and the same in every image."""
    points, space = host.pack("nodes.weights.points"), study.space
    group = study.members()
    sampled = points.sample(space, 7, len(group), space.components, 1.0)
    kinds = {
        "sampled point": factors(sampled),
        "member": factors(study.points(group)),
        "base model": study.base(len(group)),
    }
    numbers = {}
    for name, flats in kinds.items():
        first, second = (
            study.read(flats, prompts(group, one), NOISE + 10_000 * one)[0] for one in (0, 1)
        )
        what = (
            "attributes recognized equally in two images of one model with other noise and prompt"
        )
        numbers[f"{name}: consistent"] = results.bootstrap(
            fractions(first, second), what, "fraction"
        )
        other = "attributes recognized equally in images of two models"
        numbers[f"{name}: chance agreement"] = results.bootstrap(
            fractions(first, np.roll(second, 1, 0)), other, "fraction"
        )
    nearest_members = host.pack("nodes.weights.projection").nearest_members
    cosines = np.array([nearest_members(point, 1)[0][1] for point in sampled])
    numbers["sampled point: nearest member"] = results.bootstrap(
        cosines, "cosine of coefficients", "cosine"
    )
    rows = torch.nn.functional.normalize(space.coefficients, dim=1)
    others = (rows @ rows.T - 2 * torch.eye(len(rows))).max(dim=1).values.numpy()
    numbers["member: nearest other member"] = results.bootstrap(
        others, "cosine of coefficients", "cosine"
    )
    return numbers


def run(quick: bool = False) -> Path:
    """Measure everything; ``quick`` takes fewer people and one edit, and leaves out sizes and
    styles.
    """
    study = load(5 if quick else 24, FILE)
    count, numbers = 5 if quick else 10, {}
    parts = {
        "judge": lambda: measure_judge(study),
        "members": lambda: measure_members(study),
        "sampling": lambda: measure_sampling(study),
        "edits": lambda: editing.measure(study, quick),
        "inversion": lambda: inversion.measure(study, count, quick),
        "sizes": lambda: space_size.measure(study, count, space_size.DRAWS),
        "styles": lambda: styles.measure(study),
    }
    for name in ("sizes", "styles") if quick else ():
        del parts[name]
    for name, part in parts.items():
        started = time.perf_counter()
        numbers |= part()
        print(f"{name}: {time.perf_counter() - started:.0f} s", flush=True)
    command = "python run.py study weights measure" + (" --quick" if quick else "")
    return results.write("weights_quick" if quick else "weights", command, NOISE, ASSETS, numbers)
