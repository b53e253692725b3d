"""One execution of the trainer: its options, and the pieces of the method put together around a
session.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

import torch

from ..loss_curve import outline
from ..resume import FREE, FinishedEarly, digest, settings_identity
from .batch_sampler import BatchPrefetcher, BatchSampler, Call, LengthUnit, NoisePairing
from .session import Session
from .training_data import TrainingData, TrainingImages
from .training_evaluation import PreviewSampler, Validation
from .training_loop import (
    LearningRateSchedule,
    Plan,
    Training,
    WeightAverage,
    keeps_state,
    make_optimizer,
)
from .training_loss import NoiseLevels, logit_normal_percent, make_objective

if TYPE_CHECKING:
    from .training_checkpoint import CheckpointFile


class OnStop(StrEnum):
    """What ComfyUI's Stop button does while the node trains."""

    KEEP_LORA = "keep_lora"
    CANCEL = "cancel"


@dataclass(frozen=True, kw_only=True)
class TrainingOptions:
    """What the node's widgets set."""

    batch_size: int
    grad_accumulation_steps: int
    steps: int
    unit: str
    learning_rate: float
    lr_schedule: str
    warmup_steps: int
    rank: int
    optimizer: str
    loss_function: str
    weighting: str
    snr_gamma: float = 5.0  # the paper's
    seed: int
    precision: str
    lora_precision: str
    algorithm: str
    gradient_checkpointing: bool = dataclasses.field(metadata=FREE)
    existing_lora: str
    held_out: int
    validation_interval: int = dataclasses.field(metadata=FREE)
    sample_interval: int = dataclasses.field(metadata=FREE)
    sample_steps: int = dataclasses.field(metadata=FREE)
    sample_cfg: float = dataclasses.field(metadata=FREE)
    checkpoint_name: str = dataclasses.field(metadata=FREE)
    checkpoint_interval: int = dataclasses.field(metadata=FREE)
    on_stop: str = dataclasses.field(metadata=FREE)
    alpha: float = 1.0
    layers: str = ""
    caption_dropout: float = 0.0
    noise_levels: str = NoiseLevels.UNIFORM
    logit_mean: float = 0.0
    logit_std: float = 1.0
    ema_decay: float = 0.0
    checkpoint_depth: int = dataclasses.field(default=1, metadata=FREE)
    text_encoder_rate: float = 1.0

    def check(self, data: TrainingData) -> None:
        """Raises ValueError for options that do not go together."""
        if self.caption_dropout and data.empty_row is None:
            raise ValueError(
                "caption_dropout needs empty_caption: connect an encoded empty prompt, or set it "
                "to 0."
            )
        if self.optimizer == "Prodigy" and data.captions and self.text_encoder_rate != 1:
            raise ValueError(
                "Prodigy takes one learning rate: set text_encoder_rate to 1, or choose AdamW."
            )
        if self.checkpoint_name.strip() and not keeps_state(self.optimizer):
            raise ValueError(
                f"A checkpoint cannot hold the state of {self.optimizer}: leave checkpoint_name "
                "empty, or choose AdamW."
            )

    def level(self) -> Callable[[float], float] | None:
        """What makes the fraction of the sampling range from a uniform draw; None keeps the
        draw.
        """
        if self.noise_levels == NoiseLevels.UNIFORM:
            return None
        return functools.partial(logit_normal_percent, mean=self.logit_mean, std=self.logit_std)

    @property
    def free(self) -> tuple[str, ...]:
        """With a constant rate a step does not depend on how many follow."""
        return ("steps",) if self.lr_schedule == LearningRateSchedule.CONSTANT else ()

    def identity(self, data: TrainingData) -> dict:
        """What a checkpoint must share: the options that change what a run computes, and the data
        that it sees.
        """
        empty = (
            data.conditions[data.empty_row]
            if self.caption_dropout and data.empty_row is not None
            else None
        )
        images = {
            "latents": data.latents,
            "positive": data.conditions[: len(data.latents)],
            "masks": data.weights,
        }
        images |= {
            "captions": [data.captions[row] for row in range(len(data.latents)) if data.captions]
        }
        return settings_identity(self) | {
            name: digest(value) for name, value in (images | {"empty_caption": empty}).items()
        }

    def sampling(self, data: TrainingData) -> str:
        """A digest of what sample images depend on beside the training."""
        prompts = [data.conditions[row] for row in data.sample_rows]
        negative = None if data.negative_row is None else data.conditions[data.negative_row]
        return digest([self.sample_steps, self.sample_cfg, prompts, negative])


