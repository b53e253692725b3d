"""Activations on disk: one .safetensors file with a tensor an ID, and what they are in its header."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from .features import Activations, Row

_FORMAT = "glassbox activations 1"


def write(activations: Activations, path: Path) -> None:
    """Write to a temporary name beside ``path`` and rename, so that no half file is left."""
    from safetensors.torch import save_file

    about = {
        "ids": list(activations.tensors),
        "rows": [asdict(row) for row in activations.rows],
        "sigma": activations.sigma,
        "timestep": activations.timestep,
        "settings": activations.settings,
    }
    tensors = {id_: value.contiguous() for id_, value in activations.tensors.items()}
    temporary = path.with_name(f"{path.name}.part")
    try:
        save_file(tensors, temporary, {"format": _FORMAT, "activations": json.dumps(about)})
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def read(path: Path) -> Activations:
    """Read what ``write`` wrote; raises ValueError for any other file."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            header = file.metadata() or {}
            if header.get("format") != _FORMAT:
                raise ValueError(f"{path.name} holds no activations: give a file that Save Activations wrote.")
            about = json.loads(header["activations"])
            tensors = {id_: file.get_tensor(id_) for id_ in about["ids"]}
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{path.name} cannot be read ({error}): save the activations again.") from None
    rows = tuple(Row(**row) for row in about["rows"])
    return Activations(tensors, rows, about["sigma"], about["timestep"], about["settings"])
