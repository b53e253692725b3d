"""The paper's claims measured on the demo world with its shipped space; writes ``studies/results/weights.json``.

What an identity is, is known here: skin, hair, its colour, facial hair and accessory. The judge reads them in pictures;
its own error on renders of the same people is printed beside. Every picture is of a scene that was not trained on, and
its caption says nothing of the identity.
"""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import torch

from ..common import host, results
from ..world.faces import IDENTITY
from ..world.generate import Generator
from ..world.release import ASSETS, WORLD
from ..world.scenes import render
from . import editing, finding, sizes, styles
from .painting import Painter
from .population import Plan, Trainer
from .release import ASSET
from .study import NOISE, Study, factors, identity, prompts, shares, truth

COMPONENTS = 64  # of which directions are fitted


def measure_judge(study: Study) -> dict[str, dict]:
    """The instrument's own error, on renders of the scenes that are asked for."""
    group = study.members()
    seen = study.judged(np.stack([render(one.further[0]) for one in group]))
    return {"judge on renders: identity": identity(seen, truth(group))}


def measure_members(study: Study) -> dict[str, dict]:
    """Whether members draw their person, attribute by attribute, beside the base model."""
    group, numbers = study.members(), {}
    known, texts = truth(group), prompts(group)
    for name, flats in {"member": factors(study.points(group)), "base model": study.base(len(group))}.items():
        seen, _ = study.read(flats, texts)
        numbers[f"{name}: identity"] = identity(seen, known)
        for column, attribute in enumerate(IDENTITY):
            told = known[:, column] >= 0
            hits = seen[told, column] == known[told, column]
            numbers[f"{name}: {attribute}"] = results.share(hits, f"the person's {attribute} read")
    return numbers


def measure_sampling(study: Study) -> dict[str, dict]:
    """Whether drawn models are somebody new and the same in every picture."""
    points, space = host.pack("nodes.weights.points"), study.space
    group = study.members()
    drawn = points.sample(space, 7, len(group), space.components, 1.0)
    kinds = {
        "drawn model": factors(drawn), "member": factors(study.points(group)), "base model": study.base(len(group)),
    }  # fmt: skip
    numbers = {}
    for name, flats in kinds.items():
        first, second = (study.read(flats, prompts(group, one), NOISE + 10_000 * one)[0] for one in (0, 1))
        what = "attributes read alike in two pictures of one model, other noise and caption"
        numbers[f"{name}: consistent"] = results.bootstrap(shares(first, second), what, "share")
        other = "attributes read alike in pictures of two models"
        numbers[f"{name}: alike by chance"] = results.bootstrap(shares(first, np.roll(second, 1, 0)), other, "share")
    nearest = host.pack("nodes.weights.projection").nearest
    cosines = np.array([nearest(point, 1)[0][1] for point in drawn])
    numbers["drawn model: nearest member"] = results.bootstrap(cosines, "cosine of coefficients", "cosine")
    rows = torch.nn.functional.normalize(space.coefficients, dim=1)
    others = (rows @ rows.T - 2 * torch.eye(len(rows))).max(dim=1).values.numpy()
    numbers["member: nearest other member"] = results.bootstrap(others, "cosine of coefficients", "cosine")
    return numbers


def run(quick: bool = False) -> Path:
    """Measure everything; ``quick`` takes fewer people."""
    space = sizes.directed(host.pack("nodes.weights.space_files").read(ASSET), COMPONENTS)
    generator = Generator.load(WORLD)
    painter = Painter(generator, Trainer(generator, Plan()))
    study = Study(space, painter, host.pack("nodes.demo.judge").load(WORLD), 10 if quick else 24)
    count, numbers = 4 if quick else 10, {}
    parts = {
        "judge": lambda: measure_judge(study), "members": lambda: measure_members(study),
        "sampling": lambda: measure_sampling(study), "edits": lambda: editing.measure(study),
        "inversion": lambda: finding.measure(study, count), "sizes": lambda: sizes.measure(study, count),
        "styles": lambda: styles.measure(study),
    }  # fmt: skip
    for name, part in parts.items():
        started = time.perf_counter()
        numbers |= part()
        print(f"{name}: {time.perf_counter() - started:.0f} s", flush=True)
    command = "python run.py study weights measure" + (" --quick" if quick else "")
    return results.write("weights_quick" if quick else "weights", command, NOISE, ASSETS, numbers)
