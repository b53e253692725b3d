"""Where an inversion stands, in one .safetensors file from which it goes on exactly."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import torch

from ..inversion import Inversion

_FORMAT = "glassbox inversion 1"


def save(run: Inversion, path: Path) -> None:
    """Write coefficients, Adam's moments and losses under a temporary name and rename."""
    from safetensors.torch import save_file

    state = run.optimizer.state_dict()["state"].get(0, {})
    tensors = {name: torch.as_tensor(value) for name, value in state.items()}
    tensors["coefficients"] = run.model.coefficients.detach()
    tensors["losses"] = torch.tensor(run.losses, dtype=torch.float64)
    temporary = path.with_name(f"{path.name}.part")
    path.parent.mkdir(parents=True, exist_ok=True)
    whole = {name: value.cpu().contiguous().clone() for name, value in tensors.items()}
    save_file(whole, temporary, {"format": _FORMAT, "recipe": _told(run)})
    temporary.replace(path)


def restore(run: Inversion, path: Path) -> None:
    """Bring a run to where the file is; nothing when there is no file.

    Raises ValueError when it is of another run.
    """
    from safetensors import SafetensorError, safe_open

    if not path.is_file():
        return
    try:
        with safe_open(path, "pt") as file:
            about = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise ValueError(f"The checkpoint {path.name} cannot be read ({error}): delete it.") from None
    if about.get("format") != _FORMAT or about.get("recipe") != _told(run):
        raise ValueError(f"The checkpoint {path.name} is of another run: set its settings back, or take another name.")
    coefficients = run.model.coefficients
    with torch.no_grad():
        coefficients.copy_(tensors["coefficients"])
    state = {name: tensors[name] for name in ("step", "exp_avg", "exp_avg_sq") if name in tensors}
    if state:
        run.optimizer.load_state_dict({**run.optimizer.state_dict(), "state": {0: state}})
    run.losses[:] = tensors["losses"].tolist()
    run.model.refresh()


def _told(run: Inversion) -> str:
    recipe = {name: value for name, value in asdict(run.recipe).items() if name != "steps"}
    return json.dumps({**recipe, "space": run.model.space.name, "members": len(run.model.space.members)})
