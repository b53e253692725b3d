"""People from their pictures, many at once: coefficients in a space, or a LoRA of their own.

The coefficients are trained as W2W Invert does it (arXiv 2406.09413, section 3.4); the LoRAs as the space's members
were, which is DreamBooth-LoRA without prior preservation.
"""

from __future__ import annotations

import time

import numpy as np
import torch

from ..common import results
from ..common.training import device
from . import styles
from .grouped import Population, adapted
from .painting import Painter
from .people import SEED, Encoded, Person, encode, person
from .population import descend
from .study import Study, identity, prompts, truth

ONE, LORA_ONE, LORA_TEN = WAYS = ("coefficients, one picture", "LoRA, one picture", "LoRA, ten pictures")
STEPS, RATE = 100, 1.0
HELD_OUT = 900_000  # numbers of identities that were not trained


def measure(study: Study, count: int) -> dict[str, dict]:
    """A person who is no member, from pictures; read in a further picture."""
    group = held_out(count)
    asked, known, numbers = prompts(group), truth(group), {}
    data = encode(group, study.painter.generator)
    for way in WAYS:
        flats, seconds = find(study.painter, study.space, data, way)
        trained = study.space.components if way == ONE else study.space.layout.size
        seen, _ = study.read(flats, asked)
        numbers[f"inversion, {way}: identity"] = identity(seen, known, f"; {trained} numbers trained")
        each = np.full(len(group), seconds / len(group))
        numbers[f"inversion, {way}: seconds"] = results.bootstrap(each, "a person, all in one batch", "s")
    numbers["inversion, base model: identity"] = identity(study.read(study.base(count), asked)[0], known)
    strange = encode(group, study.painter.generator, styles.picture)
    flats, _ = find(study.painter, study.space, strange, ONE)
    seen, pictures = study.read(flats, asked)
    numbers["inversion, coefficients, one pencil drawing: identity"] = identity(seen, known)
    numbers["inversion, coefficients, one pencil drawing: pencil"] = styles.share(pictures)
    flats, _ = find(study.painter, study.space, strange, LORA_ONE)
    seen, pictures = study.read(flats, asked)
    numbers["inversion, LoRA, one pencil drawing: identity"] = identity(seen, known)
    numbers["inversion, LoRA, one pencil drawing: pencil"] = styles.share(pictures)
    return numbers


def held_out(count: int) -> list[Person]:
    """People who are no members."""
    return [person(HELD_OUT + number, SEED) for number in range(count)]


def find(painter: Painter, space, data: Encoded, way: str) -> tuple[torch.Tensor, float]:
    """Flat factors (n, D) of people, and seconds in all."""
    if way != LORA_TEN:
        data = Encoded(data.latents[:, :1], data.contexts[:, :1])
    started, count = time.perf_counter(), len(data.latents)
    population = Population(painter.trainer.layout, count, painter.trainer.plan.seed, device())
    if way == ONE:
        _coefficients(painter, space, population, data)
    else:
        optimizer = torch.optim.AdamW([population.flat], lr=painter.trainer.plan.learning_rate, weight_decay=0.01)
        _train(painter, population, data, optimizer)
    return population.flat.detach().cpu(), time.perf_counter() - started


def _coefficients(painter: Painter, space, population: Population, data: Encoded) -> None:
    """The population's factors follow from coefficients, which alone are trained."""
    coefficients = torch.nn.Parameter(torch.zeros(population.count, space.components, device=device()))
    basis = space.rows(0, space.components).to(device())
    mean, deviation = space.mean.to(device()), space.deviation.to(device())
    optimizer = torch.optim.Adam([coefficients], lr=RATE, weight_decay=1e-10)

    def rebuild() -> torch.Tensor:
        return mean + deviation * (coefficients @ basis)

    _train(painter, population, data, optimizer, rebuild)
    population.flat = torch.nn.Parameter(rebuild().detach())


def _train(painter: Painter, population: Population, data: Encoded, optimizer, rebuild=None) -> None:
    trainer = painter.trainer
    with adapted(trainer.network, population):
        for step in range(STEPS):
            if rebuild is not None:
                population.flat = rebuild()
            loss = trainer.loss(population, data, torch.Generator().manual_seed(77_000_000 + step))
            descend(optimizer, loss, step, STEPS)
