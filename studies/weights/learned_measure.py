"""The learned space beside the collected one, on the same members, scenes and noise, by the same judge.

`python run.py study weights learned_measure` writes ``studies/results/weights_learned.json``. Members at random, unseen
scenes. Directions of the learned space are conditional differences, whose strength 1 is the mean difference of members
who differ in that label alone; those of the collected space are the node's defaults. Parts that are finished are kept,
so that a run which was stopped goes on.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from ..common import host, results
from ..common.similarity import frechet
from ..common.training import device
from ..world import judge
from ..world.faces import ATTRIBUTES, IDENTITY
from ..world.generate import Generator
from ..world.release import ASSETS, WORLD
from ..world.scenes import render
from . import space_size
from .grouped import Population, adapted
from .guidance import COMPONENTS, WAYS
from .image_sampler import ImageSampler
from .inversion import held_out
from .people import Encoded, encode
from .population import Plan, Trainer, descend
from .release import ASSET
from .setup import EDITS, NOISE, Study, factors, fractions, identity, prompts, truth

GUIDED, BOTH = "positive side to 60 %", "both sides"
PAIR = ("beard", "round glasses")
#: Of the inversion: as W2W Invert's settings prior, noise_samples, steps and learning_rate.
PRIOR, NOISE_SAMPLES, STEPS, RATE = 1e-4, 6, 120, 0.15


class Side:
    """A space and how its models are sampled."""

    def __init__(self, name: str, space, sampler: ImageSampler, network, count: int):
        self.name, self.study = name, Study(space, sampler, network, count)

    def read(self, flats: torch.Tensor, texts: list[str], way: str, seed: int = NOISE):
        return self.study.read(flats, texts, seed, layout=self.study.space.layout, **WAYS[way])


def measure_members(sides: list[Side], count: int) -> dict[str, dict]:
    """Identity of members in an image each, and the distance of these images to renders of their scenes."""
    group = sides[0].study.members(count=count)
    known, texts, numbers, found = truth(group), prompts(group), {}, {}
    wanted = judge.read(sides[0].study.network, np.stack([render(one.further[0]) for one in group]))[1]
    for way in (GUIDED, BOTH):
        for side in sides:
            seen, images = side.read(factors(side.study.points(group)), texts, way)
            name = f"{side.name}, {way}"
            found[name] = fractions(seen, known)
            numbers[f"{name}: identity"] = identity(seen, known)
            features = judge.read(side.study.network, images)[1]
            what = "judge's features of images, and of renders of their scenes"
            numbers[f"{name}: distance to renders"] = results.number(
                frechet(features, wanted), len(wanted), "Frechet", what
            )
        gain = found[f"{sides[0].name}, {way}"] - found[f"{sides[1].name}, {way}"]
        numbers[f"{sides[0].name} less {sides[1].name}, {way}: identity"] = results.bootstrap(
            gain, "paired difference on the same members", "fraction"
        )
    seen = sides[0].study.judged(
        sides[0].study.sampler.sample(
            torch.zeros(len(group), sides[0].study.space.layout.size),
            texts,
            NOISE,
            layout=sides[0].study.space.layout,
            **WAYS[BOTH],
        )
    )
    numbers["base model: identity"] = identity(seen, known)
    return numbers


def measure_sampling(sides: list[Side], count: int) -> dict[str, dict]:
    """Whether sampled points are the same person in two images of other scenes and noise."""
    group, numbers = sides[0].study.members(count=count), {}
    for side in sides:
        space = side.study.space
        points = host.pack("nodes.weights.points").sample(space, 7, count, space.components, 1.0)
        first, second = (
            side.read(factors(points), prompts(group, one), BOTH, NOISE + 10_000 * one)[0] for one in (0, 1)
        )
        what = "attributes recognized equally in two images of one sampled point"
        numbers[f"{side.name}, sampled: consistent"] = results.bootstrap(fractions(first, second), what, "fraction")
        numbers[f"{side.name}, sampled: chance agreement"] = results.bootstrap(
            fractions(first, np.roll(second, 1, 0)), "the same of two sampled points", "fraction"
        )
    return numbers


def measure_edit(sides: list[Side], name: str, count: int) -> dict[str, dict]:
    """The attribute reached and the others kept, by the edit and by the prompt, on members who lack it."""
    group, numbers = sides[0].study.members(without=name, count=count), {}
    texts, known = prompts(group), truth(group)
    attribute, values, words, _ = EDITS[name]
    columns = [IDENTITY.index(attribute)]
    wanted = [[ATTRIBUTES[attribute].index(value) for value in values]]
    for side in sides:
        flats = factors(side.study.points(group))
        before = side.read(flats, texts, GUIDED)[0]
        changes = {f"strength {strength:g}": (edited(side, group, {name: strength}), texts) for strength in (1, 1.5)}
        changes["prompt"] = flats, prompts(group, extra=words)
        for how, (made, texts_of) in changes.items():
            numbers |= _judged(
                f"{side.name}, {name}, {how}", side.read(made, texts_of, GUIDED)[0], before, known, columns, wanted
            )
    return numbers


def measure_pair(sides: list[Side], count: int) -> dict[str, dict]:
    """Two edits at once, both reached, on members who lack both."""
    group = [
        one
        for one in sides[0].study.members(without=PAIR[0], count=4 * count)
        if one.face.accessory not in EDITS[PAIR[1]][1]
    ][:count]
    texts, known, numbers = prompts(group), truth(group), {}
    columns = [IDENTITY.index(EDITS[name][0]) for name in PAIR]
    wanted = [[ATTRIBUTES[EDITS[name][0]].index(value) for value in EDITS[name][1]] for name in PAIR]
    for side in sides:
        before = side.read(factors(side.study.points(group)), texts, GUIDED)[0]
        for strength in (1, 1.5, 2):
            after = side.read(edited(side, group, dict.fromkeys(PAIR, strength)), texts, GUIDED)[0]
            numbers |= _judged(
                f"{side.name}, {' + '.join(PAIR)}, strength {strength:g}", after, before, known, columns, wanted
            )
    return numbers


def edited(side: Side, group: list, strengths: dict[str, float]) -> torch.Tensor:
    """The factors of members after edits, each in its space's own units."""
    study = side.study
    if side.name == "learned":
        step = sum(strength * study.space.directions[name].vector for name, strength in strengths.items())
        return factors([point.with_coefficients(point.coefficients + step, "edited") for point in study.points(group)])
    text = "\n".join(f"{name}: {strength:g}" for name, strength in strengths.items())
    return study.edited(study.points(group), text, ", ".join(other for other in EDITS if other not in strengths))


