"""Checkpoints from which a run continues as if it had never stopped, in one .safetensors file."""

from __future__ import annotations

import json
import operator
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from ..atomic_write import atomic_write
from ..safetensors_files import open_tensors

_FORMAT, _VERSION = "glassbox training", 2
_NUMBERS = ("before", "after", "seconds", "pairing", "waited")


@dataclass(frozen=True)
class CheckpointFile:
    """A checkpoint file and the settings that a run must share to continue from it."""

    path: Path
    settings: Mapping[str, object]

    def save(self, training, visits: list[int], position: tuple[int, torch.Tensor]) -> None:
        """Write the run's state, whole or not at all; raises WriteError where it cannot be written."""
        tensors = {f"parameter.{name}": value for name, value in training.parameters.items()}
        for index, state in training.optimizer.state_dict()["state"].items():
            for name, value in state.items():
                if value is not None:
                    tensors[f"optimizer.{index}.{name}"] = torch.as_tensor(value)
        if training.average is not None:
            tensors |= {f"average.{name}": value for name, value in training.average.values.items()}
        history = training.history
        tensors |= {f"sample.{number}": latent for number, (_, latent) in enumerate(history.samples)}
        tensors["losses"] = torch.tensor(history.losses, dtype=torch.float64)
        tensors["validation"] = torch.tensor(history.validation, dtype=torch.float64).reshape(-1, 2)
        tensors["visits"], tensors["generator"] = torch.tensor(visits), position[1]
        header = {
            "format": _FORMAT,
            "format_version": str(_VERSION),
            "settings": json.dumps(dict(self.settings), sort_keys=True),
            "state": json.dumps(
                {
                    "steps": training.steps_done,
                    "position": position[0],
                    "sampled": [step for step, _ in history.samples],
                    **{name: getattr(history, name) for name in _NUMBERS},
                }
            ),
        }
        tensors = {name: value.detach().cpu().contiguous().clone() for name, value in tensors.items()}
        with atomic_write(self.path) as temporary:
            save_file(tensors, temporary, header)

    def restore(self, training, noise, sampler) -> bool:
        """Bring a run to the state of the file; False when there is none yet.

        Raises ValueError when the file is of another run or cannot be read.
        """
        if not self.path.exists():
            return False
        header, tensors = self._read()
        damaged = f"The checkpoint {self.path.name} is damaged: delete it, or choose another name."
        try:
            settings, state = dict(json.loads(header["settings"])), json.loads(header["state"])
        except (KeyError, TypeError, ValueError, RecursionError):
            raise ValueError(damaged) from None
        self._compare(settings)
        try:
            _restore_parameters(training, tensors)
            history = training.history
            history.losses = [float(loss) for loss in tensors["losses"]]
            history.validation = [(int(step), loss) for step, loss in tensors["validation"].tolist()]
            history.samples = [(int(step), tensors[f"sample.{number}"]) for number, step in enumerate(state["sampled"])]
            for name in _NUMBERS:
                setattr(history, name, float(state[name]))
            training.steps_done = operator.index(state["steps"])
            if noise is not None:
                noise.visits[:] = [int(count) for count in tensors["visits"]]
            sampler.restore(operator.index(state["position"]), tensors["generator"])
        except (KeyError, TypeError, ValueError, IndexError, OverflowError, RuntimeError):
            raise ValueError(damaged) from None
        return True

    def _read(self) -> tuple[dict[str, str], dict[str, torch.Tensor]]:
        try:
            with open_tensors(self.path) as file:
                header = file.metadata() or {}
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except (OSError, SafetensorError) as error:
            raise ValueError(
                f"The checkpoint {self.path.name} cannot be read ({error}): delete it, or choose another name."
            ) from None
        if header.get("format") != _FORMAT:
            raise ValueError(f"{self.path.name} is no checkpoint of this node: choose another name.")
        if header.get("format_version") != str(_VERSION):
            raise ValueError(
                f"The checkpoint {self.path.name} has format version {header.get('format_version')}, and this version "
                f"of the pack reads {_VERSION}: choose another checkpoint name."
            )
        return header, tensors

    def _compare(self, theirs: dict[str, object]) -> None:
        ours = json.loads(json.dumps(dict(self.settings)))
        different = [name for name in ours if ours[name] != theirs.get(name)]
        if different:
            raise ValueError(
                f"The checkpoint {self.path.name} is of a run with other settings ({', '.join(sorted(different))}): "
                "set them back to continue it, or choose another checkpoint name to start over."
            )


def _restore_parameters(training, tensors: Mapping[str, torch.Tensor]) -> None:
    """The parameters and what the optimizer keeps of each; raises ValueError where one does not fit."""
    states: dict[int, dict[str, torch.Tensor]] = {}
    for name, value in tensors.items():
        kind, *rest = name.split(".", 2)
        if kind == "optimizer":
            states.setdefault(int(rest[0]), {})[rest[1]] = value
    optimizer = training.optimizer
    trained = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    pairs = [(tensors[f"parameter.{name}"], parameter) for name, parameter in training.parameters.items()]
    kept = [(value, trained[index]) for index, state in states.items() for value in state.values()]
    average = {} if training.average is None else {name: tensors[f"average.{name}"] for name in training.parameters}
    pairs += [(value, training.parameters[name]) for name, value in average.items()]
    if any(value.shape != parameter.shape for value, parameter in pairs) or any(
        value.shape not in ((), parameter.shape) for value, parameter in kept
    ):
        raise ValueError("a tensor has another shape")
    if not all(bool(value.isfinite().all()) for value, _ in (*pairs, *kept)):
        raise ValueError("a tensor holds values that are not finite")
    with torch.no_grad():
        for name, parameter in training.parameters.items():
            parameter.copy_(tensors[f"parameter.{name}"])
    if training.average is not None:
        training.average.values = average
    optimizer.load_state_dict({"state": states, "param_groups": optimizer.state_dict()["param_groups"]})