class Monitor(Protocol):
    """What shows a run to the user while it trains."""

    def show(
        self, run: TrainingRun, session: Session, done: int, latents: torch.Tensor | None
    ) -> None:
        """Show that so many steps are done, and the latents sampled at this one, if any."""

    def decode(self, session: Session, done: int, latents: torch.Tensor) -> torch.Tensor:
        """The images of the latents sampled at a step."""


@dataclass(kw_only=True)
class TrainingRun:
    """Trains the `parameters` of an adapter in a session of the model; `interrupt` is what a stop
    by the user raises. `call` waits for a batch, and may stop by raising that.

    `checkpoint`: where the run is kept; None keeps nothing. `monitor`: samples are drawn when
    `with_samples` is set. `text`: the names of the parameters that belong to a text encoder, which
    have a learning rate of their own. `pairing`: makes the pairing of noise for the images in
    training on a device; None keeps the noise as drawn.
    """

    options: TrainingOptions
    data: TrainingData
    parameters: Mapping[str, torch.nn.Parameter]
    monitor: Monitor
    interrupt: type[BaseException]
    call: Call = lambda work: work()
    with_samples: bool = False
    checkpoint: CheckpointFile | None = None
    text: Collection[str] = ()
    pairing: Callable[[TrainingImages, torch.device], NoisePairing] | None = None
    training: Training = field(init=False)

    def __post_init__(self) -> None:
        options = self.options
        data = self.data
        held_out = range(data.trained, len(data.latents))
        groups = [
            {
                "params": [
                    p
                    for name, p in self.parameters.items()
                    if p.requires_grad and (name in self.text) is of_text
                ],
                "ratio": ratio,
            }
            for of_text, ratio in ((False, 1.0), (True, options.text_encoder_rate))
        ]
        self.training = Training(
            parameters=self.parameters,
            optimizer=make_optimizer(
                options.optimizer,
                [group for group in groups if group["params"]],
                options.learning_rate,
            ),
            plan=Plan(
                steps=self._steps(),
                accumulation=options.grad_accumulation_steps,
                learning_rate=options.learning_rate,
                schedule=options.lr_schedule,
                warmup=options.warmup_steps,
                validation_interval=options.validation_interval,
                sample_interval=options.sample_interval,
                checkpoint_interval=options.checkpoint_interval,
            ),
            objective=make_objective(options.loss_function, options.weighting, options.snr_gamma),
            validation=Validation(held_out, options.seed, data.weights) if held_out else None,
            sampler=PreviewSampler(
                rows=data.sample_rows,
                negative=data.negative_row,
                cfg=options.sample_cfg,
                steps=options.sample_steps,
                seed=options.seed,
            )
            if self.with_samples
            else None,
            checkpoint=self.checkpoint,
            average=WeightAverage(self.parameters, options.ema_decay)
            if options.ema_decay
            else None,
            empty_row=data.empty_row,
            weights=data.weights,
        )

    def train(self, session: Session) -> None:
        """Train in a session of the model.

        The person may finish it early, by Finish now or by Stop where the options keep the LoRA
        then; else a stop passes. The checkpoint is written before.
        """
        options = self.options
        training = self.training
        images = TrainingImages(session.latents[: self.data.trained], self.data.labels)
        sampler = BatchSampler(
            images=images,
            batch_size=options.batch_size,
            seed=options.seed,
            unit=options.unit,
            level=options.level(),
            dropout=options.caption_dropout,
        )
        noise = None if self.pairing is None else self.pairing(images, session.device)
        training.on_step = functools.partial(self.monitor.show, self, session)
        if self.checkpoint is not None:
            self.checkpoint.restore(training, noise, sampler)
        training.finishing = (
            (FinishedEarly,)
            if options.on_stop == OnStop.CANCEL
            else (FinishedEarly, self.interrupt)
        )
        try:
            training.run(session, BatchPrefetcher(images, sampler, noise, call=self.call))
        except training.finishing:
            if training.steps_done == 0:
                raise
        finally:
            training.on_step = lambda done, latents: (
                None
            )  # else a circle, which holds the session and its model
        if training.average is not None:
            training.average.install()
        for done, latents in training.history.samples:
            self.monitor.decode(session, done, latents)

    def curve(self) -> dict:
        """The losses as the canvas draws them."""
        history = self.training.history
        plan = self.training.plan
        return outline(history.losses, plan.steps, plan.accumulation, history.validation)

    def _steps(self) -> int:
        """How many optimizer steps the run has; the last epoch is filled up to a whole one."""
        options = self.options
        if options.unit != LengthUnit.EPOCHS:
            return options.steps
        images = TrainingImages(self.data.latents[: self.data.trained], ())
        batches = BatchSampler(
            images, options.batch_size, options.seed, options.unit
        ).batches_per_epoch
        return -(-options.steps * batches // options.grad_accumulation_steps)
