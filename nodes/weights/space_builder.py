"""Build a space from members on disk (arXiv 2406.09413, section 3.1), in memory that does not grow with n x D.

Members are read one at a time, brought to the layout and written to a member store in blocks of columns; in the form on
weight updates layer by layer (update_builder.py). Two passes over the blocks follow: the first standardizes each and
adds its part to the n x n Gram matrix, whose eigenvectors are the left singular vectors of the standardized members;
the second makes each block of the basis from them. What the store has already is not read again, so that a build which
was stopped goes on.
"""

from __future__ import annotations

import contextlib
import glob
import hashlib
import logging
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from ..common.atomic_write import file_lock
from ..common.lora_keys import base_of, declared_base, usual_stem
from ..common.lora_reader import Lora, Shape
from ..common.safetensors_files import tensor_file
from . import space_file
from .flat_layout import Layout
from .member_groups import find_groups
from .member_store import MemberSource, MemberStore
from .quantization import Storage, quantize
from .rank_reduction import sign_reference
from .space import Form, Space, flatten_lora, strengths_of

if TYPE_CHECKING:
    from .core_store import CoreStore

_REFERENCE_MEMBERS = 64
_MEASURED = 8  # blocks of columns on which the error of storage is measured
_SAME = 1e-2  # relative distance of members that differ by the rounding of their files
_TINY = 1e-12  # singular values below this fraction of the first are rounding
Track = Callable[[Iterable], Iterable]


class OnMismatch(StrEnum):
    """What happens to a file that does not fit: skipped and named in the report, or an error."""

    SKIP = "skip"
    ERROR = "error"


class MemberNorm(StrEnum):
    """At which |dW| members enter: as their files have it, or all at the median of them."""

    KEEP = "keep"
    EQUAL = "equal"


@dataclass(frozen=True)
class BuildSettings:
    """How to build: see W2W Build Space."""

    rank: int = 1
    components: int = 1000
    form: str = Form.SINGULAR_VALUES
    standardize: bool = True
    on_mismatch: str = OnMismatch.SKIP
    storage: str = Storage.FLOAT32
    energy: float = 0.99
    norm: str = MemberNorm.KEEP


@dataclass
class SkippedMembers:
    """The sources that did not become members, with the reasons."""

    reasons: dict[str, str] = field(default_factory=dict)

    def add(self, name: str, reason: str, settings: BuildSettings) -> None:
        """Note a source that does not fit; raises ValueError where the settings make that an error."""
        if settings.on_mismatch == OnMismatch.ERROR:
            raise ValueError(f"{name}: {reason} Remove it, or set on_mismatch to {OnMismatch.SKIP}.")
        self.reasons[name] = reason


def build(
    sources: list[MemberSource], settings: BuildSettings, target: Path, track: Track = iter, base: str = ""
) -> Space:
    """Build the space of the sources into the file ``target`` and open it; a file of the same build is just opened.

    ``base``: a digest of the base MODEL that reads some of the sources. ``track`` wraps every long loop: it shows
    progress and stops by raising. Work in progress lies in a folder beside
    the target, named after its sources and settings: a later call with the same ones resumes from it. The finished
    build removes it, and what other builds of the target left. Raises BusyError while another process builds it.
    """
    if settings.form == Form.WEIGHT_UPDATES:
        settings = replace(settings, standardize=False)  # numbers of a core depend on the basis, their products do not
    skipped = SkippedMembers()
    fitting, shapes, about = _common_layers(sources, settings, skipped, track)
    if settings.form == Form.WEIGHT_UPDATES:
        layout = None
    elif settings.rank:
        layout = _layout(fitting, shapes, settings)
    else:
        raise ValueError(f"rank is 0, which the form {settings.form} has no meaning for: set it to 1 or more.")
    of = (settings, base, layout or shapes, [(s.name, s.stamp) for s in fitting])
    key = hashlib.sha256(repr(of).encode()).hexdigest()
    with file_lock(target):
        if space_file.build_key(target) != key:
            folder = target.with_name(f"{target.stem}.{key[:12]}.building")
            try:
                store: MemberStore | CoreStore
                if layout is None:
                    reference = None
                    store, layout, found = _collect_updates(
                        fitting, shapes, settings, skipped, folder, key, target, track, base
                    )
                    about |= found
                else:
                    store, reference = _collect_factors(fitting, layout, settings, skipped, folder, key, track)
                if len(store.members) < 2:
                    raise ValueError(
                        f"A space needs at least two members and {len(store.members)} fit: "
                        f"{'; '.join(skipped.reasons.values()) or 'give more LoRAs'}"
                    )
                about |= {"skipped": skipped.reasons, "build": key}
                _decompose(store, layout, settings, reference, about, target, track)
            except ValueError:  # refused: there is nothing to resume
                shutil.rmtree(folder, ignore_errors=True)
                raise
            for abandoned in target.parent.glob(f"{glob.escape(target.stem)}.*.building"):
                shutil.rmtree(abandoned, ignore_errors=True)
        return space_file.read(target)


