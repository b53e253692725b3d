"""A training of the weights family inside of a session of its MODEL: previews, checkpoints, the
loss curve and Finish now.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from ..common import resume
from ..common.loss_curve import outline
from ..host.precision import Precision
from ..host.progress import FinishNow, LiveCurve, Progress

if TYPE_CHECKING:
    from ..common.training.session import Session
    from .resumable_training import ResumableTraining


@dataclass(frozen=True, kw_only=True)
class Monitoring:
    """How a training is computed, shown and saved."""

    precision: Precision
    gradient_checkpointing: bool
    preview_interval: int
    checkpoint: Path | None
    checkpoint_interval: int


@dataclass(kw_only=True)
class MonitoredRun(ABC):
    """One execution of a trainer.

    ``further``: tensors that the checkpoint holds beside the state of the training. ``inputs``
    changes with any input of the node: a run that the person has finished early goes on for others
    alone.
    """

    #: The kind of the checkpoint's file and the version of its format.
    KIND: ClassVar[tuple[str, int]]

    training: ResumableTraining
    monitoring: Monitoring
    identity: Mapping[str, object] = field(default_factory=dict)
    inputs: str = ""
    further: dict[str, torch.Tensor] = field(default_factory=dict)
    images: Any = None
    seconds: float = 0.0

    @abstractmethod
    def sample(self, session: Session) -> torch.Tensor | None:
        """Images of the training so far, (B, H, W, 3); None where there are none to show."""

    @abstractmethod
    def measure(self, session: Session) -> None:
        """Read off the finished training what the report says of it."""

    def resume(self, identity: Mapping[str, object]) -> dict[str, torch.Tensor]:
        """Go on from the checkpoint, if there is one of the same work, ``identity``: all that a
        step computes with. Returns the file's tensors, none where there is no file.
        """
        self.identity = identity
        checkpoint = self.monitoring.checkpoint
        if checkpoint is None:
            return {}
        loaded = resume.load_state(checkpoint, *self.KIND, identity)
        if loaded is None:
            return {}
        tensors, finished = loaded
        try:
            self.training.restore(tensors)
            self.training.finished_early = finished == self.inputs
        except (KeyError, TypeError, ValueError):
            raise resume.damaged(checkpoint.name) from None
        return tensors

    def train(self, session: Session) -> None:
        """Train in a session of the model."""
        training = self.training
        progress = Progress(training.settings.steps)
        live = LiveCurve()
        finish = FinishNow()
        first = training.steps_done
        started = time.perf_counter()
        interval = self.monitoring.preview_interval

        def on_step(done: int) -> None:
            if done % self.monitoring.checkpoint_interval == 0:
                self.save()
            live.show(self.curve)
            due = interval and done % interval == 0 and done < training.settings.steps
            progress.show(done, self._preview(session) if due else None)
            finish.check()

        try:
            with finish:
                if not training.finished_early:
                    training.run(session, on_step)
        except resume.FinishedEarly:
            training.finished_early = training.steps_done < training.settings.steps
        finally:
            self.seconds = (time.perf_counter() - started) / max(training.steps_done - first, 1)
            if training.steps_done > first:
                self.save()
        self.measure(session)
        progress.show(training.steps_done, self._preview(session))

    def curve(self) -> dict:
        """The losses as the canvas draws them."""
        return outline(self.training.losses, self.training.settings.steps)

    def save(self) -> None:
        """Write the checkpoint, where there is one."""
        if self.monitoring.checkpoint is not None:
            finished = self.inputs if self.training.finished_early else None
            resume.save_state(
                self.monitoring.checkpoint,
                *self.KIND,
                identity=self.identity,
                tensors={**self.training.state(), **self.further},
                about=finished,
            )

    def _preview(self, session: Session) -> torch.Tensor | None:
        self.images = self.sample(session)
        return self.images


def decoded(vae: Any, session: Session, latents: torch.Tensor) -> torch.Tensor:
    """Latents in the model's scale as images (B, H, W, 3); the model is on its device again."""
    # not inference mode, in whose tensors PyTorch's watch on changes in place (Flux) fails
    with torch.no_grad():
        images = vae.decode(session.as_latent(latents))
    session.reload()
    return images.reshape(-1, *images.shape[-3:])
