"""W2W Train Space on a MODEL: training in its session, with previews, checkpoints and Finish now."""

from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from ..common import resume
from ..common.loss_curve import outline
from ..host.identity import model_digest
from ..host.progress import FinishNow, LiveCurve, Progress
from ..host.training import trainer
from . import learned_space_comfy
from .learned_space import LearnedUpdates
from .space import Space
from .space_training import SpaceTraining, SpaceTrainingSettings

_DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}
_KIND = "space training", 1


@dataclass(frozen=True)
class Shape:
    """Which layers the space changes (words as in ``layers_of``), their rank, and at most so many components."""

    layers: str
    rank: int
    components: int


@dataclass(frozen=True)
class How:
    """How it is computed, shown and kept."""

    precision: str
    gradient_checkpointing: bool
    preview_interval: int
    checkpoint: Path | None
    checkpoint_interval: int


def train(
    patcher,
    vae,
    people: learned_space_comfy.People,
    name: str,
    shape: Shape,
    settings: SpaceTrainingSettings,
    how: How,
) -> tuple[Space, Run]:
    """A space of the people, called ``name``, trained on a MODEL, and how it went."""
    changed = learned_space_comfy.layers_of(patcher, shape.layers)
    layout, base = learned_space_comfy.layout_of(patcher, changed, shape.rank)
    count = min(shape.components, len(people.names))
    with torch.inference_mode(False):
        updates = LearnedUpdates(layout, len(people.names), count, settings.seed % 2**63, patcher.load_device)
        run = Run(SpaceTraining(updates, people.data, settings), people, vae, how)
        if how.checkpoint is not None:
            apart = [how.gradient_checkpointing, how.preview_interval, how.checkpoint_interval]
            run.inputs = resume.digest([settings, *apart])
            run.resume(how.checkpoint, {"model": model_digest(patcher), "precision": how.precision})
        with learned_space_comfy.changed(changed, updates):
            trainer.run(
                patcher,
                {},
                people.latents,
                people.conditions,
                run.train,
                dtype=_DTYPES[how.precision],
                checkpointing=how.gradient_checkpointing,
                seed=settings.seed,
            )
        return updates.space(people.names, name, base), run


@dataclass
class Run:
    """One execution: training with previews, checkpoints, and Finish now."""

    training: SpaceTraining
    people: learned_space_comfy.People
    vae: Any
    how: How
    identity: dict = field(default_factory=dict)
    inputs: str = ""  # changes with any of the node: what the person has finished early goes on for others alone
    images: Any = None
    seconds: float = 0.0
    fit: tuple[float, float] = (0.0, 0.0)

    def resume(self, checkpoint: Path, identity: dict) -> None:
        """Go on from the checkpoint, if there is one of the same work: all that a step computes with."""
        training, people = self.training, self.people
        settings = dataclasses.asdict(training.settings)
        settings |= {"members_per_step": settings.pop("members"), "images_per_member": settings.pop("images")}
        del settings["batch_size"]
        members = dict(zip(people.names, map(list, training.data.images), strict=True))
        data = [people.latents, people.conditions, list(training.data.conditions), training.data.weights]
        self.identity = {**identity, **settings, "layers": training.updates.layout.to_json(), "members": members}
        self.identity |= {"components": training.updates.codes.shape[1], "images": resume.digest(data)}
        found = resume.load_state(checkpoint, *_KIND, self.identity)
        if found is not None:
            try:
                training.restore(found[0])
                training.finished_early = found[1] == self.inputs
            except (KeyError, ValueError, RuntimeError):
                raise resume.damaged(checkpoint.name) from None

    def train(self, session) -> None:
        """Train in a session of the model."""
        training = self.training
        progress, live, finish, first = Progress(training.settings.steps), LiveCurve(), FinishNow(), training.steps_done
        started = time.perf_counter()

        def on_step(done: int) -> None:
            if done % self.how.checkpoint_interval == 0:
                self._save()
            live.show(self.curve)
            due = self.how.preview_interval and done % self.how.preview_interval == 0 and done < training.settings.steps
            progress.show(done, self._sample(session) if due else None)
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
                self._save()
        self.fit = training.fit(session)
        progress.show(training.steps_done, self._sample(session))

    def curve(self) -> dict:
        """The losses as the canvas draws them."""
        return outline(self.training.losses, self.training.settings.steps)

    def _save(self) -> None:
        if self.how.checkpoint is not None:
            finished = self.inputs if self.training.finished_early else None
            resume.save_state(self.how.checkpoint, *_KIND, self.identity, self.training.state(), finished)

    def _sample(self, session) -> torch.Tensor:
        """The first two members and a sampled point, decoded."""
        updates, data, seed = self.training.updates, self.training.data, self.training.settings.seed
        drawn = updates.sampled_code(torch.Generator().manual_seed(seed % 2**63))
        codes = torch.cat([updates.codes.detach()[:2], drawn[None]])
        rows = [data.conditions[data.images[0][0]]] * 3
        latents = learned_space_comfy.sample(session, updates, codes, rows, self.people.empty, seed)
        with torch.no_grad():  # not inference mode, in whose tensors PyTorch's watch on changes in place (Flux) fails
            images = self.vae.decode(session.as_latent(latents))
        self.images = images.reshape(-1, *images.shape[-3:])
        session.reload()
        return self.images