def _collect_factors(
    sources: list[MemberSource],
    layout: Layout,
    settings: BuildSettings,
    skipped: SkippedMembers,
    folder: Path,
    key: str,
    track: Track,
) -> tuple[MemberStore, torch.Tensor | None]:
    """All members' factors in the layout, and the reference of their signs."""
    store = MemberStore(folder, key, len(sources), layout.size)
    reference = _reference(sources, layout, settings, track)
    for source in track(sources):
        if source.name not in store.members and source.name not in skipped.reasons:
            _add(source, layout, settings, reference, store, skipped)
    return store, reference


def _collect_updates(
    sources: list[MemberSource],
    shapes: dict[str, Shape],
    settings: BuildSettings,
    skipped: SkippedMembers,
    folder: Path,
    key: str,
    target: Path,
    track: Track,
    base: str,
) -> tuple[CoreStore, Layout, dict]:
    """The cores of all members in a common basis of each layer, and what the space says of how it was built."""
    from .core_store import CoreStore
    from .update_builder import UpdateBuilder, space_to_extend

    named = repr((settings, base))
    start = space_to_extend(target, named)
    builder = UpdateBuilder(sources, settings.energy, settings.rank, start)
    store = CoreStore(folder, f"{key} {start is not None and start.about['build']}", len(sources))
    builder.fill(store, shapes, lambda name, why: skipped.add(name, why, settings), track)
    layout = builder.finish(store, skipped.reasons, torch.float32 if settings.storage == "float32" else torch.float16)
    stamps = {source.name: source.stamp for source in sources if source.name in store.members}
    return store, layout, {"settings": named, "stamps": stamps, "reused": builder.reused}


def _common_layers(
    sources: list[MemberSource], settings: BuildSettings, skipped: SkippedMembers, track: Track
) -> tuple[list[MemberSource], dict[str, Shape], dict]:
    """The sources made for the base model of the majority, the shapes of all their layers, and what else was noticed.

    Text encoder layers are among them in the form on weight updates alone.
    """
    found: dict[str, dict[str, Shape]] = {}
    bases: dict[str, list[str]] = {}
    seen: dict[str, str] = {}
    stems: dict[str, str] = {}
    for source in track(sources):
        try:
            header = source.header()
        except ValueError as error:
            skipped.add(source.name, str(error), settings)
            continue
        if (twin := seen.setdefault(source.content(), source.name)) != source.name:
            skipped.add(source.name, f"it is the same file as {twin}.", settings)
            continue
        found[source.name] = header.shapes | (header.text if settings.form == Form.WEIGHT_UPDATES else {})
        stems = {**header.stems, **stems}
        if base := declared_base(header.metadata):
            bases.setdefault(base, []).append(source.name)
    votes: Counter = Counter((layer, _counts(shape)) for shapes in found.values() for layer, shape in shapes.items())
    most: dict[str, tuple[int, ...]] = {}
    for (layer, counts), _ in votes.most_common():
        most.setdefault(layer, counts)
    sizes: dict[str, Shape] = {}
    for own in found.values():  # as a kernel where one file has it so, since others have it as a matrix
        for layer, shape in own.items():
            if _counts(shape) == most[layer] and len(shape[0]) > len(sizes.get(layer, ((), ()))[0]):
                sizes[layer] = shape
    fitting, layers = [], set()
    for source in sources:
        shapes = found.get(source.name)
        if shapes is None:
            continue
        shared = [layer for layer in shapes if votes[layer, _counts(shapes[layer])] * 2 >= len(found)]
        odd = next((layer for layer, shape in shapes.items() if _counts(shape) != most[layer]), None)
        if odd or not shared:
            skipped.add(source.name, _other_base(odd, shapes, sizes), settings)
        else:
            fitting.append(source)
            layers |= set(shapes)
    if not fitting:
        raise ValueError(f"No LoRA fits: {'; '.join(skipped.reasons.values()) or 'the folder holds none'}")
    named = {layer: stems[layer] for layer in sorted(layers) if stems.get(layer, "") not in ("", usual_stem(layer))}
    about = {**_check_bases(bases, settings), **({"stems": named} if named else {})}
    return fitting, {layer: sizes[layer] for layer in layers}, about


