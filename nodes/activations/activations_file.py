"""Activations on disk: one .safetensors file with one tensor per ID and a JSON header, or an .npz
file to export.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from ..common.atomic_write import atomic_write
from ..common.headers import Section, shorten
from ..common.safetensors_files import open_file, read_tensors
from .activations import FRAMES, MAP_SIZES, TEXT_MARKS, Activations, Row

FORMAT_VERSION = 1
_FORMAT = "glassbox activations"
_MOST_IMAGES = _MOST_TOKENS = _MOST_POSITIONS = 10**6


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
    metadata = {
        "format": _FORMAT,
        "format_version": str(FORMAT_VERSION),
        "activations": json.dumps(header),
    }
    tensors = {id_: value.contiguous() for id_, value in activations.tensors.items()}
    with atomic_write(path) as temporary:
        save_file(tensors, temporary, metadata)


def write_npz(activations: Activations, path: Path) -> None:
    """Export to NumPy, whole or not at all: one array per ID, and those of rows and noise level
    below.

    ``row_image`` and ``row_conditional`` (rows,), ``sigma``, ``timestep``. Data in bfloat16 becomes
    float32.
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
    with open_file(path, "save the activations again") as file:
        metadata = Section(file.metadata() or {}, path.name)
        version = metadata.get("format_version") if metadata.get("format") == _FORMAT else None
        if version is None:
            raise ValueError(f"{path.name} holds no activations. Use a file of Save Activations.")
        if version != str(FORMAT_VERSION):
            raise ValueError(
                f"{path.name} has format version {shorten(version)}, and this version of the pack "
                f"reads version {FORMAT_VERSION}. Save the activations again."
            )
        header = metadata.parsed("activations")
        tensors = read_tensors(file, path.name, header.texts("ids"))
    rows = tuple(_row(row) for row in header.sections("rows"))
    settings = _settings(header.section("settings"), list(tensors))
    problem = _problem(tensors, rows)
    if problem:
        raise ValueError(f"{path.name} is damaged: {problem}. Save the activations again.")
    return Activations(
        tensors=tensors,
        rows=rows,
        sigma=header.number("sigma", low=0),
        timestep=header.number("timestep"),
        settings=settings,
    )


def _row(row: Section) -> Row:
    """One row of the header."""
    return Row(
        image=row.integer("image", high=_MOST_IMAGES),
        conditional=row.switch("conditional", default=True),
        text_tokens=row.integer("text_tokens", high=_MOST_TOKENS, default=None),
    )


def _settings(settings: Section, ids: list[str]) -> dict[str, Any]:
    """The settings with what readers compute with checked: frames, sizes of attention maps, marks
    of texts.
    """
    if FRAMES in settings:
        settings.integer(FRAMES, low=1, high=_MOST_IMAGES)
    sizes = settings.section(MAP_SIZES, default={})
    for id_ in sizes:
        sizes.integers(id_, count=2, low=1, high=_MOST_POSITIONS)
    if missing := [id_ for id_ in ids if id_.endswith("-map") and id_ not in sizes]:
        raise settings.mismatch(MAP_SIZES, f"an object with the height and width of {missing[0]}")
    marks = settings.section(TEXT_MARKS, default={})
    for side in marks:
        _check_marks(marks, side)
    return settings.present()


def _check_marks(marks: Section, side: str) -> None:
    """Raise HeaderError where the marks of a side's text are not rows of numbers, of one length."""
    rows = marks[side]
    if not isinstance(rows, list) or not rows or not all(isinstance(row, list) for row in rows):
        raise marks.mismatch(side, "a list of lists of finite numbers")
    table = Section(
        {str(place): row for place, row in enumerate(rows)}, marks.file, f"{marks.path}{side}."
    )
    for place in table:
        table.numbers(place, count=len(rows[0]))


def _problem(tensors: dict[str, torch.Tensor], rows: tuple[Row, ...]) -> str | None:
    """What makes a file's contents no activations; None when they are."""
    if not tensors or not rows:
        return "it holds no tensor or no row"
    for id_, tensor in tensors.items():
        if tensor.ndim != 4 or len(tensor) != len(rows) or not tensor.dtype.is_floating_point:
            return (
                f"{id_} has shape {tuple(tensor.shape)} and type {tensor.dtype} for {len(rows)} "
                "rows"
            )
        if not tensor.isfinite().all():
            return f"{id_} holds values that are not finite"
    return None
