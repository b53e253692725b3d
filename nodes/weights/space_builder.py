"""Build a space from members on disk (arXiv 2406.09413, section 3.1), in memory that does not grow
with n x D.

Sources go through four stages. Their headers are read and their layers aligned
(member_alignment.py). Members are read one at a time, brought to the layout and written to a member
store in blocks of columns; in the form on weight updates layer by layer (update_builder.py). The
first pass over the blocks standardizes each and adds its part to the n x n Gram matrix, whose
eigenvectors are the left singular vectors of the standardized members. The second makes each block
of the basis from them and writes it. What the store has already is not read again, so that a build
which was stopped goes on.
"""

from __future__ import annotations

import contextlib
import glob
import hashlib
import logging
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ..common.atomic_write import file_lock
from ..common.lora_keys import base_of
from ..common.lora_reader import Lora
from ..common.safetensors_files import tensor_file
from . import space_file
from .build_settings import BuildSettings, MemberNorm, OnMismatch
from .flat_layout import Layout
from .member_alignment import AlignedMembers, Track, align, read_candidates
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


@dataclass(kw_only=True)
class SkippedMembers:
    """The sources that did not become members, with the reasons."""

    on_mismatch: str
    reasons: dict[str, str] = field(default_factory=dict)

    def add(self, name: str, reason: str) -> None:
        """Note a source that does not fit; raises ValueError where the settings make that an
        error.
        """
        if self.on_mismatch == OnMismatch.ERROR:
            raise ValueError(
                f"{name}: {reason} Remove it, or set on_mismatch to {OnMismatch.SKIP}."
            )
        self.reasons[name] = reason


@dataclass(frozen=True, kw_only=True)
class _Build:
    """One build: its settings, where it writes, and what watches it.

    ``key``: a digest of the settings and sources; ``folder``: of the work in progress.
    """

    settings: BuildSettings
    skipped: SkippedMembers
    target: Path
    folder: Path
    key: str
    base: str
    track: Track


@dataclass(frozen=True, kw_only=True)
class _Collected:
    """The members in a store, in one layout, with the reference of their signs and what the space
    says of how they were read.
    """

    store: MemberStore | CoreStore
    layout: Layout
    reference: torch.Tensor | None
    about: dict[str, Any]


def build(
    sources: list[MemberSource],
    settings: BuildSettings,
    target: Path,
    track: Track = iter,
    base: str = "",
    base_name: str = "",
) -> Space:
    """Build the space of the sources into the file ``target`` and open it; a file of the same build
    is just opened.

    ``base``: a digest of the base MODEL that reads some of the sources; ``base_name``: that of its
    architecture, "" where no MODEL says it. ``track`` wraps every long
    loop: it shows progress and stops by raising. Work in progress lies in a folder beside the
    target, named after its sources and settings: a later call with the same ones resumes from it.
    The finished build removes it, and what other builds of the target left. Raises BusyError while
    another process builds it.
    """
    updates = settings.form == Form.WEIGHT_UPDATES
    if updates:  # numbers of a core depend on the basis, their products do not
        settings = replace(settings, standardize=False)
    elif not settings.rank:
        raise ValueError(
            f"rank is 0, which the form {settings.form} has no meaning for: set it to 1 or more."
        )
    skipped = SkippedMembers(on_mismatch=settings.on_mismatch)
    candidates = read_candidates(sources, with_text=updates, skip=skipped.add, track=track)
    members = align(candidates, skipped.add)
    if not members.sources:
        raise ValueError(
            f"No LoRA fits: {'; '.join(skipped.reasons.values()) or 'the folder holds none'}"
        )
    about = _about_bases(members.bases, settings)
    about |= {"stems": members.stems} if members.stems else {}
    about |= {"base": base_name} if base_name else {}
    layout = None if updates else _layout(members, settings)
    stamps = [(source.name, source.stamp) for source in members.sources]
    inputs = (settings, base, layout or members.shapes, stamps)
    key = hashlib.sha256(repr(inputs).encode()).hexdigest()
    with file_lock(target):
        if space_file.build_key(target) != key:
            work = _Build(
                settings=settings,
                skipped=skipped,
                target=target,
                folder=target.with_name(f"{target.stem}.{key[:12]}.building"),
                key=key,
                base=base,
                track=track,
            )
            try:
                _write(work, _collect(work, members, layout), about)
            except ValueError:  # refused: there is nothing to resume
                shutil.rmtree(work.folder, ignore_errors=True)
                raise
        # Also where the file is whole: a build may have been killed between the two.
        for abandoned in target.parent.glob(f"{glob.escape(target.stem)}.*.building"):
            shutil.rmtree(abandoned, ignore_errors=True)
        return space_file.read(target)


