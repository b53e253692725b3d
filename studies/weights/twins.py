"""What limits an edit in the shipped space: a direction, the space, or that other weights give
another image.

`python run.py study weights twins` writes ``studies/results/weights_twins.json``. Members who lack
an attribute, their codes fitted again from their own ten images, and from a twin's: the same person
with the attribute in the same scenes. The first shows what is lost where nothing is edited; the
second, the step from one to the other, and the mean step of all others what any direction could
reach, beside W2W Edit and the prompt. Identity guidance to 60 %.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from ..common import host, results
from ..common.training import device
from ..world.faces import ATTRIBUTES, IDENTITY, visible
from ..world.release import ASSETS
from .grouped import Population
from .guidance import WAYS
from .inversion import LEARNED_RATE, NOISE_SAMPLES, PRIOR, _train
from .learned_measure import GUIDED
from .matched import KEPT
from .people import Person, encode
from .population import Trainer
from .release import ASSET
from .setup import EDITS, NOISE, Study, fractions, load, prompts, truth

PEOPLE, STRENGTHS = 16, (0.5, 0.75, 1.0)
#: What a twin of each edit looks like.
CHANGED = {
    "dark skin": {"skin": "brown"},
    "beard": {"facial_hair": "majestic beard"},
    "round glasses": {"accessory": "round glasses"},
    "red hair": {"hair_color": "red"},
}
FOLDER = host.ROOT / ".cache" / "weights" / "codes"


def twin(one: Person, name: str) -> Person:
    """The same person in the same scenes with an attribute changed."""
    scenes = [replace(scene, face=replace(scene.face, **CHANGED[name])) for scene in one.scenes]
    return replace(one, face=replace(one.face, **CHANGED[name]), scenes=scenes)


def fitted(study: Study, group: list[Person]) -> torch.Tensor:
    """Coefficients (n, k) of people from all their images, with the rate and the prior of W2W
    Invert.
    """
    space, data = study.space, encode(group, study.sampler.generator)
    trainer = Trainer(
        study.sampler.generator, replace(study.sampler.trainer.plan, rows=NOISE_SAMPLES)
    )
    population = Population(space.layout, len(group), trainer.plan.seed, device())
    numbers = torch.nn.Parameter(torch.zeros(len(group), space.components, device=device()))
    unit, basis = space.spread[1].to(device()), space.rows(0, space.components).to(device())
    mean, deviation = space.mean.to(device()), space.deviation.to(device())

    def rebuild() -> torch.Tensor:
        return mean + deviation * ((unit * numbers) @ basis)

    optimizer = torch.optim.Adam([numbers], lr=LEARNED_RATE)
    _train(trainer, population, data, optimizer, rebuild, lambda: PRIOR * numbers.square().sum())
    return (unit * numbers).detach().cpu()


def kept(path: Path, make: Callable[[], torch.Tensor]) -> torch.Tensor:
    """What ``make`` gives, from a file once it was made."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        torch.save(make(), path.with_suffix(".tmp"))
        path.with_suffix(".tmp").replace(path)
    return torch.load(path, weights_only=True)


def measure_edit(study: Study, name: str, group: list[Person]) -> dict[str, dict]:
    """Reached, kept and the person's of every way, and how near the direction is to the twins' mean
    step.
    """
    attribute, values, words, _ = EDITS[name]
    column, own = IDENTITY.index(attribute), truth(group)
    wanted = [ATTRIBUTES[attribute].index(value) for value in values]
    rest = [number for number in range(len(IDENTITY)) if number != column]
    stem = f"{results.assets_hash(ASSET)[:8]}_{name.replace(' ', '_')}_{len(group)}"
    again = kept(FOLDER / f"{stem}_own.pt", lambda: fitted(study, group))
    other = kept(
        FOLDER / f"{stem}_twin.pt", lambda: fitted(study, [twin(one, name) for one in group])
    )
    codes = torch.stack([point.coefficients for point in study.points(group)])
    step = other - again
    mean = (step.sum(dim=0) - step) / (len(group) - 1)
    direction = host.pack("nodes.weights.directions").direction_step(study.space, name, [], False)
    edits = {
        "own code fitted again": again,
        "twin's code": other,
        "step to the twin": codes + step,
        "others' mean step": codes + mean,
        **{f"W2W {strength}": codes + strength * direction for strength in STRENGTHS},
    }

    def read(coefficients: torch.Tensor, texts: list[str]) -> np.ndarray:
        flats = torch.stack([study.space.rebuild(one) for one in coefficients])
        return study.read(flats, texts, **WAYS[GUIDED])[0]

    before = read(codes, prompts(group))
    known = np.where(own < 0, -1, before)
    seen = {"prompt": read(codes, prompts(group, extra=words)), "unedited": before}
    seen |= {way: read(coefficients, prompts(group)) for way, coefficients in edits.items()}
    rows = {
        way: np.stack(
            [
                np.isin(one[:, column], wanted),
                *(fractions(one, each, rest) for each in (known, own)),
            ],
            1,
        )
        for way, one in seen.items()
    }
    numbers = {}
    for way, found in rows.items():
        numbers[f"{name}, {way}: reached"] = results.fraction(found[:, 0], f"{name} recognized")
        for place, (kind, what) in enumerate(KEPT.items(), 1):
            numbers[f"{name}, {way}: {kind}"] = results.bootstrap(found[:, place], what, "fraction")
    cosines = torch.nn.functional.cosine_similarity(mean, direction[None]).numpy()
    about = "of the others' mean step and the direction of W2W Fit Directions"
    return numbers | {f"{name}, direction: cosine": results.bootstrap(cosines, about, "cosine")}


def run(quick: bool = False) -> Path:
    """Measure and write; ``quick`` takes few people and one edit."""
    count, stem = 2 if quick else PEOPLE, "weights_twins" + "_quick" * quick
    study, numbers = load(count), {}
    for name in list(EDITS)[: 1 if quick else None]:
        lacking = study.members(name, len(study.space.members))
        seen = [one for one in lacking if visible(twin(one, name).face)[EDITS[name][0]]]
        numbers |= measure_edit(
            study, name, seen[-count:]
        )  # the end of the order: matched.py reports its beginning
        print(name, flush=True)
    command = "python run.py study weights twins" + " --quick" * quick
    return results.write(stem, command, NOISE, (ASSETS, ASSET), numbers)