def _check_bases(bases: dict[str, list[str]], settings: BuildSettings) -> dict:
    """What a space says of the bases that its members' files declare; an error or a warning where they differ."""
    if len(bases) < 2:
        return {}
    parts = [f"{base} ({len(names)}, such as {names[0]})" for base, names in bases.items()]
    message = f"The files declare several base models: {', '.join(parts)}."
    if settings.on_mismatch == OnMismatch.ERROR:
        raise ValueError(f"{message} Keep those of one, or set on_mismatch to {OnMismatch.SKIP}.")
    logging.warning(message)
    return {"bases": message}


def _other_base(odd: str | None, shapes: dict, sizes: dict) -> str:
    if odd is None:
        return "it shares no layer with most of the others (another base model, or other layer names for Flux)."
    return f"{odd} has inputs and outputs {shapes[odd]} here and {sizes[odd]} in most others."


def _counts(shape: Shape) -> tuple[int, ...]:
    """How many inputs and outputs a layer has: trainers write a kernel as it is, or as a matrix."""
    return tuple(torch.Size(side).numel() for side in shape)


def _layout(sources: list[MemberSource], sizes: dict[str, Shape], settings: BuildSettings) -> Layout:
    """Rank-r shapes of every layer; in the form AS_TRAINED those and the scale of the first readable member."""
    if settings.form == Form.AS_TRAINED:
        layers = _first_readable(sources).layers
        example = next(iter(layers.values()))
        shapes = {name: (tuple(one.down.shape), tuple(one.up.shape)) for name, one in layers.items()}
        return Layout.of(shapes, example.rank, example.scale * example.rank)
    rank = settings.rank
    shapes = {name: ((rank, *inputs), (outputs[0], rank, *outputs[1:])) for name, (inputs, outputs) in sizes.items()}
    return Layout.of(shapes, rank, float(rank))


def _first_readable(sources: list[MemberSource]) -> Lora:
    for source in sources[:-1]:
        with contextlib.suppress(ValueError):  # it is named when it is added
            return source.read()
    return sources[-1].read()


def _reference(
    sources: list[MemberSource], layout: Layout, settings: BuildSettings, track: Track
) -> torch.Tensor | None:
    if settings.form == Form.AS_TRAINED:
        return None
    rows = []
    for source in track(sources[:_REFERENCE_MEMBERS]):
        try:
            rows.append(flatten_lora(source.read(), layout, settings.form, None)[0])
        except ValueError:
            continue  # named when it is added
    return sign_reference(layout, torch.stack(rows)) if rows else None


def _add(
    source: MemberSource,
    layout: Layout,
    settings: BuildSettings,
    reference,
    store: MemberStore,
    skipped: SkippedMembers,
) -> None:
    try:
        flat, lost = flatten_lora(source.read(), layout, settings.form, reference)
    except ValueError as error:
        skipped.add(source.name, str(error), settings)
        return
    norm = sum(one.squared_norm() for one in layout.unflatten(flat).values()) ** 0.5
    store.add(source.name, flat.numpy(), lost, norm)


