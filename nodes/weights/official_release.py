"""The official release of weights2weights (snap-research/weights2weights, arXiv 2406.09413) as a
space of this pack.

It reads V.pt (D, K), mean.pt, std.pt, weight_dimensions.pt, proj_1000pc.pt, and where present
adapter_config.json and identity_df.csv. No pickle is executed: tensors are read with PyTorch's
restricted reader. The labels come as a pickled table (identity_df.pt), which that reader refuses:
convert it to CSV once, see `LABELS`. The deviations hold negative entries, which belong to the
coefficients: they are kept as they are.
"""

from __future__ import annotations

import contextlib
import csv
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch

from ..common.failures import is_out_of_memory
from ..common.headers import LARGEST_SIDE, read_section
from ..common.lora_keys import DOWN, UP, base_of, parse
from ..common.peft_files import LARGEST_ALPHA
from ..common.safetensors_files import tensor_file
from . import space_file
from .flat_layout import Layout
from .quantization import quantize
from .space import Form, Space

NEEDED = ("V.pt", "mean.pt", "std.pt", "weight_dimensions.pt", "proj_1000pc.pt")
LABELS = (
    "identity_df.pt is a pickled table. It is not read, because reading it would run code from "
    "it. On a machine where you trust the file, write it as CSV beside it: "
    "torch.load('identity_df.pt', weights_only=False).to_csv('identity_df.csv', index=False)"
)
_ALPHA = 27.0  # of the release, should its adapter_config.json be missing
_ROWS = 64
Track = Callable[[Iterable], Iterable]


def convert(
    folder: Path, target: Path, components: int, storage: str, track: Track = iter
) -> tuple[Space, str]:
    """Write the release in a folder as a space, a few components at a time; returns it and remarks
    on it.

    Raises ValueError with one sentence when a file is missing or damaged.
    """
    missing = [name for name in NEEDED if not (folder / name).is_file()]
    if missing:
        raise ValueError(
            f"{folder.name} lacks {', '.join(missing)}: download the whole folder files/ of the "
            "release."
        )
    layout, alpha_known = _layout(folder)
    mean, deviation = (_tensor(folder / f"{name}.pt").float().flatten() for name in ("mean", "std"))
    basis = _tensor(folder / "V.pt")
    projections = _tensor(folder / "proj_1000pc.pt")
    if (
        {len(mean), len(deviation), len(basis)} != {layout.size}
        or basis.ndim != 2
        or projections.ndim != 2
    ):
        raise ValueError(
            f"The files of {folder.name} do not belong together: V.pt has {len(basis)} rows, "
            f"mean.pt {len(mean)}, std.pt {len(deviation)}, weight_dimensions.pt {layout.size}."
        )
    components = min(components, basis.shape[1])
    known = min(components, projections.shape[1])
    coefficients = projections[:, :known].float()
    members, labels, remarks = _labels(folder, len(coefficients))
    space = Space(
        layout=layout,
        mean=mean,
        deviation=deviation,
        basis=torch.empty(components, 0),
        coefficients=coefficients,
        members=members,
        singular_values=coefficients.std(dim=0) * (len(coefficients) - 1) ** 0.5,
        form=Form.AS_TRAINED,
        labels=labels,
        about={
            "name": target.stem,
            "standardized": True,
            "source": "weights2weights, arXiv 2406.09413",
            "base": base_of({slot.layer: slot.down_shape[1] for slot in layout.slots}),
            "total_squares": float(layout.size) * (len(coefficients) - 1),
        },
    )
    _write(space, basis, target=target, storage=storage, track=track)
    space_file.forget_measured(target)
    return space_file.read(target), "\n".join([*remarks, *_remarks(space, alpha_known)])


def _write(space: Space, basis: torch.Tensor, target: Path, storage: str, track: Track) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    tensors = space_file.small_tensors(space, torch.float32)
    specification = {name: (value.dtype, tuple(value.shape)) for name, value in tensors.items()}
    specification |= space_file.basis_tensors(space.components, space.layout.size, storage)
    with tensor_file(
        target, specification, space_file.header(space, storage, None), space_file.read
    ) as file:
        for name, value in tensors.items():
            file.put(name, value)
        for first in track(range(0, space.components, _ROWS)):
            last = min(first + _ROWS, space.components)
            numbers, scale = quantize(basis[:, first:last].T.float().contiguous(), storage)
            file.put_rows("basis", first, numbers)
            if scale is not None:
                file.put_rows("basis_scale", first, scale)


