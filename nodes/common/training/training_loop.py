"""The training loop: batches in, optimizer steps, and on the way validation, samples, checkpoints
and a stop.
"""

from __future__ import annotations

import contextlib
import importlib
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

import torch

from ..resume import FinishedEarly
from .batch_sampler import BatchPrefetcher, TrainingBatch
from .session import Session
from .training_evaluation import PreviewSampler, Validation
from .training_loss import Objective, signal_to_noise

if TYPE_CHECKING:
    from .training_checkpoint import CheckpointFile

_TORCH_OPTIMIZERS = ("AdamW", "Adam", "SGD", "RMSprop")
#: Those of other packages: the module and its class, and what pip calls it.
_OTHER_OPTIMIZERS = {
    "Prodigy": ("prodigyopt", "Prodigy", "prodigyopt"),
    "AdamW8bit": ("bitsandbytes.optim", "AdamW8bit", "bitsandbytes"),
}
OPTIMIZERS = (*_TORCH_OPTIMIZERS, *_OTHER_OPTIMIZERS)


def make_optimizer(name: str, parameters: list, rate: float) -> torch.optim.Optimizer:
    """An optimizer of `OPTIMIZERS` with its package's defaults; raises ValueError where that is not
    installed.

    `parameters`: tensors, or groups of them as dicts, whose "ratio" is what the learning rate is
    multiplied by.
    """
    if name in _TORCH_OPTIMIZERS:
        return getattr(torch.optim, name)(parameters, lr=rate)
    module, kind, package = _OTHER_OPTIMIZERS[name]
    try:
        made = getattr(importlib.import_module(module), kind)
    except ImportError as error:
        from ..packages import missing_package

        missing = missing_package(f"The optimizer {name}", package, error)
        raise ValueError(f"{missing}, or choose AdamW.") from error
    return made(parameters, lr=rate)


def keeps_state(name: str) -> bool:
    """Whether checkpoints hold all that an optimizer remembers; others keep some of it elsewhere or
    packed.
    """
    return name in _TORCH_OPTIMIZERS


class WeightAverage:
    """The exponential moving average of parameters over optimizer steps (EMA), in float32.

    After step n it moves by 1 - min(decay, (1 + n) / (10 + n)) towards them, so that short runs
    leave the start too.
    """

    def __init__(self, parameters: Mapping[str, torch.nn.Parameter], decay: float):
        self._parameters = parameters
        self._decay = decay
        self.values = {
            name: parameter.detach().float().clone() for name, parameter in parameters.items()
        }

    @torch.no_grad()
    def update(self, steps_done: int) -> None:
        """Take the parameters in after a step."""
        decay = min(self._decay, (1 + steps_done) / (10 + steps_done))
        for name, parameter in self._parameters.items():
            self.values[name] = torch.lerp(
                parameter.float(), self.values[name].to(parameter.device), decay
            )

    @torch.no_grad()
    def install(self) -> None:
        """Write the average into the parameters."""
        for name, parameter in self._parameters.items():
            parameter.copy_(self.values[name])

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """The average in the parameters while the block runs."""
        own = {name: parameter.detach().clone() for name, parameter in self._parameters.items()}
        self.install()
        try:
            yield
        finally:
            with torch.no_grad():
                for name, parameter in self._parameters.items():
                    parameter.copy_(own[name])


class LearningRateSchedule(StrEnum):
    """The learning rate after warm-up."""

    CONSTANT = "constant"
    LINEAR = "linear"
    COSINE = "cosine"