def measure_inversion(sides: list[Side], count: int) -> dict[str, dict]:
    """People who are no members, each from one image, in another scene: standard deviations trained with a prior."""
    side, group = sides[0], held_out(count)
    space, data = side.study.space, encode(group, side.study.sampler.generator)
    alike = (side.study.sampler.generator, Plan(rank=space.layout.rank, alpha=space.layout.alpha, rows=NOISE_SAMPLES))
    once = Encoded(*(part[:, :1].expand(-1, NOISE_SAMPLES, *part.shape[2:]) for part in (data.latents, data.contexts)))
    flats = invert(space, Trainer(*alike), once)
    numbers, known = {}, truth(group)
    what = f"; one image, {space.components} numbers, {STEPS} steps of {NOISE_SAMPLES} noise samples, prior {PRIOR:g}"
    for way in (GUIDED, BOTH):
        numbers[f"{side.name}, one image, {way}: identity"] = identity(
            side.read(flats, prompts(group), way)[0], known, what
        )
    return numbers


def invert(space, trainer: Trainer, data: Encoded) -> torch.Tensor:
    """The factors (n, D) of people from their images, many at once, as W2W Invert trains them in a learned space."""
    count, unit = len(data.latents), space.spread[1].to(device())
    population = Population(space.layout, count, 0, device())
    basis, mean = space.rows(0, space.components).to(device()), space.mean.to(device())
    numbers = torch.nn.Parameter(torch.zeros(count, space.components, device=device()))
    optimizer = torch.optim.Adam([numbers], lr=RATE)
    with adapted(trainer.network, population):
        for step in range(STEPS):
            population.flat = mean + (numbers * unit) @ basis
            loss = trainer.loss(population, data, torch.Generator().manual_seed(77_000_000 + step))
            descend(optimizer, loss + PRIOR * numbers.square().sum(), step, STEPS)
    return (mean + (numbers * unit) @ basis).detach().cpu()


def _judged(name: str, after, before, known, columns: list[int], wanted: list[list[int]]) -> dict[str, dict]:
    reached = np.all(
        [np.isin(after[:, column], values) for column, values in zip(columns, wanted, strict=True)], axis=0
    )
    rest = [column for column in range(len(IDENTITY)) if column not in columns]
    kept = fractions(after, np.where(known < 0, -1, before), rest)
    return {
        f"{name}: reached": results.fraction(reached, "members in which what the edit names is recognized"),
        f"{name}: kept": results.bootstrap(kept, "other attributes recognized as before the edit", "fraction"),
    }


def run(path: Path) -> Path:
    """Measure the learned space in a file beside the shipped one."""
    files, fit = host.pack("nodes.weights.space_file"), host.pack("nodes.weights.directions")
    made, shipped = files.read(path), files.read(ASSET)
    fitted = {name: made.labels[name] for name in EDITS}
    made = made.with_directions(
        fit.fit(made, fitted, made.components, fit.FitMethod.CONDITIONAL_DIFFERENCE, beside=made.labels)
    )
    generator, network = Generator.load(WORLD), host.pack("nodes.demo.judge").load(WORLD)
    plans = {
        "learned": (made, Plan(rank=made.layout.rank, alpha=made.layout.alpha)),
        "collected": (space_size.directed(shipped, COMPONENTS), Plan()),
    }
    sides = [
        Side(name, space, ImageSampler(generator, Trainer(generator, plan)), network, 40)
        for name, (space, plan) in plans.items()
    ]
    parts: dict[str, Callable[[], dict]] = {
        "members": lambda: measure_members(sides, 40),
        "beard": lambda: measure_edit(sides, "beard", 20),
        "inversion": lambda: measure_inversion(sides, 10),
        "pair": lambda: measure_pair(sides, 20),
        "sampling": lambda: measure_sampling(sides, 30),
        **{name: (lambda name=name: measure_edit(sides, name, 20)) for name in EDITS if name != "beard"},
    }
    rows, numbers = results.Rows("weights_learned", {"space": hashlib.sha256(path.read_bytes()).hexdigest()}), {}
    for name, part in parts.items():
        numbers |= rows.row(name, part)
        print(name, flush=True)
    command = "python run.py study weights learned learned_measure"
    return results.write("weights_learned", command, NOISE, ASSETS, numbers)
