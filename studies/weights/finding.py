"""People from their pictures, many at once: coefficients in a space, or a LoRA of their own.

The coefficients are trained as W2W Invert does it (arXiv 2406.09413, section 3.4); the LoRAs as the space's members
were, which is DreamBooth-LoRA without prior preservation.
"""

from __future__ import annotations

import time

import torch

from ..common.training import device
from .grouped import Population, adapted
from .painting import Painter
from .people import PICTURES, Encoded, Person, encode

ONE, LORA_ONE, LORA_TEN = WAYS = ("coefficients from one picture", "LoRA on one picture", "LoRA on ten pictures")
STEPS, RATE, LORA_RATE = 150, 1.0, 0.02


def find(painter: Painter, space, group: list[Person], way: str) -> tuple[torch.Tensor, float, int]:
    """Flat factors (n, D) of people, seconds in all, and how many numbers were trained for each."""
    data = encode(group, painter.generator)
    if way != LORA_TEN:
        first = (part[:, :1].expand(-1, PICTURES, *part.shape[2:]) for part in (data.latents, data.contexts))
        data = Encoded(*first)
    started = time.perf_counter()
    population = Population(painter.trainer.layout, len(group), painter.trainer.plan.seed, device())
    if way == ONE:
        coefficients = torch.nn.Parameter(torch.zeros(len(group), space.components, device=device()))
        _coefficients(painter, space, population, data, coefficients)
        trained = space.components
    else:
        _train(painter, population, data, torch.optim.AdamW([population.flat], lr=LORA_RATE, weight_decay=0.01))
        trained = space.layout.size
    return population.flat.detach().cpu(), time.perf_counter() - started, trained


def _coefficients(painter: Painter, space, population: Population, data: Encoded, coefficients) -> None:
    """The population's factors follow from coefficients, which alone are trained."""
    basis = space.rows(0, space.components).to(device())
    mean, deviation = space.mean.to(device()), space.deviation.to(device())
    optimizer = torch.optim.Adam([coefficients], lr=RATE, weight_decay=1e-10)

    def rebuild() -> torch.Tensor:
        return mean + deviation * (coefficients @ basis)

    _train(painter, population, data, optimizer, rebuild)
    population.flat = rebuild().detach()


def _train(painter: Painter, population: Population, data: Encoded, optimizer, rebuild=None) -> None:
    trainer = painter.trainer
    with adapted(trainer.network, population):
        for step in range(STEPS):
            for group in optimizer.param_groups:
                group.setdefault("peak", group["lr"])
                group["lr"] = group["peak"] * min(1.0, (step + 1) / 10) * (1 - 0.9 * step / STEPS)
            if rebuild is not None:
                population.flat = rebuild()
            loss = trainer.loss(population, data, torch.Generator().manual_seed(77_000_000 + step))
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
