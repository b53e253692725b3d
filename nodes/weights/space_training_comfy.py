"""W2W Train Space on a MODEL: training in its session, with previews, checkpoints and Finish
now.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from ..common import resume
from ..host.compute import request_for_training
from ..host.identity import model_digest
from ..host.training import trainer
from . import learned_space_comfy
from .learned_space import LearnedUpdates
from .monitored_run_comfy import MonitoredRun, Monitoring, decoded
from .space import Space
from .space_training import SpaceTraining, SpaceTrainingSettings

if TYPE_CHECKING:
    from ..common.training.session import Session
    from ..host.socket_types import VAE, ModelPatcher


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Which layers the space changes (words as in ``layers_of``), their rank, and at most so many
    components.
    """

    layers: str
    rank: int
    components: int


def train(
    patcher: ModelPatcher,
    vae: VAE,
    people: learned_space_comfy.People,
    name: str,
    shape: Shape,
    settings: SpaceTrainingSettings,
    monitoring: Monitoring,
) -> tuple[Space, SpaceRun]:
    """A space of the people, called ``name``, trained on a MODEL, and how it went."""
    changed = learned_space_comfy.layers_of(patcher, shape.layers, people)
    layout, base = learned_space_comfy.layout_of(patcher, changed, shape.rank)
    count = min(shape.components, len(people.names))
    needed = LearnedUpdates.training_bytes(layout, len(people.names), count)
    request_for_training(needed)  # before the components and Adam's moments are made
    with torch.inference_mode(False):
        updates = LearnedUpdates(
            layout=layout,
            members=len(people.names),
            components=count,
            seed=settings.seed % 2**63,
            device=patcher.load_device,
        )
        run = SpaceRun(
            training=SpaceTraining(updates, people.data, settings),
            monitoring=monitoring,
            people=people,
            vae=vae,
        )
        if monitoring.checkpoint is not None:
            apart = [
                monitoring.gradient_checkpointing,
                monitoring.preview_interval,
                monitoring.checkpoint_interval,
            ]
            run.inputs = resume.digest([settings, *apart])
            about = {"model": model_digest(patcher), "precision": str(monitoring.precision)}
            run.resume({**about, **run.described()})
        with learned_space_comfy.changed(changed, updates):
            trainer.run(
                patcher,
                {},
                latents=people.latents,
                conditions=people.conditions,
                work=run.train,
                dtype=monitoring.precision.dtype,
                checkpointing=monitoring.gradient_checkpointing,
                seed=settings.seed,
            )
        return updates.space(people.names, name, base), run


@dataclass(kw_only=True)
class SpaceRun(MonitoredRun):
    """One execution of W2W Train Space; ``fit``: the loss by members' own codes and by others'."""

    KIND = "space training", 1

    training: SpaceTraining
    people: learned_space_comfy.People
    vae: Any
    fit: tuple[float, float] = (0.0, 0.0)

    def described(self) -> dict[str, object]:
        """What identifies the work beside the MODEL and the precision."""
        training = self.training
        people = self.people
        members = dict(zip(people.names, map(list, training.data.images), strict=True))
        data = [
            people.latents,
            people.conditions,
            list(training.data.conditions),
            training.data.weights,
        ]
        return {
            **resume.settings_identity(training.settings),
            "layers": training.updates.layout.to_json(),
            "members": members,
            "components": training.updates.codes.shape[1],
            "images": resume.digest(data),
        }

    def measure(self, session: Session) -> None:
        """The loss by members' own codes, and by each other's."""
        self.fit = self.training.fit(session)

    def sample(self, session: Session) -> torch.Tensor:
        """The first two members and a sampled point, decoded."""
        updates = self.training.updates
        data = self.training.data
        seed = self.training.settings.seed
        drawn = updates.sampled_code(torch.Generator().manual_seed(seed % 2**63))
        codes = torch.cat([updates.codes.detach()[:2], drawn[None]])
        rows = [data.conditions[data.images[0][0]]] * 3
        latents = learned_space_comfy.sample(
            session, updates, codes=codes, rows=rows, empty=self.people.empty, seed=seed
        )
        return decoded(self.vae, session, latents)
