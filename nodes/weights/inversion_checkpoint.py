"""Checkpoints of an inversion: one .safetensors file from which it resumes exactly."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch

from ..common.resume import (
    Identity,
    check_adam,
    check_length,
    check_tensors,
    damaged,
    load_state,
    save_state,
)
from .inversion import Inversion

_KIND = "inversion"
_VERSION = 2


def save(run: Inversion, path: Path, identity: Identity, inputs: str = "") -> None:
    """Write coefficients, Adam's moments and losses, whole or not at all; ``inputs`` changes with
    any of the node.
    """
    state = run.optimizer.state_dict()["state"].get(0, {})
    tensors = {name: torch.as_tensor(value) for name, value in state.items()}
    tensors["coefficients"] = run.model.coefficients
    tensors["losses"] = torch.tensor(run.losses, dtype=torch.float64)
    if run.best is not None:
        tensors["held_out"] = torch.tensor(list(run.held_out.items()), dtype=torch.float64)
        tensors["best"] = run.best
    save_state(
        path,
        _KIND,
        version=_VERSION,
        identity=identity,
        tensors=tensors,
        about={"finished": inputs if run.finished_early else ""},
    )


def restore(run: Inversion, path: Path, identity: Identity, inputs: str = "") -> None:
    """Set a run to the state in the file; nothing when there is no file.

    What the person has finished early stays so for the same ``inputs``.

    Raises ValueError when it belongs to another run, or to a longer one.
    """
    found = load_state(path, _KIND, _VERSION, identity)
    if found is None:
        return
    tensors, about = found
    coefficients = run.model.coefficients
    losses = tensors.get("losses", torch.zeros(()))
    shapes = {"coefficients": coefficients.shape}
    if losses.ndim and len(losses):  # else it was stopped before its first step
        shapes |= {
            "exp_avg": coefficients.shape,
            "exp_avg_sq": coefficients.shape,
            "step": torch.Size(),
        }
    held_out = tensors.get("held_out", torch.empty(0, 2))
    if len(held_out):
        shapes |= {"best": coefficients.shape, "held_out": torch.Size((len(held_out), 2))}
    if losses.ndim != 1:
        raise damaged(path.name)
    check_tensors(path.name, {"losses": losses, **tensors}, {**shapes, "losses": losses.shape})
    check_length(path.name, len(losses), run.settings.steps)
    moments = ("exp_avg", "exp_avg_sq", "step")
    state: Mapping[str, torch.Tensor] = {name: tensors[name] for name in moments if name in shapes}
    if state:
        try:
            check_adam({0: state}, [coefficients])
        except ValueError:
            raise damaged(path.name) from None
    with torch.no_grad():
        coefficients.copy_(tensors["coefficients"])
    if state:
        run.optimizer.load_state_dict({**run.optimizer.state_dict(), "state": {0: state}})
    run.losses[:] = losses.tolist()
    run.held_out = {int(step): value for step, value in held_out.tolist()}
    run.best = tensors.get("best") if len(held_out) else None
    run.finished_early = (
        bool(inputs) and isinstance(about, dict) and about.get("finished") == inputs
    )
    run.model.refresh()
