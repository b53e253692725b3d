"""People from their images, many at once: coefficients in a space, or a LoRA of their own.

The coefficients are trained as in arXiv 2406.09413, section 3.4, at a learning rate of 1 that warms up and falls,
in 100 steps; `node_inversion.py` measures W2W Invert itself. The LoRAs are trained as the members were, which is
DreamBooth-LoRA without prior preservation.
"""

from __future__ import annotations

import time

import torch

from ..common import results
from ..common.training import device
from . import styles
from .grouped import Population, adapted
from .image_sampler import ImageSampler
from .people import SEED, Encoded, Person, encode, person
from .population import descend
from .setup import Study, identity, prompts, truth

ONE, LORA_ONE, LORA_TEN = WAYS = ("coefficients, one image", "LoRA, one image", "LoRA, ten images")
STEPS, RATE = 100, 1.0
HELD_OUT = 900_000  # numbers of identities that were not trained


def measure(study: Study, count: int, quick: bool = False) -> dict[str, dict]:
    """A person who is no member, from images; read in a further image. ``quick``: from one image of each alone."""
    group = held_out(count)
    texts, known, numbers = prompts(group), truth(group), {}
    data = encode(group, study.sampler.generator)
    for way in WAYS[:1] if quick else WAYS:
        flats, seconds = find(study.sampler, study.space, data, way)
        trained = study.space.components if way == ONE else study.space.layout.size
        seen, _ = study.read(flats, texts)
        numbers[f"inversion, {way}: identity"] = identity(seen, known, f"; {trained} numbers trained")
        what = f"per identity, {len(group)} in one batch"
        numbers[f"inversion, {way}: seconds"] = results.number(seconds / len(group), 1, "s", what)
    numbers["inversion, base model: identity"] = identity(study.read(study.base(count), texts)[0], known)
    if quick:
        return numbers
    strange = encode(group, study.sampler.generator, styles.pencil_drawing)
    flats, _ = find(study.sampler, study.space, strange, ONE)
    seen, images = study.read(flats, texts)
    numbers["inversion, coefficients, one pencil drawing: identity"] = identity(seen, known)
    numbers["inversion, coefficients, one pencil drawing: pencil"] = styles.pencil_fraction(images)
    flats, _ = find(study.sampler, study.space, strange, LORA_ONE)
    seen, images = study.read(flats, texts)
    numbers["inversion, LoRA, one pencil drawing: identity"] = identity(seen, known)
    numbers["inversion, LoRA, one pencil drawing: pencil"] = styles.pencil_fraction(images)
    return numbers


def held_out(count: int) -> list[Person]:
    """People who are no members, in scenes that no member was trained in."""
    return [person(HELD_OUT + number, SEED, own_scenes=True) for number in range(count)]


def find(sampler: ImageSampler, space, data: Encoded, way: str) -> tuple[torch.Tensor, float]:
    """Flat factors (n, D) of people, and seconds in all."""
    if way != LORA_TEN:
        data = Encoded(data.latents[:, :1], data.contexts[:, :1])
    started, count = time.perf_counter(), len(data.latents)
    population = Population(sampler.trainer.layout, count, sampler.trainer.plan.seed, device())
    if way == ONE:
        _coefficients(sampler, space, population, data)
    else:
        optimizer = torch.optim.AdamW([population.flat], lr=sampler.trainer.plan.learning_rate, weight_decay=0.01)
        _train(sampler, population, data, optimizer)
    return population.flat.detach().cpu(), time.perf_counter() - started


def _coefficients(sampler: ImageSampler, space, population: Population, data: Encoded) -> None:
    """The population's factors follow from coefficients, which alone are trained."""
    coefficients = torch.nn.Parameter(torch.zeros(population.count, space.components, device=device()))
    basis = space.rows(0, space.components).to(device())
    mean, deviation = space.mean.to(device()), space.deviation.to(device())
    optimizer = torch.optim.Adam([coefficients], lr=RATE, weight_decay=1e-10)

    def rebuild() -> torch.Tensor:
        return mean + deviation * (coefficients @ basis)

    _train(sampler, population, data, optimizer, rebuild)
    population.flat = torch.nn.Parameter(rebuild().detach())


def _train(sampler: ImageSampler, population: Population, data: Encoded, optimizer, rebuild=None) -> None:
    trainer = sampler.trainer
    with adapted(trainer.network, population):
        for step in range(STEPS):
            if rebuild is not None:
                population.flat = rebuild()
            loss = trainer.loss(population, data, torch.Generator().manual_seed(77_000_000 + step))
            descend(optimizer, loss, step, STEPS)
