"""A training on the canvas."""

from __future__ import annotations

import torch

from ...common.training.session import Session
from ...common.training.training_run import TrainingRun
from ..progress import FinishNow, LiveCurve, Progress, nothing_to_show


class TrainingMonitor:
    """Shows a run on the canvas: the progress bar, the loss curve, and sample images, each decoded once.

    After a step it ends the run where Finish now was pressed.
    """

    def __init__(self, vae, finish: FinishNow):
        self._vae, self._finish, self._live = vae, finish, LiveCurve()
        self._progress: Progress | None = None
        self._images: dict[int, torch.Tensor] = {}  # steps done -> IMAGE

    def show(self, run: TrainingRun, session: Session, done: int, latents: torch.Tensor | None) -> None:
        """See `training_run.Monitor`."""
        self._progress = self._progress or Progress(run.training.plan.steps)
        self._live.show(run.curve)
        self._progress.show(done, None if latents is None else self.decode(session, done, latents))
        if done:
            self._finish.check()

    def decode(self, session: Session, done: int, latents: torch.Tensor) -> torch.Tensor:
        """See `training_run.Monitor`."""
        if done not in self._images:
            with torch.inference_mode():
                images = self._vae.decode(session.as_latent(latents))
            self._images[done] = images.reshape(-1, *images.shape[-3:])
            session.reload()
        return self._images[done]

    def all_images(self):
        """Everything decoded, oldest first; an output that rests when there is nothing."""
        images = [self._images[done] for done in sorted(self._images)]
        return torch.cat(images) if images else nothing_to_show()
