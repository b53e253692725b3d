"""Activations on disk: one .safetensors file with one tensor per ID and a JSON header, or an .npz file to export."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from ..common.atomic_write import atomic_write
from ..common.safetensors_files import open_tensors
from .activations import Activations, Row

FORMAT_VERSION = 1
_FORMAT = "glassbox activations"


def write(activations: Activations, path: Path) -> None:
    """Write the file whole or not at all."""
    from safetensors.torch import save_file

    header = {
        "ids": list(activations.tensors),
        "rows": [asdict(row) for row in activations.rows],
        "sigma": activations.sigma,
        "timestep": activations.timestep,
        "settings": activations.settings,
    }
    metadata = {"format": _FORMAT, "format_version": str(FORMAT_VERSION), "activations": json.dumps(header)}
    tensors = {id_: value.contiguous() for id_, value in activations.tensors.items()}
    with atomic_write(path) as temporary:
        save_file(tensors, temporary, metadata)


def write_npz(activations: Activations, path: Path) -> None:
    """Export to NumPy, whole or not at all: one array per ID, and those of rows and noise level below.

    ``row_image`` and ``row_conditional`` (rows,), ``sigma``, ``timestep``. Data in bfloat16 becomes float32.
    """
    import numpy as np

    arrays: dict[str, Any] = {
        "row_image": [row.image for row in activations.rows],
        "row_conditional": [row.conditional for row in activations.rows],
        "sigma": activations.sigma,
        "timestep": activations.timestep,
    }
    arrays |= {
        id_: (value.float() if value.dtype == torch.bfloat16 else value).numpy()
        for id_, value in activations.tensors.items()
    }
    with atomic_write(path) as temporary, temporary.open("wb") as file:
        np.savez(file, **arrays)


def read(path: Path) -> Activations:
    """Read what ``write`` wrote; raises ValueError for any other, damaged or newer file."""
    from safetensors import SafetensorError

    try:
        with open_tensors(path) as file:
            metadata = file.metadata() or {}
            version = metadata.get("format_version") if metadata.get("format") == _FORMAT else None
            if version == str(FORMAT_VERSION):
                header = json.loads(metadata["activations"])
                tensors = {id_: file.get_tensor(id_) for id_ in header["ids"]}
                rows = tuple(Row(**row) for row in header["rows"])
                sigma, timestep, settings = float(header["sigma"]), float(header["timestep"]), dict(header["settings"])
    except (SafetensorError, OSError, KeyError, TypeError, RecursionError, ValueError) as error:
        raise ValueError(f"{path.name} cannot be read ({str(error)[:200]}). Save the activations again.") from None
    if version is None:
        raise ValueError(f"{path.name} holds no activations. Use a file of Save Activations.")
    if version != str(FORMAT_VERSION):
        raise ValueError(
            f"{path.name} has format version {version}, and this version of the pack reads version {FORMAT_VERSION}. "
            "Save the activations again."
        )
    problem = _problem(tensors, rows, (sigma, timestep))
    if problem:
        raise ValueError(f"{path.name} is damaged: {problem}. Save the activations again.")
    return Activations(tensors, rows, sigma, timestep, settings)


def _problem(tensors: dict[str, torch.Tensor], rows: tuple[Row, ...], numbers: tuple[float, ...]) -> str | None:
    """What makes a file's contents no activations; None when they are."""
    if not tensors or not rows:
        return "it holds no tensor or no row"
    if not all(math.isfinite(number) for number in numbers):
        return "its noise level is not a number"
    if not all(isinstance(row.image, int) and row.image >= 0 and isinstance(row.conditional, bool) for row in rows):
        return "its rows are not valid"
    for id_, tensor in tensors.items():
        if tensor.ndim != 4 or len(tensor) != len(rows) or not tensor.dtype.is_floating_point:
            return f"{id_} has shape {tuple(tensor.shape)} and type {tensor.dtype} for {len(rows)} rows"
        if not tensor.isfinite().all():
            return f"{id_} holds values that are not finite"
    return None
