"""Adam on a few tensors of a space or a slider, one drawn step after the other, from which a run
resumes exactly.

Everything that chance decides at a step follows from the seed and the number of the step, so that
parameters, Adam's moments and losses are all that a checkpoint needs.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch

from ..common.loss_curve import SMOOTH, running_mean
from ..common.resume import check_adam
from .inversion import rate_fraction

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from ..common.training.session import Session

_STRIDE = 1_000_003


class ResumableTraining(ABC):
    """A run of Adam steps; ``losses`` are those of the steps done.

    ``settings`` has ``steps``, ``learning_rate`` and ``seed``. ``finished_early``: the person has
    ended the run before its last step. Each group of ``optimizer`` has a ``ratio``, its learning
    rate as a multiple of that of the settings.
    """

    settings: Any
    optimizer: torch.optim.Optimizer
    losses: list[float]
    finished_early: bool

    @property
    @abstractmethod
    def trained(self) -> Mapping[str, torch.nn.Parameter]:
        """The parameters by name."""

    @abstractmethod
    def step_backward(self, session: Session, step: int) -> float:
        """Add the gradient of a step to the parameters, and return its loss."""

    @property
    def steps_done(self) -> int:
        """Number of finished steps."""
        return len(self.losses)

    def generator(self, step: int) -> torch.Generator:
        """What a step draws from: of the seed and the number of the step alone."""
        return torch.Generator().manual_seed((self.settings.seed * _STRIDE + step) % 2**63)

    def state(self) -> dict[str, torch.Tensor]:
        """All that the run has made: what ``restore`` needs to go on as if nothing had happened."""
        tensors = {}
        for row, moments in self.optimizer.state_dict()["state"].items():
            for name, value in moments.items():
                tensors[f"adam.{row}.{name}"] = value
        for name, value in self.trained.items():
            tensors[name] = value.detach()
        return {**tensors, "losses": torch.tensor(self.losses, dtype=torch.float64)}

    def restore(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Take up a ``state``; raises KeyError, TypeError or ValueError for one that is damaged."""
        moments: dict[int, dict[str, torch.Tensor]] = defaultdict(dict)
        for name, value in tensors.items():
            if name.startswith("adam."):
                _, row, kind = name.split(".")
                moments[int(row)][kind] = value
        if not all(bool(value.isfinite().all()) for value in tensors.values()):
            raise ValueError("a tensor holds values that are not finite")
        parameters = [
            parameter for group in self.optimizer.param_groups for parameter in group["params"]
        ]
        check_adam(moments, parameters)
        for name, parameter in self.trained.items():
            if tensors[name].shape != parameter.shape:
                raise ValueError("a tensor has another shape")
        losses = tensors["losses"].tolist()
        if not isinstance(losses, list) or not 1 <= len(losses) + 1 <= self.settings.steps + 1:
            raise ValueError("the losses are of another number of steps")
        with torch.no_grad():
            for name, parameter in self.trained.items():
                parameter.copy_(tensors[name])
        self.optimizer.load_state_dict({**self.optimizer.state_dict(), "state": dict(moments)})
        self.losses[:] = losses

    def run(self, session: Session, on_step: Callable[[int], None]) -> None:
        """Train to the end of the settings from where the run is.

        ``session`` evaluates the model (`Session` of nodes/host/training/trainer.py) with the
        trained numbers in its layers. Raises ValueError when the loss is not finite.
        """
        while self.steps_done < self.settings.steps:
            self.optimizer.zero_grad(set_to_none=True)
            value = self.step_backward(session, self.steps_done)
            if not math.isfinite(value):
                raise ValueError(
                    f"The loss is no longer a finite number after {self.steps_done} steps: use a "
                    "lower learning rate, or fp32."
                )
            fraction = rate_fraction(self.steps_done, self.settings.steps)
            for group in self.optimizer.param_groups:
                group["lr"] = self.settings.learning_rate * group["ratio"] * fraction
            self.optimizer.step()
            self.losses.append(value)
            on_step(self.steps_done)


def draw_losses(figure: Figure, run: ResumableTraining, title: str) -> None:
    """Plot the loss of each step and its running mean."""
    axes = figure.add_subplot()
    losses = run.losses
    steps = range(1, len(losses) + 1)
    axes.plot(steps, losses, color="tab:blue", alpha=0.3, linewidth=1, label="each step")
    axes.plot(steps, running_mean(losses), color="tab:blue", label=f"mean of {SMOOTH}")
    axes.set(xlabel="step", ylabel="loss", title=title)
    axes.grid(alpha=0.3)
    axes.legend()


def describe_losses(run: ResumableTraining) -> str:
    """The losses of the first and of the last steps."""
    losses = run.losses
    return (
        f"Loss {sum(losses[:SMOOTH]) / len(losses[:SMOOTH]):.4f} in the first steps, "
        f"{sum(losses[-SMOOTH:]) / len(losses[-SMOOTH:]):.4f} in the last."
    )
