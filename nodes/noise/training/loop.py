"""The training loop: batches in, optimizer steps, and on the way validation, samples, checkpoints and a stop."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch

from .checkpoint import Store
from .feed import Batch, Feed
from .history import History, Learned
from .objective import Objective, signal_to_noise
from .samples import Painter
from .schedule import learning_rate
from .validation import Validation

OPTIMIZERS = {name: getattr(torch.optim, name) for name in ("AdamW", "Adam", "SGD", "RMSprop")}


@dataclass(frozen=True)
class Plan:
    """How long to train, how fast, and how often to do what else; counts are optimizer steps, 0 is never."""

    steps: int
    accumulation: int = 1
    learning_rate: float = 5e-4
    schedule: str = "constant"
    warmup: int = 0
    validate_every: int = 0
    sample_every: int = 0
    checkpoint_every: int = 0


class DivergedError(ValueError):
    """The loss has become infinite or NaN."""


@dataclass
class Training:
    """A run on the trainable `parameters`; `session` evaluates the model (see `Session` of nodes/host/train.py)."""

    parameters: Mapping[str, torch.nn.Parameter]
    optimizer: torch.optim.Optimizer
    plan: Plan
    objective: Objective
    validation: Validation | None = None
    painter: Painter | None = None
    store: Store | None = None
    tell: Callable[[int, torch.Tensor | None], None] = lambda done, latents: None
    history: History = field(default_factory=History)
    steps_done: int = 0
    _learned: list[Learned] = field(default_factory=list)

    def run(self, session, feed: Feed) -> None:
        """Train to the plan's end from where the run is; whatever interrupts it leaves a checkpoint first."""
        plan, resumable = self.plan, None
        batches = feed.batches((plan.steps - self.steps_done) * plan.accumulation)
        self._look(session)
        try:
            for batch in batches:
                self._learn(session, batch)
                if len(self._learned) == plan.accumulation:
                    self._step()
                    resumable = batch
                    self._look(session)
                    if plan.checkpoint_every and self.steps_done % plan.checkpoint_every == 0:
                        self._save(batch)
        except DivergedError:
            resumable = None
            raise
        finally:
            self._learned.clear()
            self.optimizer.zero_grad()
            if resumable is not None:
                self._save(resumable)

    def _save(self, batch: Batch) -> None:
        if self.store is not None:
            self.store.save(self, batch.visits, batch.position)

    def _learn(self, session, batch: Batch) -> None:
        """Add the gradient of one batch."""
        started = time.perf_counter()
        latent, noise = (tensor.to(session.device) for tensor in (batch.latents, batch.served.noise))
        sigmas = torch.tensor([session.sigma(percent) for percent in batch.draw.percents]).to(session.device)
        answer = session.denoised(session.noised(latent, noise, sigmas), sigmas, batch.draw.pictures)
        loss = self.objective(answer, session.clean(latent), signal_to_noise(session, sigmas))
        (loss / self.plan.accumulation).backward()
        seconds = time.perf_counter() - started + batch.waited / 1000
        self._learned.append(Learned(loss.item(), batch.served, batch.waited, seconds))
        if not math.isfinite(self._learned[-1].loss):
            raise DivergedError(f"The loss is no longer a number after {self.steps_done} steps: take a lower learning "
                                "rate, or fp32 for both dtypes.")  # fmt: skip

    def _step(self) -> None:
        """One step of the optimizer along the gradients that have come together."""
        plan = self.plan
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(plan.learning_rate, plan.schedule, plan.warmup, self.steps_done, plan.steps)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.steps_done += 1
        for learned in self._learned:
            self.history.add(learned)
        self._learned.clear()

    def _look(self, session) -> None:
        """Validate, paint and move the progress bar, where it is time to and not done yet."""
        plan, done, latents = self.plan, self.steps_done, None
        if self.validation is not None and _due(done, plan.validate_every, plan.steps, self.history.validation):
            self.history.validation.append((done, self.validation.loss(session, self.objective)))
        if self.painter is not None and _due(done, plan.sample_every, plan.steps, self.history.samples):
            latents = self.painter.paint(session)
            self.history.samples.append((done, latents))
        self.tell(done, latents)


def _due(done: int, every: int, steps: int, seen: list[tuple]) -> bool:
    """Whether it is time: every so many steps and at the end, but not twice at one place."""
    return (done == steps or (every > 0 and done % every == 0)) and not (seen and seen[-1][0] == done)
