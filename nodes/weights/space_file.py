"""A space on disk: one .safetensors file with readable JSON in its header.

Tensors: mean, deviation (D,), basis (k, D), for int8 basis_scale, coefficients (n, k),
singular_values; where there are any also sign_reference (D,), kept, squares (n,), labels (n,
attributes; NaN where unknown), directions (m, k). A space on weight updates is format version 2 and
has the layers' common bases one after another: left_bases, right_bases.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from ..common.headers import LONGEST_JSON, HeaderError, Section, read_section, shorten
from ..common.safetensors_files import MappedFile, open_file, read_tensors, tensor_file
from .flat_layout import CommonBasis, Layout
from .quantization import Storage, dequantize, group_count, quantize
from .space import Direction, Form, Reach, Space

FORMAT = "glassbox_w2w_space"
FORMAT_VERSIONS = ("1", "2")
_ROWS = 64
_MAPPED_BYTES = 200_000_000
_OF_BUILD = ("build", "settings", "stamps")  # by which a build knows its own file, and extends it
#: The ending of the file beside a space that says what its directions were measured to do.
MEASURED = ".sliders.json"
_OPTIONAL = ("sign_reference", "kept", "squares")
Track = Callable[[Iterable], Iterable]


@dataclass(frozen=True)
class StorageError:
    """What storing a basis in fewer bits costs."""

    basis: float  # |V - V'| / |V|, Frobenius
    # the same for rebuilt members, in standardized numbers: the mean over up to 64 of them
    member: float

    def __str__(self) -> str:
        return f"basis {self.basis:.2e}, rebuilt members {self.member:.2e} (relative)"


def write(
    space: Space,
    path: Path,
    storage: str = Storage.FLOAT32,
    coefficients: torch.dtype = torch.float32,
    track: Track = iter,
) -> StorageError:
    """Write a space, its basis stored as one of Storage, a few rows at a time; returns the measured
    error.

    It is no longer what W2W Build Space has built, which builds it again.
    """
    space = replace(
        space, about={name: value for name, value in space.about.items() if name not in _OF_BUILD}
    )
    tensors = small_tensors(space, coefficients)
    specification = {name: (value.dtype, tuple(value.shape)) for name, value in tensors.items()}
    specification |= basis_tensors(space.components, space.layout.size, storage)
    error = _measure_error(space, storage)
    with tensor_file(path, specification, header(space, storage, error), read) as file:
        for name, value in tensors.items():
            file.put(name, value)
        for first in track(range(0, space.components, _ROWS)):
            numbers, scale = quantize(space.rows(first, first + _ROWS), storage)
            file.put_rows("basis", first, numbers)
            if scale is not None:
                file.put_rows("basis_scale", first, scale)
    forget_measured(path)
    return error


def forget_measured(path: Path) -> None:
    """Remove what was measured of the space that a new file has replaced."""
    path.with_suffix(MEASURED).unlink(missing_ok=True)


def basis_tensors(
    components: int, size: int, storage: str
) -> dict[str, tuple[torch.dtype, tuple[int, ...]]]:
    """Names, dtypes and shapes of the tensors that a stored basis takes."""
    tensors: dict[str, tuple[torch.dtype, tuple[int, ...]]] = {
        "basis": (Storage(storage).dtype, (components, size))
    }
    if storage == Storage.INT8:
        tensors["basis_scale"] = (torch.float32, (components, group_count(size)))
    return tensors


def header(space: Space, storage: str, error: StorageError | None) -> dict[str, str]:
    """The readable part of the file."""
    about = {
        **space.about,
        "storage": storage,
        "form": space.form,
        "labels": list(space.labels),
        "directions": {name: _entry(one) for name, one in space.directions.items()},
    }
    if error is not None:
        about["storage_error"] = {"basis": error.basis, "members": error.member}
    return {
        "format": FORMAT,
        "format_version": FORMAT_VERSIONS[space.form == Form.WEIGHT_UPDATES],
        "layout": space.layout.to_json(),
        "members": json.dumps(space.members),
        "space": json.dumps(about),
    }


def _entry(direction: Direction) -> dict:
    """A direction in the header, without its vector."""
    entry = {
        "max_projection": direction.max_projection,
        "about": direction.about,
        "noise": direction.noise,
    }
    if direction.reach is None:
        return entry
    return {
        **entry,
        "reached": direction.reach.reached,
        "appears": list(direction.reach.appears),
    }


def read(path: Path) -> Space:
    """Read a space; a basis of 200 MB or more stays on disk until it is used.

    A file beside it, NAME.sliders.json, says what its directions were measured to do. Raises
    ValueError for any other or damaged file.
    """
    with open_file(path, "build or save the space again") as file:
        metadata = file.metadata() or {}
        _check_format(path, metadata)
        tensors = read_tensors(file, path.name)
        mapped = _copy_small(tensors, path)
    try:
        space = replace(_space(tensors, Section(metadata, path.name), path.stem), file=mapped)
        problem = _problem(space)
    except HeaderError:
        raise
    except (KeyError, ValueError, TypeError, AttributeError, IndexError, RecursionError) as error:
        problem = f"its header or a tensor is not as it should be: {type(error).__name__} {error}"[
            :200
        ]
    if problem:
        raise ValueError(f"{path.name} is damaged ({problem}): build or save the space again.")
    beside = path.with_suffix(MEASURED)
    if not beside.is_file():
        return space
    sliders = read_section(beside.read_bytes(), beside.name, "its sliders")
    _check_sliders(sliders)
    return replace(space, about={**space.about, "sliders": sliders.present()})


def _copy_small(tensors: dict[str, torch.Tensor], path: Path) -> MappedFile | None:
    """Copy what is small out of the mapping of the file, in place; the file where something stays
    in it.
    """
    mapped = False
    for name, tensor in tensors.items():
        if tensor.nbytes < _MAPPED_BYTES:
            tensors[name] = tensor.clone()
        else:
            mapped = True
    return MappedFile(path) if mapped else None


def build_key(path: Path) -> str:
    """What identifies the build that wrote a file; "" where there is none or it cannot be read."""
    try:
        with open_file(path, "build it again") as file:
            return Section(file.metadata() or {}, path.name).parsed("space").text("build")
    except HeaderError:
        return ""


def _check_format(path: Path, metadata: dict[str, str]) -> None:
    if metadata.get("format") != FORMAT:
        raise ValueError(
            f"{path.name} is not a weight space: give a file that W2W Build Space or W2W Save "
            "Space wrote, or import the official release with W2W Import Release."
        )
    if metadata.get("format_version") not in FORMAT_VERSIONS:
        raise ValueError(
            f"{path.name} has format version {shorten(metadata.get('format_version'))} and this "
            f"version of Glassbox reads {' and '.join(FORMAT_VERSIONS)}: build or save the space "
            "again with this version."
        )


def _problem(space: Space) -> str:
    """What is inconsistent in a space that was read; "" when nothing is."""
    members = len(space.members)
    size = space.layout.size
    components = len(space.basis)
    known = space.coefficients.shape[-1]
    shapes = {
        "mean": (space.mean, (size,)),
        "deviation": (space.deviation, (size,)),
        "basis": (space.basis, (components, size)),
        "coefficients": (space.coefficients, (members, known)),
        "sign_reference": (space.sign_reference, (size,)),
        "kept": (space.kept, (members,)),
        "squares": (space.squares, (members,)),
        **{f"label {name}": (values, (members,)) for name, values in space.labels.items()},
        **{
            f"direction {name}": (one.vector, (components,))
            for name, one in space.directions.items()
        },
    }
    if space.basis.dtype == torch.int8 or space.basis_scale is not None:
        shapes["basis_scale"] = (space.basis_scale, (components, group_count(size)))
    for name, (tensor, shape) in shapes.items():
        if tensor is None and name not in _OPTIONAL:
            return f"it has no {name}"
        if tensor is not None and tuple(tensor.shape) != shape:
            return f"its {name} has the shape {tuple(tensor.shape)} and not {shape}"
    if known > components or space.singular_values.ndim != 1:
        return f"it has coefficients of {known} components and {components} components"
    if space.form not in list(Form):
        return f"its form is {space.form}"
    if isinstance(space.layout, CommonBasis):
        wanted = [sum(slot.up_shape[0] * slot.shape[0] for slot in space.layout.core_slots)]
        wanted.append(sum(torch.Size(slot.down_shape).numel() for slot in space.layout.slots))
        if [space.layout.left.numel(), space.layout.right.numel()] != wanted:
            return "its common bases have other sizes than its layout"
    finite = {"mean": space.mean, "deviation": space.deviation, "coefficients": space.coefficients}
    return next(
        (
            f"its {name} holds NaN or infinity"
            for name, one in finite.items()
            if not one.isfinite().all()
        ),
        "",
    )


def _space(tensors: dict[str, torch.Tensor], metadata: Section, name: str) -> Space:
    header = metadata.parsed("space")
    members = metadata.parsed_texts("members")
    _check_about(header, len(members))
    about = header.present()
    labels = tensors.get("labels", torch.empty(0, 0))
    entries = header.section("directions")
    directions = {}
    for row, key in enumerate(entries):
        entry = entries.section(key)
        directions[key] = Direction(
            tensors["directions"][row].float(),
            entry.number("max_projection"),
            entry.text("about"),
            noise=entry.switch("noise", default=False),
            reach=_reach(entry) if entry.get("appears") else None,
        )
    label_names = header.texts("labels")
    for key in ("directions", "labels"):
        del about[key]
    layout = Layout.from_json(metadata.text("layout", longest=LONGEST_JSON), metadata.file)
    if about["form"] == Form.WEIGHT_UPDATES:
        shapes = {slot.layer: (slot.down_shape, slot.up_shape) for slot in layout.slots}
        layout = CommonBasis.of_bases(shapes, tensors["left_bases"], tensors["right_bases"])
    optional = {key: tensors[key].float() if key in tensors else None for key in _OPTIONAL}
    return Space(
        layout=layout,
        mean=tensors["mean"].float(),
        deviation=tensors["deviation"].float(),
        basis=tensors["basis"],
        basis_scale=tensors.get("basis_scale"),
        coefficients=tensors["coefficients"].float(),
        members=members,
        singular_values=tensors["singular_values"].float(),
        form=about.pop("form"),
        labels={key: labels[:, column].float() for column, key in enumerate(label_names)},
        directions=directions,
        about={**about, "name": name},
        sign_reference=optional["sign_reference"],
        kept=optional["kept"],
        squares=optional["squares"],
    )


def _reach(entry: Section) -> Reach:
    """What a direction was measured to do; raises HeaderError for numbers that it cannot be."""
    low, high = entry.numbers("appears", count=2)
    return Reach(reached=entry.number("reached", low=0, high=1), appears=(low, high))


def _check_sliders(sliders: Section) -> None:
    for name in sliders:
        _reach(sliders.section(name))


def _check_about(about: Section, members: int) -> None:
    """Raise HeaderError for what reports and directions read of a space's notes and cannot compute
    with.
    """
    about.choice("form", [str(form) for form in Form])
    for key in ("name", "base", "storage", "bases", "build"):
        about.text(key, default="")
    for key in ("standardized", "learned"):
        about.switch(key, default=False)
    for key in ("skipped", "stems", "stamps"):
        texts = about.section(key, default=Section({}, about.file))
        for name in texts:
            texts.text(name)
    lost = about.section("lost", default=Section({}, about.file))
    for reason in lost:
        lost.number(reason)
    common = about.number("common_norm", low=0, default=None)
    # A member that joins a space without a common norm brings no norm of its own.
    norms = about.numbers("norms", count=members if common else None, low=0, default=())
    if common and not norms:
        raise about.mismatch("norms", f"a list of {members}")
    about.number("total_squares", low=0, default=None)
    about.lists_of_texts("twins", count=2, default=[])
    about.lists_of_texts("groups", default=[])
    about.texts("reused", default=())
    about.texts("faces", count=members if about.get("faces") else None, default=())
    _check_sliders(about.section("sliders", default=Section({}, about.file)))
    error = about.section("storage_error", default=None)
    if error:
        error.number("basis", low=0)
        error.number("members", low=0)


def small_tensors(space: Space, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """All tensors of a space but its basis, by their names in the file."""
    tensors = {
        "mean": space.mean,
        "deviation": space.deviation,
        "coefficients": space.coefficients.to(dtype),
        "singular_values": space.singular_values,
    }
    tensors |= {
        name: getattr(space, name) for name in _OPTIONAL if getattr(space, name) is not None
    }
    if isinstance(space.layout, CommonBasis):
        tensors |= {"left_bases": space.layout.left, "right_bases": space.layout.right}
    if space.labels:
        tensors["labels"] = torch.stack(list(space.labels.values()), dim=1)
    if space.directions:
        tensors["directions"] = torch.stack(
            [direction.vector for direction in space.directions.values()]
        )
    return tensors


def storage_error(
    blocks: Iterable[torch.Tensor], members: torch.Tensor, storage: str, bases: float = 0.0
) -> StorageError:
    """The error on blocks of columns (k, w) of a basis and of ``members`` (m, k); ``bases``: that
    of layers' bases.
    """
    lost = total = 0.0
    apart = torch.zeros(len(members))
    whole = torch.zeros(len(members))
    for block in blocks:
        change = block - dequantize(*quantize(block, storage))
        lost = lost + float(change.square().sum())
        total = total + float(block.square().sum())
        apart += (members @ change).square().sum(dim=1)
        whole += (members @ block).square().sum(dim=1)
    relative = (apart / whole.clamp_min(1e-30) + bases**2).sqrt()
    return StorageError((lost / max(total, 1e-300)) ** 0.5, float(relative.mean()))


def _measure_error(space: Space, storage: str) -> StorageError:
    lost = total = 0.0
    members = space.coefficients[:_ROWS]
    difference = torch.zeros(len(members), space.layout.size)
    exact = torch.zeros(len(members), space.layout.size)
    for first in range(0, space.components, _ROWS):
        block = space.rows(first, first + _ROWS)
        change = block - dequantize(*quantize(block, storage))
        lost = lost + float(change.square().sum())
        total = total + float(block.square().sum())
        part = members[:, first : first + _ROWS]
        difference += part @ change
        exact += part @ block
    relative = difference.norm(dim=1) / exact.norm(dim=1).clamp_min(1e-30)
    return StorageError(
        (lost / max(total, 1e-300)) ** 0.5, float(relative.mean()) if len(relative) else 0.0
    )
