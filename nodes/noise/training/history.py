"""What a training run leaves behind beside its weights: losses, samples, and what pairing did and cost."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from .serving import Served


@dataclass(frozen=True)
class Learned:
    """What one batch has told."""

    loss: float
    served: Served
    waited: float  # milliseconds
    seconds: float


@dataclass
class History:
    """Grows while training runs; a checkpoint holds it whole."""

    losses: list[float] = field(default_factory=list)  # one a batch
    validation: list[tuple[int, float]] = field(default_factory=list)  # optimizer steps done, loss
    samples: list[tuple[int, torch.Tensor]] = field(default_factory=list)  # optimizer steps done, latents
    before: float = 0.0  # sums of the distances of noise and picture: as drawn,
    after: float = 0.0  # and as served
    seconds: float = 0.0  # of forward, backward and waiting
    pairing: float = 0.0  # milliseconds that pairing took, in its thread
    waited: float = 0.0  # milliseconds for which the model waited for a batch
    stopped: bool = False  # by the user, before its end

    def add(self, learned: Learned) -> None:
        """One more batch."""
        self.losses.append(learned.loss)
        self.before += learned.served.before
        self.after += learned.served.after
        self.pairing += learned.served.milliseconds
        self.waited += learned.waited
        self.seconds += learned.seconds

    @property
    def gain(self) -> float:
        """Percent by which pairing has shortened the distance of noise and picture."""
        return 100 * (1 - self.after / self.before) if self.before else 0.0

    @property
    def visible_share(self) -> float:
        """Percent of the run for which the model waited for a batch."""
        return self.waited / (10 * self.seconds) if self.seconds else 0.0

    def loss_map(self) -> dict[str, list]:
        """As LOSS_MAP: the losses under "loss", as core's plot wants them, and the held-out ones under "validation"."""
        return {"loss": list(self.losses), "validation": [list(point) for point in self.validation]}
