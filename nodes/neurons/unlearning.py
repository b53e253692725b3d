"""Adversarial unlearning after Finding DoRI (arXiv 2507.16880): attacked embeddings shall give
other images.

The attack of the audit searches embeddings that bring the memorized image back, and goes on between
the steps of the training; the model learns to give a surrogate for each, and to stay as it is on
ordinary captions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from statistics import mean
from typing import Any

import torch

from .audit import Attack, AttackSettings, EmbeddingSession


@dataclass(frozen=True, kw_only=True)
class UnlearningSettings:
    """How a model is trained; ``attack_steps`` per step of the training, 0 for none.

    ``restart``: after how many steps an attack begins again from another start. ``keep``: weight of
    the ordinary captions.
    """

    steps: int = 75
    learning_rate: float = 0.004
    batch_size: int = 4
    keep: float = 2.0
    attack_steps: int = 2
    restart: int = 50
    attack: AttackSettings = field(default_factory=lambda: AttackSettings(noise_samples=4))
    seed: int = 0

    @property
    def rows(self) -> tuple[int, int]:
        """How many rows of the network the training takes with gradients, and without."""
        ordinary = self.steps * self.batch_size
        return 2 * ordinary + self.steps * self.attack_steps * self.attack.noise_samples, ordinary


@dataclass(frozen=True)
class UnlearningLosses:
    """Of each step of the attack, and of each step of the training: the surrogates under attack,
    ordinary captions.
    """

    attack: list[float]
    surrogates: list[float]
    ordinary: list[float]


def unlearn(
    session: EmbeddingSession,
    surrogates: int,
    starts: list[torch.Tensor],
    parameters: Iterable[torch.Tensor],
    settings: UnlearningSettings,
    show_progress: Callable[[int], None],
) -> UnlearningLosses:
    """Train ``parameters`` so that embeddings which bring the session's first image back give
    surrogates instead.

    The session's images: the memorized one, ``surrogates`` surrogates, and ordinary images, each
    with its own CONDITIONING. ``starts``: where attacks begin, embeddings (1, tokens, D), in turn.
    The loss of a step is DoRI's

        mean |eps - eps_theta(surrogate_t, t, y)|^2 + keep * mean |eps_0(x_t, t, c) - eps_theta(x_t,
        t, c)|^2

    with y the attacked embedding and eps_0 the untouched model, which takes the place of the
    paper's real images.
    """
    generator = torch.Generator().manual_seed(settings.seed)
    images = [latent.to(session.device) for latent in session.latents]
    parameters = list(parameters)
    optimizer = torch.optim.AdamW(parameters, lr=settings.learning_rate, weight_decay=0.0)
    losses = UnlearningLosses([], [], [])
    attack = None
    begun = 0
    for step in range(settings.steps):
        if attack is None or len(attack.losses) >= settings.restart:
            attack = Attack(
                session=session,
                latent=images[0],
                start=starts[begun % len(starts)],
                settings=settings.attack,
                generator=generator,
            )
            begun += 1

        rows, x, noise, timestep = _noised(
            session,
            images,
            choice=range(1, 1 + surrogates),
            count=settings.batch_size,
            generator=generator,
        )
        latent = torch.cat([images[row] for row in rows])
        error = session.predicted(x, timestep, attack.embedding)
        error = error - session.target(latent, noise, timestep)
        forgotten = (session.weight(timestep) * error.square()).mean()
        forgotten.backward()

        rows, x, noise, timestep = _noised(
            session,
            images,
            choice=range(1 + surrogates, len(images)),
            count=settings.batch_size,
            generator=generator,
        )
        with session.untouched():
            target = session.predicted(x, timestep, rows=rows)
        error = session.predicted(x, timestep, rows=rows) - target
        kept = (session.weight(timestep) * error.square()).mean()
        (settings.keep * kept).backward()
        optimizer.step()
        optimizer.zero_grad()

        losses.surrogates.append(float(forgotten.detach()))
        losses.ordinary.append(float(kept.detach()))
        for _ in range(settings.attack_steps):
            attack.advance()
            losses.attack.append(attack.losses[-1])
        show_progress(step + 1)
    return losses


def _noised(
    session: EmbeddingSession, images: Any, choice: range, count: int, generator: torch.Generator
) -> tuple:
    """``count`` images of a choice, drawn with new noise and timesteps: rows, noised latents,
    noise, timesteps.
    """
    rows = [choice[int(i)] for i in torch.randint(len(choice), (count,), generator=generator)]
    latent = torch.cat([images[row] for row in rows])
    noise = torch.randn(latent.shape, generator=generator).to(latent)
    timestep = torch.randint(1, session.steps, (count,), generator=generator).to(latent.device)
    return rows, session.noised(latent, noise, timestep), noise, timestep


def describe(losses: UnlearningLosses, settings: UnlearningSettings, prompts: int) -> str:
    """Losses at the start and the end, the cost, and what they do not show."""
    with_gradients, without = settings.rows
    tenth = max(settings.steps // 10, 1)
    lines = [
        f"{settings.steps} steps: {with_gradients} rows of the network with gradients, {without} "
        "without.",
        *(
            f"Loss of {what}: {mean(values[:tenth]):.4f} at the start, {mean(values[-tenth:]):.4f} "
            "at the end."
            for what, values in (
                ("the surrogates", losses.surrogates),
                ("the attack", losses.attack),
            )
            if values
        ),
        f"Ordinary prompts ({prompts}): changed by {mean(losses.ordinary[-tenth:]):.5f} at the end "
        "(mean squared difference from the untouched model).",
        "No attack took part: an optimized embedding can bring the image back."
        if not settings.attack_steps
        else "Trained against this attack only; a longer or another one may bring the image back.",
        "These losses do not show that the image is gone: check with Memorization Audit, with a "
        "control image.",
    ]
    return "\n".join(lines)