def _about_bases(bases: dict[str, list[str]], settings: BuildSettings) -> dict[str, Any]:
    """What a space says of the bases that its members' files declare; an error or a warning where
    they differ.
    """
    if len(bases) < 2:
        return {}
    listed = [f"{base} ({len(names)}, such as {names[0]})" for base, names in bases.items()]
    message = f"The files declare several base models: {', '.join(listed)}."
    if settings.on_mismatch == OnMismatch.ERROR:
        raise ValueError(f"{message} Keep those of one, or set on_mismatch to {OnMismatch.SKIP}.")
    logging.warning(message)
    return {"bases": message}


def _collect(work: _Build, members: AlignedMembers, layout: Layout | None) -> _Collected:
    """Read all members into a store; ``layout``: of their factors, None where their updates are
    read. Raises ValueError for fewer than two.
    """
    if layout is None:
        collected = _collect_updates(work, members)
    else:
        collected = _collect_factors(work, members.sources, layout)
    if len(collected.store.members) < 2:
        raise ValueError(
            f"A space needs at least two members and {len(collected.store.members)} fit: "
            f"{'; '.join(work.skipped.reasons.values()) or 'give more LoRAs'}"
        )
    return collected


def _collect_factors(work: _Build, sources: list[MemberSource], layout: Layout) -> _Collected:
    """All members' factors in the layout, with signs as most of the first members have them."""
    form = work.settings.form
    store = MemberStore(work.folder, work.key, len(sources), layout.size)
    reference = None if form == Form.AS_TRAINED else _reference(sources, layout, form, work.track)
    for source in work.track(sources):
        if source.name in store.members or source.name in work.skipped.reasons:
            continue
        try:
            flat, lost = flatten_lora(source.read(), layout, form, reference)
        except ValueError as error:
            work.skipped.add(source.name, str(error))
            continue
        norm = sum(layer.squared_norm() for layer in layout.unflatten(flat).values()) ** 0.5
        store.add(source.name, flat.numpy(), lost, norm)
    return _Collected(store=store, layout=layout, reference=reference, about={})


def _collect_updates(work: _Build, members: AlignedMembers) -> _Collected:
    """The cores of all members in a common basis of each layer; a space of the same settings in the
    target is extended.
    """
    from .core_store import CoreStore
    from .update_builder import UpdateBuilder, space_to_extend

    settings = work.settings
    sources = members.sources
    named = repr((settings, work.base))
    start = space_to_extend(work.target, named)
    builder = UpdateBuilder(sources, settings.energy, settings.rank, start)
    extended = start is not None and start.about["build"]
    store = CoreStore(work.folder, f"{work.key} {extended}", len(sources))
    builder.fill(store, members.shapes, work.skipped.add, work.track)
    dtype = torch.float32 if settings.storage == Storage.FLOAT32 else torch.float16
    layout = builder.finish(store, work.skipped.reasons, dtype)
    stamps = {source.name: source.stamp for source in sources if source.name in store.members}
    about = {"settings": named, "stamps": stamps, "reused": builder.reused}
    return _Collected(store=store, layout=layout, reference=None, about=about)


def _layout(members: AlignedMembers, settings: BuildSettings) -> Layout:
    """Rank-r shapes of every layer; in the form AS_TRAINED those and the scale of the first
    readable member.
    """
    if settings.form == Form.AS_TRAINED:
        layers = _first_readable(members.sources).layers
        example = next(iter(layers.values()))
        shapes = {
            name: (tuple(factors.down.shape), tuple(factors.up.shape))
            for name, factors in layers.items()
        }
        return Layout.of(shapes, example.rank, example.scale * example.rank)
    rank = settings.rank
    shapes = {
        name: ((rank, *inputs), (outputs[0], rank, *outputs[1:]))
        for name, (inputs, outputs) in members.shapes.items()
    }
    return Layout.of(shapes, rank, float(rank))


def _first_readable(sources: list[MemberSource]) -> Lora:
    for source in sources[:-1]:
        with contextlib.suppress(ValueError):  # it is named when it is added
            return source.read()
    return sources[-1].read()


