"""The official release of weights2weights (snap-research/weights2weights, arXiv 2406.09413) as a space of this pack.

Read are V.pt (D, K), mean.pt, std.pt, weight_dimensions.pt, proj_1000pc.pt, and where they are there
adapter_config.json and identity_df.csv. No pickle is executed: tensors are read with PyTorch's restricted reader. The
labels come as a pickled table (identity_df.pt), which that reader refuses: convert it to CSV once, see `LABELS`.
The deviations hold negative entries, which belong to the coefficients: they are kept as they are.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterable
from pathlib import Path

import torch

from ..common.lora_keys import DOWN, UP, base_of, parse
from ..common.tensor_file import TensorFile
from . import space_files
from .layout import Layout
from .quantisation import packed
from .space import AS_TRAINED, Space

NEEDED = ("V.pt", "mean.pt", "std.pt", "weight_dimensions.pt", "proj_1000pc.pt")
LABELS = (
    "identity_df.pt is a pickled table, which is not read because reading it would run code from it. On a machine "
    "where you trust the file, write it as CSV beside it: torch.load('identity_df.pt', weights_only=False)"
    ".to_csv('identity_df.csv', index=False)"
)
_ALPHA = 27.0  # of the release, should its adapter_config.json be missing
_ROWS = 64
Track = Callable[[Iterable], Iterable]


def convert(folder: Path, target: Path, components: int, storage: str, track: Track = iter) -> tuple[Space, str]:
    """Write the release in a folder as a space, a few components at a time; returns it and what to know of it.

    Raises ValueError with one sentence when a file is missing or is not what it should be.
    """
    missing = [name for name in NEEDED if not (folder / name).is_file()]
    if missing:
        raise ValueError(f"{folder.name} lacks {', '.join(missing)}: download the folder files/ of the release whole.")
    layout, alpha_known = _layout(folder)
    mean, deviation = (_tensor(folder / f"{name}.pt").float().flatten() for name in ("mean", "std"))
    basis, projections = _tensor(folder / "V.pt"), _tensor(folder / "proj_1000pc.pt")
    if {len(mean), len(deviation), len(basis)} != {layout.size} or basis.ndim != 2 or projections.ndim != 2:
        raise ValueError(f"The files of {folder.name} do not belong together: V.pt has {len(basis)} rows, mean.pt "
                         f"{len(mean)}, std.pt {len(deviation)}, weight_dimensions.pt {layout.size}.")  # fmt: skip
    components = min(components, basis.shape[1])
    known = min(components, projections.shape[1])
    coefficients = projections[:, :known].float()
    members, labels, told = _labels(folder, len(coefficients))
    space = Space(
        layout, mean, deviation, torch.empty(components, 0), coefficients, members,
        singular_values=coefficients.std(dim=0) * (len(coefficients) - 1) ** 0.5, form=AS_TRAINED, labels=labels,
        about={"name": target.stem, "standardised": True, "source": "weights2weights, arXiv 2406.09413",
               "base": base_of({slot.layer: slot.down_shape[1] for slot in layout.slots}),
               "total_squares": float(layout.size) * (len(coefficients) - 1)},
    )  # fmt: skip
    _write(space, basis, target, storage, track)
    return space_files.read(target), "\n".join([*told, *_remarks(space, alpha_known)])


def _write(space: Space, basis: torch.Tensor, target: Path, storage: str, track: Track) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    tensors = space_files.small_tensors(space, torch.float32)
    specification = {name: (value.dtype, tuple(value.shape)) for name, value in tensors.items()}
    specification |= space_files.basis_tensors(space.components, space.layout.size, storage)
    with TensorFile(target, specification, space_files.header(space, storage, None)) as file:
        for name, value in tensors.items():
            file.put(name, value)
        for first in track(range(0, space.components, _ROWS)):
            last = min(first + _ROWS, space.components)
            numbers, scale = packed(basis[:, first:last].T.float().contiguous(), storage)
            file.put_rows("basis", first, numbers)
            if scale is not None:
                file.put_rows("basis_scale", first, scale)


def _layout(folder: Path) -> tuple[Layout, bool]:
    """The layout that weight_dimensions.pt lists, whose order must be that of the flattened vectors."""
    listed = _load(folder / "weight_dimensions.pt")
    shapes: dict[str, dict[str, tuple[int, ...]]] = {}
    for key, value in listed.items() if isinstance(listed, dict) else ():
        found = parse(str(key))
        if found and found.part in (DOWN, UP):
            shapes.setdefault(found.layer, {})[found.part] = tuple(value[1])
    if not shapes or any(set(one) != {DOWN, UP} for one in shapes.values()):
        raise ValueError("weight_dimensions.pt lists no LoRA factors: download it again.")
    if list(shapes) != sorted(shapes):
        raise ValueError("weight_dimensions.pt lists its layers in another order than the release: download it again.")
    config = folder / "adapter_config.json"
    alpha = json.loads(config.read_text("utf-8")).get("lora_alpha", _ALPHA) if config.is_file() else _ALPHA
    rank = next(iter(shapes.values()))[DOWN][0]
    return Layout.of({name: (one[DOWN], one[UP]) for name, one in shapes.items()}, rank, float(alpha)), config.is_file()


def _labels(folder: Path, count: int) -> tuple[tuple[str, ...], dict[str, torch.Tensor], list[str]]:
    """Names and labels of the members, in the order of their coefficients, from identity_df.csv."""
    table = folder / "identity_df.csv"
    numbered = tuple(str(number) for number in range(count))
    if not table.is_file():
        pickled = (folder / "identity_df.pt").is_file()
        return numbered, {}, [LABELS if pickled else "There are no labels (identity_df.csv)."]
    with open(table, newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    if len(rows) != count:
        raise ValueError(f"identity_df.csv has {len(rows)} rows and proj_1000pc.pt {count}: take both of one release.")
    labels = {}
    for name in rows[0]:
        try:
            labels[name] = torch.tensor([float(row[name]) for row in rows])
        except ValueError:
            continue  # a column of text
    file_numbers = labels.pop("file", None)
    members = numbered if file_numbers is None else tuple(row["file"] for row in rows)
    return members, {name: values for name, values in labels.items() if name and not name.startswith("Unnamed")}, []


def _remarks(space: Space, alpha_known: bool) -> list[str]:
    negative = int((space.deviation < 0).sum())
    remarks = [f"{space.components} components of {space.layout.size:,} numbers, {len(space.members):,} members, "
               f"{len(space.labels)} labels."]  # fmt: skip
    if negative:
        remarks.append(f"{negative} entries of std.pt are negative and are kept: coefficients depend on their sign.")
    if not alpha_known:
        remarks.append(f"There is no adapter_config.json: alpha is taken as {_ALPHA:g}, that of the release.")
    return remarks


def _tensor(path: Path) -> torch.Tensor:
    value = _load(path)
    if not isinstance(value, torch.Tensor):
        raise ValueError(f"{path.name} holds no tensor: download it again.")
    return value


def _load(path: Path):
    """PyTorch's restricted reader; large tensors stay on disk until they are used."""
    import pickle

    try:
        with torch.serialization.safe_globals([torch.Size]):
            return torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except pickle.UnpicklingError:
        raise ValueError(f"{path.name} holds more than tensors and is not read, because reading it could run code: "
                         "take the file of the official release.") from None  # fmt: skip
    except (RuntimeError, OSError, EOFError) as error:
        return _load_old(path, error)


def _load_old(path: Path, error: Exception):
    """Files of PyTorch before 1.6 cannot stay on disk; they are read whole."""
    if "mmap" not in str(error):
        raise ValueError(f"{path.name} cannot be read ({error}): download it again.") from None
    return torch.load(path, map_location="cpu", weights_only=True)