def _decompose(
    store: MemberStore | CoreStore,
    layout: Layout,
    settings: BuildSettings,
    reference: torch.Tensor | None,
    about: dict,
    target: Path,
    track: Track,
) -> None:
    """Both passes over the stored members, and the file of the space."""
    count = len(store.members)
    mean, deviation = np.zeros(layout.size), np.ones(layout.size)
    about = {**about, "norms": store.norms, "common_norm": _common_norm(store.norms, settings)}
    strengths = strengths_of(about).numpy()[:, None]
    times = strengths**0.5 if settings.form == Form.SINGULAR_VALUES else strengths  # a root for each of two factors
    gram, along, square = np.zeros((count, count), order="F"), np.zeros(count), 0.0
    updates = settings.form == Form.WEIGHT_UPDATES
    for columns in track(store.blocks()):
        stored = store.read(columns) * times
        mean[columns] = stored.mean(axis=0, dtype=np.float64)
        block = stored - mean[columns]
        if settings.standardize:
            spread = np.sqrt(np.einsum("ij,ij->j", block, block) / (count - 1))
            deviation[columns] = np.where(spread > 0, spread, 1.0)
            block /= deviation[columns]
        gram = _with_products(gram, block)
        if updates:
            along += block @ mean[columns]
            square += float(mean[columns] @ mean[columns])
    about = {**about, "twins": _twins(gram, list(store.members))}
    about["groups"] = find_groups(list(store.members), gram, along if updates else None, square)
    if updates and (variance := gram.trace() / ((count - 1) * layout.size)) > 0:
        deviation[:] = variance**0.5  # one for all: coefficients of the size that standardized numbers give
        gram /= variance
    squares = torch.from_numpy(gram.diagonal().copy()).float()
    left, values = _left_singular_vectors(gram, min(settings.components, count - 1))
    kept = left[:, : min(settings.components, left.shape[1])]
    weights = torch.from_numpy(kept / values[: kept.shape[1]]).float()
    space = _assemble(store, layout, settings, reference, mean, deviation, kept, values, target)
    space = replace(space, squares=squares, about={**space.about, **about})
    tensors = space_file.small_tensors(space, torch.float32)
    specification = {name: (value.dtype, tuple(value.shape)) for name, value in tensors.items()}
    specification |= space_file.basis_tensors(kept.shape[1], layout.size, settings.storage)
    target.parent.mkdir(parents=True, exist_ok=True)

    def axes(columns: slice) -> torch.Tensor:
        block = store.read(columns) * times
        block -= mean[columns].astype(np.float32)
        return ((weights.T @ torch.from_numpy(block)).double() / torch.from_numpy(deviation[columns])).float()

    error = None
    if settings.storage != Storage.FLOAT32:
        some = map(axes, store.blocks()[:: max(len(store.blocks()) // _MEASURED, 1)])
        shown = space.coefficients[:_REFERENCE_MEMBERS]
        error = space_file.storage_error(some, shown, settings.storage, store.rounding)
    with tensor_file(target, specification, space_file.header(space, settings.storage, error), space_file.read) as file:
        for name, value in tensors.items():
            file.put(name, value)
        for columns in track(store.blocks()):
            numbers, scale = quantize(axes(columns), settings.storage)
            file.put_columns("basis", columns.start, numbers)
            if scale is not None:
                file.put_columns("basis_scale", columns.start // store.group, scale)


def _common_norm(norms: Sequence[float], settings: BuildSettings) -> float | None:
    """The |dW| that every member is brought to; None where they keep their own.

    In the form AS_TRAINED they do: members have the start of their factors in common, and would no longer.
    """
    positive = [norm for norm in norms if norm > 0]
    if settings.norm == MemberNorm.KEEP or settings.form == Form.AS_TRAINED or not positive:
        return None
    return float(np.median(positive))


def _twins(gram: np.ndarray, members: list[str]) -> list[list[str]]:
    """Pairs of members whose weights are the same, from the upper half of their Gram matrix."""
    diagonal = gram.diagonal()
    distances = diagonal[:, None] + diagonal - 2 * gram
    rows, columns = np.nonzero(np.triu(distances < _SAME**2 * np.maximum(diagonal[:, None], diagonal), 1))
    return [[members[row], members[column]] for row, column in zip(rows, columns, strict=True)]


def _with_products(gram: np.ndarray, block: np.ndarray) -> np.ndarray:
    """The Gram matrix (n, n), its upper half alone, with the products of a block (n, width) added in place."""
    from scipy.linalg.blas import dsyrk

    return dsyrk(1.0, block.T, beta=1.0, c=gram, trans=1, overwrite_c=1)


def _left_singular_vectors(gram: np.ndarray, components: int) -> tuple[np.ndarray, np.ndarray]:
    """Left singular vectors (n, k), the largest entry of each positive, and all singular values, largest first.

    Of the Gram matrix the upper half is read, and all of it is overwritten: for many members it is most of the memory.
    """
    from scipy.linalg import eigh, eigvalsh

    squares = eigvalsh(gram, lower=False, check_finite=False)[::-1]
    found = int((squares > _TINY * squares[0]).sum()) if squares[0] > 0 else 0
    if not found:
        raise ValueError("All members are the same: a space needs members that differ.")
    count, kept = len(gram), min(components, found)
    last = [count - kept, count - 1]
    _, vectors = eigh(gram, lower=False, overwrite_a=True, check_finite=False, subset_by_index=last)
    vectors = vectors[:, ::-1]
    largest = np.abs(vectors).argmax(axis=0)
    return vectors * np.sign(vectors[largest, np.arange(kept)]), np.sqrt(squares[:found])


def _assemble(store, layout, settings, reference, mean, deviation, left, values, target) -> Space:
    lost = list(store.members.values())
    sizes = {slot.layer: torch.Size(slot.down_shape[1:]).numel() for slot in layout.slots}
    about = {
        "name": target.stem,
        "base": base_of(sizes),
        "standardized": settings.standardize,
        "lost": {
            reason: float(np.mean([one.get(reason, 0.0) for one in lost]))
            for reason in sorted({reason for one in lost for reason in one})
        },
    }
    return Space(
        layout=layout,
        mean=torch.from_numpy(mean).float(),
        deviation=torch.from_numpy(deviation).float(),
        basis=torch.empty(left.shape[1], 0),
        coefficients=torch.from_numpy(left * values[: left.shape[1]]).float(),
        members=tuple(store.members),
        singular_values=torch.from_numpy(values).float(),
        form=settings.form,
        sign_reference=reference,
        kept=torch.tensor([1 - sum(one.values()) for one in lost]),
        about=about,
    )