def _reference(
    sources: list[MemberSource], layout: Layout, form: str, track: Track
) -> torch.Tensor | None:
    """The signs that most of the first members have."""
    rows = []
    for source in track(sources[:_REFERENCE_MEMBERS]):
        try:
            rows.append(flatten_lora(source.read(), layout, form, None)[0])
        except ValueError:
            continue  # named when it is added
    return sign_reference(layout, torch.stack(rows)) if rows else None


@dataclass(kw_only=True)
class _Moments:
    """The first pass over the members: ``mean`` and ``deviation`` of every number (D,), and the
    Gram matrix (n, n) of the members standardized by them, its upper half alone.

    ``along``: products of the members, less their mean, with the mean (n,); ``square``: of the mean
    with itself. Both are 0 but in the form on weight updates, whose products are of updates.
    """

    mean: np.ndarray
    deviation: np.ndarray
    gram: np.ndarray
    along: np.ndarray
    square: float = 0.0

    def scale_together(self) -> None:
        """Divide all numbers by one deviation, which gives coefficients of the size that
        standardized numbers give.
        """
        count = len(self.gram)
        variance = self.gram.trace() / ((count - 1) * len(self.mean))
        if variance > 0:
            self.deviation[:] = variance**0.5
            self.gram /= variance


def _moments(work: _Build, collected: _Collected, times: np.ndarray) -> _Moments:
    """``times``: the factor (n, 1) of every member's numbers."""
    store = collected.store
    count = len(store.members)
    size = collected.layout.size
    moments = _Moments(
        mean=np.zeros(size),
        deviation=np.ones(size),
        gram=np.zeros((count, count), order="F"),
        along=np.zeros(count),
    )
    for columns in work.track(store.blocks()):
        stored = store.read(columns) * times
        moments.mean[columns] = stored.mean(axis=0, dtype=np.float64)
        block = stored - moments.mean[columns]
        if work.settings.standardize:
            spread = np.sqrt(np.einsum("ij,ij->j", block, block) / (count - 1))
            moments.deviation[columns] = np.where(spread > 0, spread, 1.0)
            block /= moments.deviation[columns]
        moments.gram = _with_products(moments.gram, block)
        if work.settings.form == Form.WEIGHT_UPDATES:
            moments.along += block @ moments.mean[columns]
            moments.square += float(moments.mean[columns] @ moments.mean[columns])
    return moments


def _write(work: _Build, collected: _Collected, about: dict[str, Any]) -> None:
    """Both passes over the stored members, and the file of the space."""
    settings = work.settings
    store = collected.store
    members = list(store.members)
    updates = settings.form == Form.WEIGHT_UPDATES
    about = {
        **about,
        **collected.about,
        "skipped": work.skipped.reasons,
        "build": work.key,
        "norms": store.norms,
        "common_norm": _common_norm(store.norms, settings),
    }
    strengths = strengths_of(about).numpy()[:, None]
    # a root for each of two factors
    times = strengths**0.5 if settings.form == Form.SINGULAR_VALUES else strengths
    moments = _moments(work, collected, times)
    about["twins"] = _twins(moments.gram, members)
    along = moments.along if updates else None
    about["groups"] = find_groups(members, moments.gram, along, moments.square)
    if updates:
        moments.scale_together()
    squares = torch.from_numpy(moments.gram.diagonal().copy()).float()
    left, values = _left_singular_vectors(moments.gram, min(settings.components, len(members) - 1))
    space = _assemble(work, collected, moments=moments, left=left, values=values)
    space = replace(space, squares=squares, about={**space.about, **about})
    weights = torch.from_numpy(left / values[: left.shape[1]]).float()

    def axes(columns: slice) -> torch.Tensor:
        """The axes (k, width) in a block of columns."""
        block = store.read(columns) * times
        block -= moments.mean[columns].astype(np.float32)
        products = (weights.T @ torch.from_numpy(block)).double()
        return (products / torch.from_numpy(moments.deviation[columns])).float()

    _write_file(work, space, store, axes)


