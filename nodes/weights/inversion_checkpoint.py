"""Checkpoints of an inversion: one .safetensors file from which it resumes exactly."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import torch

from ..common.atomic_write import atomic_write
from ..common.safetensors_files import open_tensors
from .inversion import Inversion

_FORMAT, _VERSION = "glassbox_w2w_inversion", "1"


def save(run: Inversion, path: Path) -> None:
    """Write coefficients, Adam's moments and losses, whole or not at all."""
    from safetensors.torch import save_file

    state = run.optimizer.state_dict()["state"].get(0, {})
    tensors = {name: torch.as_tensor(value) for name, value in state.items()}
    tensors["coefficients"] = run.model.coefficients.detach()
    tensors["losses"] = torch.tensor(run.losses, dtype=torch.float64)
    if run.best is not None:
        tensors["held_out"] = torch.tensor(list(run.held_out.items()), dtype=torch.float64)
        tensors["best"] = run.best
    whole = {name: value.cpu().contiguous().clone() for name, value in tensors.items()}
    with atomic_write(path) as temporary:
        save_file(whole, temporary, {"format": _FORMAT, "format_version": _VERSION, "settings": _settings_json(run)})


def restore(run: Inversion, path: Path) -> None:
    """Set a run to the state in the file; nothing when there is no file.

    Raises ValueError when it belongs to another run.
    """
    from safetensors import SafetensorError

    if not path.is_file():
        return
    try:
        with open_tensors(path) as file:
            about = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise ValueError(f"The checkpoint {path.name} cannot be read ({error}): delete it.") from None
    if (about.get("format"), about.get("format_version")) != (_FORMAT, _VERSION) or about.get(
        "settings"
    ) != _settings_json(run):
        raise ValueError(
            f"The checkpoint {path.name} belongs to another run: restore its settings, or choose another name."
        )
    coefficients, losses = run.model.coefficients, tensors.get("losses", torch.zeros(()))
    shapes = {"coefficients": coefficients.shape}
    if losses.ndim and len(losses):  # else it was stopped before its first step
        shapes |= {"exp_avg": coefficients.shape, "exp_avg_sq": coefficients.shape, "step": torch.Size()}
    held_out = tensors.get("held_out", torch.empty(0, 2))
    if len(held_out):
        shapes |= {"best": coefficients.shape, "held_out": torch.Size((len(held_out), 2))}
    if losses.ndim != 1 or any(
        name not in tensors or tensors[name].shape != shape or not tensors[name].isfinite().all()
        for name, shape in shapes.items()
    ):
        raise ValueError(f"The checkpoint {path.name} is damaged: delete it, or choose another name.")
    with torch.no_grad():
        coefficients.copy_(tensors["coefficients"])
    state = {name: tensors[name] for name in ("exp_avg", "exp_avg_sq", "step") if name in shapes}
    if state:
        run.optimizer.load_state_dict({**run.optimizer.state_dict(), "state": {0: state}})
    run.losses[:] = losses.tolist()
    run.held_out = {int(step): value for step, value in held_out.tolist()}
    run.best = tensors.get("best")
    run.model.refresh()


def _settings_json(run: Inversion) -> str:
    settings = {name: value for name, value in asdict(run.settings).items() if name != "steps"}
    return json.dumps({**settings, "space": run.model.space.name, "members": len(run.model.space.members)})
