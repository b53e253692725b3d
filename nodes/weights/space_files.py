"""A space on disk: one .safetensors file, what it is in readable JSON in its header.

Tensors: mean, deviation (D,), basis (k, D), for int8 basis_scale, coefficients (n, k), singular_values; where there are
any also sign_reference (D,), kept, squares (n,), labels (n, attributes; NaN where unknown), directions (m, k).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import torch

from ..common.tensor_file import TensorFile
from .layout import Layout
from .quantisation import DTYPES, FULL, INT8, groups, opened, packed
from .space import Direction, Space

FORMAT = "glassbox w2w space 1"
_ROWS = 64
_OPTIONAL = ("sign_reference", "kept", "squares")
Track = Callable[[Iterable], Iterable]


@dataclass(frozen=True)
class StorageError:
    """What storing a basis in fewer bits costs."""

    basis: float  # |V - V'| / |V|, Frobenius
    member: float  # the same for rebuilt members, in standardised numbers: the mean over up to 64 of them

    def __str__(self) -> str:
        return f"basis {self.basis:.2e}, rebuilt members {self.member:.2e} (relative)"


def write(space: Space, path: Path, storage: str = FULL, coefficients: torch.dtype = torch.float32,
          track: Track = iter) -> StorageError:  # fmt: skip
    """Write a space, its basis stored as one of STORAGES, a few rows at a time; returns the measured error."""
    path.parent.mkdir(parents=True, exist_ok=True)
    tensors = small_tensors(space, coefficients)
    specification = {name: (value.dtype, tuple(value.shape)) for name, value in tensors.items()}
    specification |= basis_tensors(space.components, space.layout.size, storage)
    error = _measured(space, storage)
    with TensorFile(path, specification, header(space, storage, error)) as file:
        for name, value in tensors.items():
            file.put(name, value)
        for first in track(range(0, space.components, _ROWS)):
            numbers, scale = packed(space.rows(first, first + _ROWS), storage)
            file.put_rows("basis", first, numbers)
            if scale is not None:
                file.put_rows("basis_scale", first, scale)
    return error


def basis_tensors(components: int, size: int, storage: str) -> dict[str, tuple[torch.dtype, tuple[int, ...]]]:
    """Names, dtypes and shapes of the tensors that a stored basis takes."""
    tensors = {"basis": (DTYPES[storage], (components, size))}
    if storage == INT8:
        tensors["basis_scale"] = (torch.float32, (components, groups(size)))
    return tensors


def header(space: Space, storage: str, error: StorageError | None) -> dict[str, str]:
    """The readable part of the file."""
    about = {**space.about, "storage": storage, "form": space.form, "labels": list(space.labels),
             "directions": {name: {"reach": one.reach, "about": one.about} for name, one in space.directions.items()}}
    if error is not None:
        about["storage_error"] = {"basis": error.basis, "members": error.member}
    return {"format": FORMAT, "layout": space.layout.to_json(), "members": json.dumps(space.members),
            "space": json.dumps(about)}  # fmt: skip


def read(path: Path) -> Space:
    """Read a space; the basis stays on disk until it is used. Raises ValueError for any other file."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            metadata = file.metadata() or {}
            if metadata.get("format") != FORMAT:
                raise ValueError(f"{path.name} is no weight space: give a file that W2W Build Space or W2W Save Space "
                                 "wrote, or bring the official release in with W2W Import Release.")  # fmt: skip
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{path.name} cannot be read ({error}): build or save the space again.") from None
    return _space(tensors, metadata, path.stem)


def _space(tensors: dict[str, torch.Tensor], metadata: dict[str, str], name: str) -> Space:
    about = json.loads(metadata["space"])
    labels = tensors.get("labels", torch.empty(0, 0))
    directions = {
        key: Direction(tensors["directions"][row].float(), told["reach"], told["about"])
        for row, (key, told) in enumerate(about.pop("directions").items())
    }
    return Space(
        layout=Layout.from_json(metadata["layout"]),
        mean=tensors["mean"].float(),
        deviation=tensors["deviation"].float(),
        basis=tensors["basis"],
        basis_scale=tensors.get("basis_scale"),
        coefficients=tensors["coefficients"].float(),
        members=tuple(json.loads(metadata["members"])),
        singular_values=tensors["singular_values"].float(),
        form=about.pop("form"),
        labels={key: labels[:, column].float() for column, key in enumerate(about.pop("labels"))},
        directions=directions,
        about={**about, "name": name},
        **{key: tensors[key].float() for key in _OPTIONAL if key in tensors},
    )


def small_tensors(space: Space, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """All tensors of a space but its basis, by their names in the file."""
    tensors = {"mean": space.mean, "deviation": space.deviation, "coefficients": space.coefficients.to(dtype),
               "singular_values": space.singular_values}  # fmt: skip
    tensors |= {name: getattr(space, name) for name in _OPTIONAL if getattr(space, name) is not None}
    if space.labels:
        tensors["labels"] = torch.stack(list(space.labels.values()), dim=1)
    if space.directions:
        tensors["directions"] = torch.stack([direction.vector for direction in space.directions.values()])
    return tensors


def _measured(space: Space, storage: str) -> StorageError:
    lost = total = 0.0
    members = space.coefficients[:_ROWS]
    difference, whole = torch.zeros(len(members), space.layout.size), torch.zeros(len(members), space.layout.size)
    for first in range(0, space.components, _ROWS):
        block = space.rows(first, first + _ROWS)
        change = block - opened(*packed(block, storage))
        lost, total = lost + float(change.square().sum()), total + float(block.square().sum())
        part = members[:, first : first + _ROWS]
        difference += part @ change
        whole += part @ block
    relative = difference.norm(dim=1) / whole.norm(dim=1).clamp_min(1e-30)
    return StorageError((lost / max(total, 1e-300)) ** 0.5, float(relative.mean()) if len(relative) else 0.0)
