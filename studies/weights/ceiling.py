"""The most that an edit in weights can reach: people trained again with the attribute changed, at
the prompt's loss.

`python run.py study weights ceiling` writes ``studies/results/weights_ceiling.json``. Each person
is trained twice as the population's members were, the second time as a twin with another skin or
hair color in the same scenes, so the step from one to the other is the edit itself and no direction
estimates it. The step, its projection into the collected space, and the space's direction are taken
at several strengths and compared with the prompt where as much of the other attributes is kept, as
in ``matched``; identity guidance up to 60 % in all.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from ..common import host, results
from ..world.faces import ATTRIBUTES, IDENTITY
from ..world.release import ASSETS
from .guidance import EDITED
from .matched import GUIDED, matched_difference
from .people import Person, cached
from .population import Trainer
from .release import FILE
from .setup import COMPONENTS, EDITS, NOISE, Study, fractions, load, prompts, truth

PEOPLE, STRENGTHS = 16, (0.5, 1.0, 1.5)
COMPONENT_COUNTS, MEMBER_COUNTS = (16, 64, 128), (128, 256, 512)
#: What a twin of each edit looks like.
CHANGED = {"dark skin": {"skin": "brown"}, "red hair": {"hair_color": "red"}}
FOLDER = host.ROOT / ".cache" / "weights" / "twins"


def twin(one: Person, name: str) -> Person:
    """The same person in the same scenes with an attribute changed; its further scenes are not."""
    scenes = [replace(scene, face=replace(scene.face, **CHANGED[name])) for scene in one.scenes]
    return replace(one, face=replace(one.face, **CHANGED[name]), scenes=scenes)


def trained(trainer: Trainer, generator, group: list[Person], kind: str) -> torch.Tensor:
    """Factors (n, D) of people who are trained together, kept in a file."""
    stem = f"{results.assets_hash(ASSETS)[:8]}_{kind.replace(' ', '_')}_{len(group)}"
    done = FOLDER / f"{stem}.done.pt"
    if not done.exists():
        data = cached(group, generator, FOLDER / f"{stem}.data.pt")
        torch.save(trainer.cohort(data, FOLDER / f"{stem}.pt", trainer.plan.steps), done)
    return torch.load(done, weights_only=True)


def measure_edit(
    study: Study, name: str, group: list[Person], first: torch.Tensor, second: torch.Tensor
) -> dict:
    """Reached and kept by every way, and what each reaches more than the prompt at its loss."""
    attribute, values, words, _ = EDITS[name]
    column = IDENTITY.index(attribute)
    wanted = [ATTRIBUTES[attribute].index(value) for value in values]
    rest = [number for number in range(len(IDENTITY)) if number != column]
    space, point, texts, visible_rows = (
        study.space,
        host.pack("nodes.weights.space").Point,
        prompts(group),
        truth(group),
    )
    inside, moved = (
        [point(space, space.project(flat)) for flat in flats] for flats in (first, second)
    )

    def judged(plain: torch.Tensor, edited: list[torch.Tensor]) -> tuple[np.ndarray, np.ndarray]:
        """Rows (n, ways, 2) of reached and kept: unedited and edits, and the prompt; against
        ``plain``.
        """
        before = study.read(plain, texts, **GUIDED)[0]
        known = np.where(visible_rows < 0, -1, before)
        seen = [before, *(study.read(flats, texts, **GUIDED)[0] for flats in edited)]
        seen.append(study.read(plain, prompts(group, extra=words), **GUIDED)[0])
        rows = [
            np.stack([np.isin(one[:, column], wanted), fractions(one, known, rest)], axis=1)
            for one in seen
        ]
        return np.stack(rows[:-1], axis=1), rows[-1]

    plain = torch.stack([one.flat for one in inside])
    inner = torch.stack([one.flat for one in moved])
    ways = {
        "twin as trained": (first, [torch.lerp(first, second, strength) for strength in STRENGTHS]),
        "twin in the space": (
            plain,
            [torch.lerp(plain, inner, strength) for strength in STRENGTHS],
        ),
        "W2W": (
            plain,
            [
                study.edited(inside, f"{name}: {strength}", study.preserved(name))
                for strength in STRENGTHS
            ],
        ),
    }
    numbers = {}
    for way, (start, edited) in ways.items():
        curve, prompt = judged(start, edited)
        listed = {f"{way} {strength}": curve[:, row] for row, strength in enumerate(STRENGTHS, 1)}
        listed |= {f"{way}'s prompt": prompt} if way != "W2W" else {}
        for label, rows in listed.items():
            numbers[f"{name}, {label}: reached"] = results.fraction(
                rows[:, 0], f"{name} recognized"
            )
            numbers[f"{name}, {label}: kept"] = results.bootstrap(
                rows[:, 1], "other attributes recognized as before", "fraction"
            )
        numbers[f"{name}, {way} less prompt at its loss: reached"] = results.bootstrap(
            np.concatenate([curve, prompt[:, None]], axis=1),
            "reached where as much of the other attributes is kept; paired",
            "fraction",
            lambda rows: matched_difference(rows[:, :-1], rows[:, -1]),
        )
    cosines = torch.nn.functional.cosine_similarity(second - first, inner - plain).numpy()
    numbers[f"{name}, step to the twin and its projection: cosine"] = results.bootstrap(
        cosines, "of the flat vectors", "cosine"
    )
    return numbers | measure_steps(space, name, (second - first) / space.deviation)


def measure_steps(space, name: str, steps: torch.Tensor) -> dict:
    """How much of the standardized steps (n, D) lies in fewer components, in spaces of fewer
    members, and in common.
    """
    inside, lengths = steps @ space.basis.float().T, steps.norm(dim=1)
    axes = {
        f"{count} components": torch.eye(space.components)[:count] for count in COMPONENT_COUNTS
    }
    order = torch.randperm(len(space.coefficients), generator=torch.Generator().manual_seed(NOISE))
    for count in MEMBER_COUNTS:
        rows = space.coefficients[order[:count]]
        axes[f"{COMPONENTS} components of {count} members"] = torch.pca_lowrank(
            rows, COMPONENTS, niter=8
        )[2].T
    numbers = {}
    for where, basis in axes.items():
        found = ((inside @ basis.T).norm(dim=1) / lengths).numpy()
        numbers[f"{name}, step to the twin, {where}: cosine"] = results.bootstrap(
            found, "of the standardized step and its projection", "cosine"
        )
    units = torch.nn.functional.normalize(steps)
    alike = ((units @ units.T).sum(dim=1) - 1) / (len(units) - 1)
    numbers[f"{name}, steps of two people: cosine"] = results.bootstrap(
        alike.numpy(), "of the standardized steps, a mean for each person with the others", "cosine"
    )
    return numbers


def run(quick: bool = False) -> Path:
    """Measure and write; ``quick`` takes fewer people, a third of their training and one edit."""
    count = 5 if quick else PEOPLE
    study = load(count, FILE)
    trainer, generator, space = study.sampler.trainer, study.sampler.generator, study.space
    if quick:
        trainer.plan = replace(trainer.plan, steps=30)
    lacking = {one.name for one in study.members(without=EDITED[1], count=len(space.members))}
    group = [
        one
        for one in study.members(without=EDITED[0], count=len(space.members))
        if one.name in lacking
    ][:count]
    first, numbers = trained(trainer, generator, group, "people"), {}
    for name in EDITED[:1] if quick else EDITED:
        second = trained(trainer, generator, [twin(one, name) for one in group], name)
        numbers |= measure_edit(study, name, group, first, second)
        print(name, flush=True)
    command = "python run.py study weights ceiling" + (" --quick" if quick else "")
    return results.write(
        "weights_ceiling_quick" if quick else "weights_ceiling", command, NOISE, ASSETS, numbers
    )
