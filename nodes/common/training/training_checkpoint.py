"""Checkpoints from which a run continues as if it had never stopped, in one .safetensors file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ..headers import LARGEST_SIDE, as_integer, as_number
from ..resume import Identity, check_adam, check_length, damaged, load_state, save_state

if TYPE_CHECKING:
    from .batch_sampler import BatchSampler
    from .training_loop import Training

_KIND = "training"
_VERSION = 3
_NUMBERS = ("before", "after", "seconds", "pairing", "waited")


@dataclass(frozen=True, kw_only=True)
class CheckpointFile:
    """A checkpoint file and the identity of the run that may continue from it.

    ``sampling``: what its sample images depend on besides; those of another are left out, and
    sampled again. ``inputs``: changes with any input of the node; a run that the person has
    finished early goes on for others alone.
    """

    path: Path
    identity: Identity
    sampling: str = ""
    inputs: str = ""

    def save(
        self, training: Training, visits: list[int], position: tuple[int, torch.Tensor]
    ) -> None:
        """Write the run's state, whole or not at all; raises WriteError where it cannot be
        written.
        """
        tensors: dict[str, torch.Tensor] = {
            f"parameter.{name}": value for name, value in training.parameters.items()
        }
        for index, state in training.optimizer.state_dict()["state"].items():
            for name, value in state.items():
                if value is not None:
                    tensors[f"optimizer.{index}.{name}"] = torch.as_tensor(value)
        if training.average is not None:
            tensors |= {f"average.{name}": value for name, value in training.average.values.items()}
        history = training.history
        tensors |= {
            f"sample.{number}": latent for number, (_, latent) in enumerate(history.samples)
        }
        tensors["losses"] = torch.tensor(history.losses, dtype=torch.float64)
        tensors["validation"] = torch.tensor(history.validation, dtype=torch.float64).reshape(-1, 2)
        tensors["visits"] = torch.tensor(visits)
        tensors["generator"] = position[1]
        about = {
            "steps": training.steps_done,
            "position": position[0],
            "sampling": self.sampling,
            "sampled": [step for step, _ in history.samples],
            **{name: getattr(history, name) for name in _NUMBERS},
            "finished": None
            if history.finished_at is None
            else [*history.finished_at, self.inputs],
        }
        save_state(
            self.path, _KIND, version=_VERSION, identity=self.identity, tensors=tensors, about=about
        )

    def restore(self, training: Training, noise: Any, sampler: BatchSampler) -> bool:
        """Bring a run to the state of the file; False when there is none yet.

        Raises ValueError when the file is of another run, of a longer one, or cannot be read.
        """
        found = load_state(self.path, _KIND, _VERSION, self.identity)
        if found is None:
            return False
        tensors, state = found
        try:
            _restore_parameters(training, tensors)
            history = training.history
            if not all(bool(tensors[name].isfinite().all()) for name in ("losses", "validation")):
                raise ValueError("a loss is not finite")
            history.losses = [float(loss) for loss in tensors["losses"]]
            history.validation = [
                (int(step), loss) for step, loss in tensors["validation"].tolist()
            ]
            sampled = state["sampled"] if state["sampling"] == self.sampling else []
            history.samples = [
                (int(step), tensors[f"sample.{number}"]) for number, step in enumerate(sampled)
            ]
            for name in _NUMBERS:
                setattr(history, name, as_number(state[name]))
            training.steps_done = _count(state["steps"])
            *ended, inputs = state.get("finished") or [None]
            history.finished_at = None
            if ended and inputs == self.inputs:
                history.finished_at = (_count(ended[0]), _count(ended[1]))
            if noise is not None:
                visits = tensors["visits"].tolist()
                if len(visits) != len(noise.visits):
                    raise ValueError("the visits are of another number of images")
                noise.visits[:] = map(_count, visits)
            sampler.restore(_count(state["position"]), tensors["generator"])
        except (
            KeyError,
            TypeError,
            ValueError,
            IndexError,
            AttributeError,
            OverflowError,
            RuntimeError,
        ):
            raise damaged(self.path.name) from None
        check_length(self.path.name, training.steps_done, training.plan.steps)
        return True


def _count(value: object) -> int:
    """A number of steps, batches or visits; raises ValueError for anything else."""
    return as_integer(value, high=LARGEST_SIDE)


def _restore_parameters(training: Training, tensors: Mapping[str, torch.Tensor]) -> None:
    """The parameters and what the optimizer keeps of each; raises ValueError where one does not
    fit.
    """
    states: dict[int, dict[str, torch.Tensor]] = {}
    for name, value in tensors.items():
        kind, *rest = name.split(".", 2)
        if kind == "optimizer":
            states.setdefault(int(rest[0]), {})[rest[1]] = value
    optimizer = training.optimizer
    trained = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    pairs = [
        (tensors[f"parameter.{name}"], parameter) for name, parameter in training.parameters.items()
    ]
    kept = [(value, trained[index]) for index, state in states.items() for value in state.values()]
    average = (
        {}
        if training.average is None
        else {name: tensors[f"average.{name}"] for name in training.parameters}
    )
    pairs += [(value, training.parameters[name]) for name, value in average.items()]
    if any(value.shape != parameter.shape for value, parameter in pairs) or any(
        value.shape not in ((), parameter.shape) for value, parameter in kept
    ):
        raise ValueError("a tensor has another shape")
    if not all(bool(value.isfinite().all()) for value, _ in (*pairs, *kept)):
        raise ValueError("a tensor holds values that are not finite")
    if isinstance(optimizer, torch.optim.Adam):  # and AdamW
        check_adam(states, trained)
    with torch.no_grad():
        for name, parameter in training.parameters.items():
            parameter.copy_(tensors[f"parameter.{name}"])
    if training.average is not None:
        training.average.values = average
    optimizer.load_state_dict(
        {"state": states, "param_groups": optimizer.state_dict()["param_groups"]}
    )