def _write_file(
    work: _Build,
    space: Space,
    store: MemberStore | CoreStore,
    axes: Callable[[slice], torch.Tensor],
) -> None:
    """The file of the space, whose basis is computed and written block by block."""
    storage = work.settings.storage
    tensors = space_file.small_tensors(space, torch.float32)
    specification = {name: (value.dtype, tuple(value.shape)) for name, value in tensors.items()}
    components = space.basis.shape[0]
    specification |= space_file.basis_tensors(components, space.layout.size, storage)
    work.target.parent.mkdir(parents=True, exist_ok=True)
    error = None
    if storage != Storage.FLOAT32:
        measured = store.blocks()[:: max(len(store.blocks()) // _MEASURED, 1)]
        coefficients = space.coefficients[:_REFERENCE_MEMBERS]
        error = space_file.storage_error(map(axes, measured), coefficients, storage, store.rounding)
    header = space_file.header(space, storage, error)
    with tensor_file(work.target, specification, header, space_file.read) as file:
        for name, value in tensors.items():
            file.put(name, value)
        for columns in work.track(store.blocks()):
            numbers, scale = quantize(axes(columns), storage)
            file.put_columns("basis", columns.start, numbers)
            if scale is not None:
                file.put_columns("basis_scale", columns.start // store.group, scale)
    space_file.forget_measured(work.target)


def _common_norm(norms: Sequence[float], settings: BuildSettings) -> float | None:
    """The |dW| that every member is brought to; None where they keep their own.

    In the form AS_TRAINED they do: members have the start of their factors in common, and would no
    longer.
    """
    positive = [norm for norm in norms if norm > 0]
    if settings.norm == MemberNorm.KEEP or settings.form == Form.AS_TRAINED or not positive:
        return None
    return float(np.median(positive))


def _twins(gram: np.ndarray, members: list[str]) -> list[list[str]]:
    """Pairs of members whose weights are the same, from the upper half of their Gram matrix."""
    diagonal = gram.diagonal()
    distances = diagonal[:, None] + diagonal - 2 * gram
    rows, columns = np.nonzero(
        np.triu(distances < _SAME**2 * np.maximum(diagonal[:, None], diagonal), 1)
    )
    return [[members[row], members[column]] for row, column in zip(rows, columns, strict=True)]


def _with_products(gram: np.ndarray, block: np.ndarray) -> np.ndarray:
    """The Gram matrix (n, n), its upper half alone, with the products of a block (n, width) added
    in place.
    """
    from scipy.linalg.blas import dsyrk

    return dsyrk(1.0, block.T, beta=1.0, c=gram, trans=1, overwrite_c=1)


def _left_singular_vectors(gram: np.ndarray, components: int) -> tuple[np.ndarray, np.ndarray]:
    """Left singular vectors (n, k), the largest entry of each positive, and all singular values,
    largest first.

    Of the Gram matrix the upper half is read, and all of it is overwritten: for many members it is
    most of the memory.
    """
    from scipy.linalg import eigh, eigvalsh

    squares = eigvalsh(gram, lower=False, check_finite=False)[::-1]
    found = int((squares > _TINY * squares[0]).sum()) if squares[0] > 0 else 0
    if not found:
        raise ValueError("All members are the same: a space needs members that differ.")
    count = len(gram)
    kept = min(components, found)
    last = [count - kept, count - 1]
    _, vectors = eigh(gram, lower=False, overwrite_a=True, check_finite=False, subset_by_index=last)
    vectors = vectors[:, ::-1]
    largest = np.abs(vectors).argmax(axis=0)
    return vectors * np.sign(vectors[largest, np.arange(kept)]), np.sqrt(squares[:found])


def _assemble(
    work: _Build, collected: _Collected, moments: _Moments, left: np.ndarray, values: np.ndarray
) -> Space:
    """The space of the left singular vectors (n, k) and all singular values, without its basis."""
    lost = list(collected.store.members.values())
    layout = collected.layout
    sizes = {slot.layer: torch.Size(slot.down_shape[1:]).numel() for slot in layout.slots}
    about = {
        "name": work.target.stem,
        "base": base_of(sizes),
        "standardized": work.settings.standardize,
        "lost": {
            reason: float(np.mean([fractions.get(reason, 0.0) for fractions in lost]))
            for reason in sorted({reason for fractions in lost for reason in fractions})
        },
    }
    return Space(
        layout=layout,
        mean=torch.from_numpy(moments.mean).float(),
        deviation=torch.from_numpy(moments.deviation).float(),
        basis=torch.empty(left.shape[1], 0),
        coefficients=torch.from_numpy(left * values[: left.shape[1]]).float(),
        members=tuple(collected.store.members),
        singular_values=torch.from_numpy(values).float(),
        form=work.settings.form,
        sign_reference=collected.reference,
        kept=torch.tensor([1 - sum(fractions.values()) for fractions in lost]),
        about=about,
    )
