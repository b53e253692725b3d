"""People from their images, many at once: coefficients in a space, or a LoRA of their own.

The coefficients of a collected space are trained as in arXiv 2406.09413, section 3.4, at a learning
rate of 1 that warms up and falls, those of a learned one in standard deviations with a prior;
`node_inversion.py` measures W2W Invert itself. The LoRAs are trained as those of a population,
which is DreamBooth-LoRA without prior preservation.
"""

from __future__ import annotations

import time
from dataclasses import replace

import torch

from ..common import results
from ..common.training import device
from . import styles
from .grouped import Population, adapted
from .image_sampler import ImageSampler
from .people import SEED, Encoded, Person, encode, person
from .population import Trainer, descend
from .setup import Study, identity, prompts, truth

ONE, LORA_ONE, LORA_TEN = WAYS = ("coefficients, one image", "LoRA, one image", "LoRA, ten images")
STEPS, RATE = 100, 1.0
#: In a learned space: the rate, the weight of the sum of squares, and noise samples a step, as W2W
#: Invert has them.
LEARNED_RATE, PRIOR, NOISE_SAMPLES = 0.15, 1e-4, 6
HELD_OUT = 900_000  # numbers of identities that were not trained


def measure(study: Study, count: int, quick: bool = False) -> dict[str, dict]:
    """A person who is no member, from images; read in a further image. ``quick``: from one image of
    each alone.
    """
    group = held_out(count)
    texts, known, numbers = prompts(group), truth(group), {}
    data = encode(group, study.sampler.generator)
    for way in WAYS[:1] if quick else WAYS:
        flats, seconds = find(study.sampler, study.space, data, way)
        trained = study.space.components if way == ONE else study.space.layout.size
        seen, _ = study.read(flats, texts)
        numbers[f"inversion, {way}: identity"] = identity(
            seen, known, f"; {trained} numbers trained"
        )
        what = f"per identity, {len(group)} in one batch"
        numbers[f"inversion, {way}: seconds"] = results.number(seconds / len(group), 1, "s", what)
    numbers["inversion, base model: identity"] = identity(
        study.read(study.base(count), texts)[0], known
    )
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


def held_out(count: int, first: int = HELD_OUT) -> list[Person]:
    """People who are no members, in scenes that no member was trained in."""
    return [person(first + number, SEED, own_scenes=True) for number in range(count)]


def find(
    sampler: ImageSampler,
    space,
    data: Encoded,
    way: str,
    steps: int = STEPS,
    rate: float | None = None,
) -> tuple[torch.Tensor, float]:
    """Flat factors (n, D) of people, and seconds in all; ``steps`` and ``rate`` are those of a
    LoRA.
    """
    if way != LORA_TEN:
        data = Encoded(data.latents[:, :1], data.contexts[:, :1])
    started = time.perf_counter()
    if way == ONE:
        return coefficients(sampler, space, data), time.perf_counter() - started
    population = Population(
        sampler.trainer.layout, len(data.latents), sampler.trainer.plan.seed, device()
    )
    optimizer = torch.optim.AdamW(
        [population.flat], lr=rate or sampler.trainer.plan.learning_rate, weight_decay=0.01
    )
    _train(sampler.trainer, population, data, optimizer, steps=steps)
    return population.flat.detach().cpu(), time.perf_counter() - started


def coefficients(sampler: ImageSampler, space, data: Encoded) -> torch.Tensor:
    """Flat factors (n, D) of people, of whom only coefficients in the space are trained."""
    trainer, unit, prior, rate = sampler.trainer, torch.ones(()), 0.0, RATE
    if space.learned:
        unit, prior, rate = space.spread[1].to(device()), PRIOR, LEARNED_RATE
        data = Encoded(
            *(part.repeat_interleave(NOISE_SAMPLES, 1) for part in (data.latents, data.contexts))
        )
        trainer = Trainer(sampler.generator, replace(trainer.plan, rows=NOISE_SAMPLES))
    population = Population(space.layout, len(data.latents), trainer.plan.seed, device())
    numbers = torch.nn.Parameter(torch.zeros(population.count, space.components, device=device()))
    basis = space.rows(0, space.components).to(device())
    mean, deviation = space.mean.to(device()), space.deviation.to(device())
    optimizer = torch.optim.Adam([numbers], lr=rate)

    def rebuild() -> torch.Tensor:
        return mean + deviation * ((unit * numbers) @ basis)

    _train(trainer, population, data, optimizer, rebuild, lambda: prior * numbers.square().sum())
    return rebuild().detach().cpu()


def _train(
    trainer: Trainer,
    population: Population,
    data: Encoded,
    optimizer,
    rebuild=None,
    prior=float,
    steps: int = STEPS,
) -> None:
    with adapted(trainer.network, population):
        for step in range(steps):
            if rebuild is not None:
                population.flat = rebuild()
            loss = trainer.loss(population, data, torch.Generator().manual_seed(77_000_000 + step))
            descend(optimizer, loss + prior(), step, steps)