def _layout(folder: Path) -> tuple[Layout, bool]:
    """The layout that weight_dimensions.pt lists, whose order must be that of the flattened
    vectors.
    """
    listed = _load(folder / "weight_dimensions.pt")
    shapes: dict[str, dict[str, tuple[int, ...]]] = {}
    for key, value in listed.items() if isinstance(listed, dict) else ():
        found = parse(str(key))
        if found and found.part in (DOWN, UP):
            shapes.setdefault(found.layer, {})[found.part] = _shape(value)
    if not shapes or any(set(one) != {DOWN, UP} for one in shapes.values()):
        raise ValueError("weight_dimensions.pt lists no LoRA factors: download it again.")
    if list(shapes) != sorted(shapes):
        raise ValueError(
            "weight_dimensions.pt lists its layers in another order than the release: download it "
            "again."
        )
    config = folder / "adapter_config.json"
    alpha = _ALPHA
    if config.is_file():
        values = read_section(config.read_bytes(), config.name, "it")
        alpha = values.number("lora_alpha", low=-LARGEST_ALPHA, high=LARGEST_ALPHA, default=_ALPHA)
    rank = next(iter(shapes.values()))[DOWN][0]
    return Layout.of(
        {name: (one[DOWN], one[UP]) for name, one in shapes.items()}, rank, alpha
    ), config.is_file()


def _shape(entry: Any) -> tuple[int, ...]:
    """The shape in an entry (count, shape) of weight_dimensions.pt."""
    try:
        shape = tuple(map(int, entry[1]))
    except (TypeError, ValueError, IndexError, KeyError, OverflowError, RuntimeError):
        shape = ()
    if not shape or not all(1 <= side <= LARGEST_SIDE for side in shape):
        raise ValueError("weight_dimensions.pt lists no shapes: download it again.")
    return shape


def _labels(folder: Path, count: int) -> tuple[tuple[str, ...], dict[str, torch.Tensor], list[str]]:
    """Names and labels of the members, in the order of their coefficients, from identity_df.csv."""
    table = folder / "identity_df.csv"
    numbered = tuple(str(number) for number in range(count))
    if not table.is_file():
        pickled = (folder / "identity_df.pt").is_file()
        return numbered, {}, [LABELS if pickled else "There are no labels (identity_df.csv)."]
    try:
        with open(table, newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file, restval=""))
    except (csv.Error, ValueError) as error:
        raise ValueError(f"identity_df.csv cannot be read ({error}): write it again.") from None
    if len(rows) != count:
        raise ValueError(
            f"identity_df.csv has {len(rows)} rows and proj_1000pc.pt {count}: take both from one "
            "release."
        )
    labels = {}
    for name in filter(None, rows[0]):  # cells beyond the header have no name
        try:
            labels[name] = torch.tensor([float(row[name]) for row in rows])
        except ValueError:
            continue  # a column of text
    file_numbers = labels.pop("file", None)
    members = numbered if file_numbers is None else tuple(row["file"] for row in rows)
    return (
        members,
        {
            name: values
            for name, values in labels.items()
            if name and not name.startswith("Unnamed")
        },
        [],
    )


def _remarks(space: Space, alpha_known: bool) -> list[str]:
    negative = int((space.deviation < 0).sum())
    remarks = [
        f"{space.components} components of {space.layout.size:,} numbers, {len(space.members):,} "
        f"members, {len(space.labels)} labels."
    ]
    if negative:
        remarks.append(
            f"{negative} entries of std.pt are negative and are kept: coefficients depend on their "
            "sign."
        )
    if not alpha_known:
        remarks.append(
            f"There is no adapter_config.json: alpha is set to {_ALPHA:g}, that of the release."
        )
    return remarks


def _tensor(path: Path) -> torch.Tensor:
    value = _load(path)
    if not isinstance(value, torch.Tensor):
        raise ValueError(f"{path.name} is not a tensor: download it again.")
    return value


def _load(path: Path) -> object:
    """PyTorch's restricted reader; large tensors stay on disk until they are used."""
    import pickle

    try:
        with torch.serialization.safe_globals([torch.Size]):
            return torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except pickle.UnpicklingError:
        raise ValueError(
            f"{path.name} holds more than tensors and is not read, because reading it could run "
            "code: use the file of the official release."
        ) from None
    except Exception as error:  # whatever a damaged file makes the unpickler raise
        if is_out_of_memory(error):
            raise
        if old := "mmap" in str(error):
            with contextlib.suppress(
                Exception
            ):  # files of PyTorch before 1.6 cannot be memory-mapped
                return torch.load(path, map_location="cpu", weights_only=True)
        reason = (
            "an old file"
            if old
            else (str(error).splitlines() or [""])[0][:200] or type(error).__name__
        )
        raise ValueError(f"{path.name} cannot be read ({reason}): download it again.") from None
