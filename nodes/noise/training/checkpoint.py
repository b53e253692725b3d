"""Checkpoints from which a run goes on as if it had never stopped, in one .safetensors file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from .history import History

_FORMAT = "glassbox training 1"
_NUMBERS = ("before", "after", "seconds", "pairing", "waited")


@dataclass(frozen=True)
class Store:
    """A checkpoint file and the settings that whoever goes on from it must share."""

    path: Path
    settings: Mapping[str, object]

    def save(self, training, visits: list[int], position: tuple[int, torch.Tensor]) -> None:
        """Write the run's state under a temporary name and rename it."""
        tensors = {f"parameter.{name}": value for name, value in training.parameters.items()}
        for index, state in training.optimizer.state_dict()["state"].items():
            for name, value in state.items():
                if value is not None:
                    tensors[f"optimizer.{index}.{name}"] = torch.as_tensor(value)
        history: History = training.history
        tensors |= {f"sample.{number}": latent for number, (_, latent) in enumerate(history.samples)}
        tensors["losses"] = torch.tensor(history.losses, dtype=torch.float64)
        tensors["validation"] = torch.tensor(history.validation, dtype=torch.float64).reshape(-1, 2)
        tensors["visits"], tensors["generator"] = torch.tensor(visits), position[1]
        told = {
            "format": _FORMAT,
            "settings": json.dumps(dict(self.settings), sort_keys=True),
            "state": json.dumps({
                "steps": training.steps_done, "position": position[0],
                "sampled": [step for step, _ in history.samples], **{name: getattr(history, name) for name in _NUMBERS},
            }),
        }  # fmt: skip
        self.path.parent.mkdir(parents=True, exist_ok=True)
        temporary = self.path.with_suffix(".tmp")
        save_file({name: value.detach().cpu().contiguous().clone() for name, value in tensors.items()}, temporary, told)
        temporary.replace(self.path)

    def restore(self, training, server, draws) -> bool:
        """Bring a run to the state of the file; False when there is none yet.

        Raises ValueError when the file is of another run or cannot be read.
        """
        if not self.path.exists():
            return False
        told, tensors = self._read()
        self._compare(json.loads(told["settings"]))
        state = json.loads(told["state"])
        with torch.no_grad():
            for name, parameter in training.parameters.items():
                parameter.copy_(tensors[f"parameter.{name}"])
        _restore_optimizer(training.optimizer, tensors)
        history = training.history
        history.losses = tensors["losses"].tolist()
        history.validation = [(int(step), loss) for step, loss in tensors["validation"].tolist()]
        history.samples = [(step, tensors[f"sample.{number}"]) for number, step in enumerate(state["sampled"])]
        for name in _NUMBERS:
            setattr(history, name, state[name])
        training.steps_done = state["steps"]
        server.visits[:] = tensors["visits"].tolist()
        draws.restore(state["position"], tensors["generator"])
        return True

    def _read(self) -> tuple[dict[str, str], dict[str, torch.Tensor]]:
        try:
            with safe_open(self.path, "pt") as file:
                told = file.metadata() or {}
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except (OSError, SafetensorError) as error:
            raise ValueError(f"The checkpoint {self.path.name} cannot be read ({error}): delete it, or choose another "
                             "name.") from None  # fmt: skip
        if told.get("format") != _FORMAT:
            raise ValueError(f"{self.path.name} is no checkpoint of this node: choose another name.")
        return told, tensors

    def _compare(self, theirs: dict[str, object]) -> None:
        ours = json.loads(json.dumps(dict(self.settings)))
        different = [name for name in ours if ours[name] != theirs.get(name)]
        if different:
            raise ValueError(
                f"The checkpoint {self.path.name} is of a run with other settings ({', '.join(sorted(different))}): "
                "set them back to go on with it, or choose another checkpoint name to begin anew."
            )


def _restore_optimizer(optimizer: torch.optim.Optimizer, tensors: Mapping[str, torch.Tensor]) -> None:
    states: dict[int, dict[str, torch.Tensor]] = {}
    for name, value in tensors.items():
        kind, *rest = name.split(".", 2)
        if kind == "optimizer":
            states.setdefault(int(rest[0]), {})[rest[1]] = value
    optimizer.load_state_dict({"state": states, "param_groups": optimizer.state_dict()["param_groups"]})