def learning_rate(peak: float, schedule: str, warmup: int, step: int, steps: int) -> float:
    """The rate of optimizer step `step` (from 0) of `steps`: rises over `warmup` steps, then falls
    to 0 or stays.
    """
    if step < warmup:
        return peak * (step + 1) / warmup
    fraction = (step - warmup) / max(1, steps - warmup)
    match LearningRateSchedule(schedule):
        case LearningRateSchedule.LINEAR:
            return peak * (1 - fraction)
        case LearningRateSchedule.COSINE:
            return peak * (1 + math.cos(math.pi * fraction)) / 2
    return peak


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How long to train, how fast, and how often to do what else; counts are optimizer steps, 0 is
    never.
    """

    steps: int
    accumulation: int = 1
    learning_rate: float = 5e-4
    schedule: str = LearningRateSchedule.CONSTANT
    warmup: int = 0
    validation_interval: int = 0
    sample_interval: int = 0
    checkpoint_interval: int = 0


@dataclass(kw_only=True)
class History:
    """What a run leaves behind beside its weights; a checkpoint holds it whole."""

    losses: list[float] = field(default_factory=list)  # one per batch
    validation: list[tuple[int, float]] = field(default_factory=list)  # optimizer steps done, loss
    samples: list[tuple[int, torch.Tensor]] = field(
        default_factory=list
    )  # optimizer steps done, latents
    before: float = 0.0  # sums of the distances of noise and image: as drawn,
    after: float = 0.0  # and as paired
    seconds: float = 0.0  # of forward, backward and waiting
    pairing: float = 0.0  # milliseconds that pairing took, in its thread
    waited: float = 0.0  # milliseconds for which the model waited for a batch
    finished_at: tuple[int, int] | None = (
        None  # optimizer steps done of those planned, where the person ended it
    )

    @property
    def gain(self) -> float:
        """Percent by which pairing has shortened the distance of noise and image."""
        return 100 * (1 - self.after / self.before) if self.before else 0.0

    @property
    def waiting_percent(self) -> float:
        """Percent of the run for which the model waited for a batch."""
        return self.waited / (10 * self.seconds) if self.seconds else 0.0

    def loss_map(self) -> dict[str, list]:
        """As LOSS_MAP: the losses under "loss", as core's plot takes them, and the held-out ones
        under "validation".

        "finished_at" holds the steps done and planned of a run that the person ended.
        """
        ended = {} if self.finished_at is None else {"finished_at": list(self.finished_at)}
        return {
            "loss": list(self.losses),
            "validation": [list(point) for point in self.validation],
            **ended,
        }


class DivergedError(ValueError):
    """The loss has become infinite or NaN."""


@dataclass
class Training:
    """A run on the trainable `parameters`.

    `on_step` is called with the optimizer steps done and the latents sampled at this step, if any.
    `average`: what validation and samples see in place of the parameters. `empty_row`: the
    session's condition of images whose caption is dropped. `weights`: for each image of the session
    how much each position counts. `finishing`: exceptions by which the person ends the run with
    what it has.
    """

    parameters: Mapping[str, torch.nn.Parameter]
    optimizer: torch.optim.Optimizer
    plan: Plan
    objective: Objective
    validation: Validation | None = None
    sampler: PreviewSampler | None = None
    checkpoint: CheckpointFile | None = None
    on_step: Callable[[int, torch.Tensor | None], None] = lambda done, latents: None
    history: History = field(default_factory=History)
    steps_done: int = 0
    average: WeightAverage | None = None
    empty_row: int | None = None
    weights: Sequence[torch.Tensor] | None = None
    finishing: tuple[type[BaseException], ...] = (FinishedEarly,)

    def run(self, session: Session, prefetcher: BatchPrefetcher) -> None:
        """Train to the plan's end from where the run is; whatever interrupts it leaves a checkpoint
        first.

        A run that was finished early is only validated and sampled, where a Stop came in between.
        """
        if self.history.finished_at is not None:
            self._evaluate(session)
            return
        plan = self.plan
        resumable = None
        batches = prefetcher.batches((plan.steps - self.steps_done) * plan.accumulation)
        learned: list[tuple[float, TrainingBatch, float]] = []
        try:
            self._evaluate(session)
            for batch in batches:
                learned.append(self._backward(session, batch))
                if len(learned) == plan.accumulation:
                    self._step(learned)
                    learned.clear()
                    resumable = batch
                    self._evaluate(session)
                    if plan.checkpoint_interval and self.steps_done % plan.checkpoint_interval == 0:
                        self._save(batch)
        except DivergedError:
            resumable = None
            raise
        except self.finishing as reason:
            if 0 < self.steps_done < plan.steps:
                self.history.finished_at = self.steps_done, plan.steps
                if isinstance(
                    reason, FinishedEarly
                ):  # not after a Stop, which should not wait for images
                    self._evaluate(session)
            raise
        finally:
            self.optimizer.zero_grad()
            if resumable is not None:
                self._save(resumable)

    def _save(self, batch: TrainingBatch) -> None:
        if self.checkpoint is not None:
            self.checkpoint.save(self, batch.visits, batch.position)

    def _backward(
        self, session: Session, batch: TrainingBatch
    ) -> tuple[float, TrainingBatch, float]:
        """Add the gradient of one batch; its loss, itself, and the seconds that it took."""
        started = time.perf_counter()
        latent, noise = (tensor.to(session.device) for tensor in (batch.latents, batch.noise))
        sigmas = torch.tensor([session.sigma(percent) for percent in batch.draw.percents]).to(
            session.device
        )
        rows = [
            image if self.empty_row is None or not dropped else self.empty_row
            for image, dropped in zip(batch.draw.images, batch.draw.dropped, strict=True)
        ]
        weights = (
            None
            if self.weights is None
            else torch.cat([self.weights[image] for image in batch.draw.images])
        )
        prediction = session.denoised(
            session.noised(latent, noise, sigmas), sigmas, rows, images=batch.draw.images
        )
        loss = self.objective(
            prediction, session.clean(latent), signal_to_noise(session, sigmas), weights
        )
        (loss / self.plan.accumulation).backward()
        seconds = time.perf_counter() - started + batch.waited / 1000
        value = loss.item()
        if not math.isfinite(value):
            raise DivergedError(
                f"The loss is no longer a finite number after {self.steps_done} steps: use a lower "
                "learning rate, or fp32 for both precisions."
            )
        return value, batch, seconds

    def _step(self, learned: list[tuple[float, TrainingBatch, float]]) -> None:
        """One step of the optimizer along the accumulated gradients."""
        plan = self.plan
        history = self.history
        for group in self.optimizer.param_groups:
            rate = learning_rate(
                plan.learning_rate,
                plan.schedule,
                warmup=plan.warmup,
                step=self.steps_done,
                steps=plan.steps,
            )
            group["lr"] = rate * group.get("ratio", 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.steps_done += 1
        if self.average is not None:
            self.average.update(self.steps_done)
        for loss, batch, seconds in learned:
            history.losses.append(loss)
            if batch.pairing is not None:
                history.before += float(batch.pairing.before.sum())
                history.after += float(batch.pairing.after.sum())
                history.pairing += batch.pairing.milliseconds
            history.waited += batch.waited
            history.seconds += seconds

    def _evaluate(self, session: Session) -> None:
        """Validate, sample and report the progress, where it is time to and not done yet."""
        plan = self.plan
        done = self.steps_done
        latents = None

        def is_due(every: int, seen: list[tuple]) -> bool:
            last = done == plan.steps or self.history.finished_at is not None
            return (last or (every > 0 and done % every == 0)) and not (
                seen and seen[-1][0] == done
            )

        with contextlib.nullcontext() if self.average is None else self.average.installed():
            if self.validation is not None and is_due(
                plan.validation_interval, self.history.validation
            ):
                self.history.validation.append(
                    (done, self.validation.loss(session, self.objective))
                )
            if self.sampler is not None and is_due(plan.sample_interval, self.history.samples):
                latents = self.sampler.sample(session)
                self.history.samples.append((done, latents))
        self.on_step(done, latents)
