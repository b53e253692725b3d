"""LoRAs trained for an attribute in the manner of Concept Sliders (Gandikota et al., arXiv
2311.12092, equation 7).

A slider makes the model answer to "portrait" what the frozen model answers, moved from the words
against the attribute towards those for it. All attributes are trained in one batch, on the noised
images of people.
"""

from __future__ import annotations

import torch

from ..common.training import device
from .grouped import Population, adapted
from .people import encode, people
from .population import descend

NEUTRAL = "portrait"
PEOPLE, ROWS, STEPS, GUIDANCE = 12, 4, 60, 3.0


def train(sampler, edits: dict[str, tuple]) -> torch.Tensor:
    """A slider for each edit (attribute, values, words for, words against): flat factors (edits,
    D).
    """
    trainer, generator = sampler.trainer, torch.Generator().manual_seed(11)
    latents = encode(people(PEOPLE), sampler.generator).latents.flatten(0, 1).float()
    words = [words for _, _, *words in edits.values()]
    towards, away = (
        sampler.contexts([pair[side] for pair in words]).repeat_interleave(ROWS, 0)
        for side in (0, 1)
    )
    neutral = sampler.contexts([NEUTRAL]).expand_as(towards)
    population = Population(trainer.layout, len(edits), trainer.plan.seed, device())
    optimizer = torch.optim.AdamW(
        [population.flat], lr=trainer.plan.learning_rate, weight_decay=0.01
    )
    for step in range(STEPS):
        picks = torch.randint(len(latents), (len(neutral),), generator=generator)
        noised, timesteps, _, _ = trainer.noised(latents[picks], generator)
        with torch.no_grad():
            plain, plus, minus = (
                trainer.predict(noised, timesteps, context) for context in (neutral, towards, away)
            )
        with adapted(trainer.network, population):
            answer = trainer.predict(noised, timesteps, neutral)
            error = (answer - (plain + GUIDANCE * (plus - minus))).square().mean((1, 2, 3))
            descend(optimizer, error.view(len(edits), ROWS).mean(dim=1).sum(), step, STEPS)
    return population.flat.detach().cpu()
