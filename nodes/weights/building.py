"""Build a space from members on disk (arXiv 2406.09413, section 3.1), in memory that does not grow with n x D.

Members are read one at a time, brought to the layout and written to a scratch file in blocks of columns. Two passes
over the blocks follow: the first standardises each and adds its part to the n x n Gram matrix, whose eigenvectors are
the left singular vectors of the standardised members; the second makes each block of the basis from them. Members that
are in the scratch file already are not read again, so that a build which was stopped goes on.
"""

from __future__ import annotations

import contextlib
import hashlib
import shutil
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch

from ..common.lora_keys import base_of
from ..common.tensor_file import TensorFile
from . import space_files
from .layout import Layout
from .lora_files import Lora, Shape, bare
from .quantisation import packed
from .reduction import sign_reference
from .scratch import Scratch
from .space import AS_TRAINED, BALANCED, Space, flattened

SKIP, REFUSE = UNFIT = ("skip and name it", "refuse to build")
_REFERENCE_MEMBERS = 64
_TINY = 1e-12  # singular values below this share of the first are rounding
Track = Callable[[Iterable], Iterable]


@dataclass(frozen=True)
class Source:
    """A member to be: its name, what tells that it has changed, the shapes of its layers, and how to read it."""

    name: str
    stamp: str
    shapes: Callable[[], dict[str, Shape]]
    read: Callable[[], Lora]


@dataclass(frozen=True)
class Settings:
    """How to build: see W2W Build Space."""

    rank: int = 1
    components: int = 1000
    form: str = BALANCED
    standardise: bool = True
    unfit: str = SKIP
    storage: str = "float32"


@dataclass
class Refusals:
    """Why sources are not members, by name."""

    reasons: dict[str, str] = field(default_factory=dict)

    def add(self, name: str, reason: str, settings: Settings) -> None:
        """Note a member that does not fit; raises ValueError when the settings refuse to go on without it."""
        if settings.unfit == REFUSE:
            raise ValueError(f"{name}: {reason} Take it out, or let members that do not fit be skipped.")
        self.reasons[name] = reason


def build(sources: list[Source], settings: Settings, target: Path, track: Track = iter) -> Space:
    """Build the space of the sources into the file ``target`` and open it.

    ``track`` wraps every long loop: it shows progress and stops by raising. The work lies in a folder beside the target
    that a later call with the same sources and settings goes on from, and that is removed at the end.
    """
    refusals = Refusals()
    fitting, layout = _common_layout(sources, settings, refusals, track)
    folder = target.with_name(f"{target.stem}.building")
    key = hashlib.sha256(repr((settings, layout, [(s.name, s.stamp) for s in fitting])).encode()).hexdigest()
    scratch = Scratch(folder, key, len(fitting), layout.size)
    reference = _reference(fitting, layout, settings, track)
    for source in track(fitting):
        if source.name not in scratch.members and source.name not in refusals.reasons:
            _add(source, layout, settings, reference, scratch, refusals)
    if len(scratch.members) < 2:
        raise ValueError(f"A space needs at least two members and {len(scratch.members)} fit: "
                         f"{'; '.join(refusals.reasons.values()) or 'give more LoRAs'}")  # fmt: skip
    _decompose(scratch, layout, settings, reference, refusals, target, track)
    shutil.rmtree(folder)
    return space_files.read(target)


def _common_layout(sources, settings: Settings, refusals: Refusals, track: Track) -> tuple[list[Source], Layout]:
    """The sources made for the base model that most of them are for, and the layout of all their layers."""
    found = {}
    for source in track(sources):
        try:
            found[source.name] = source.shapes()
        except ValueError as error:
            refusals.add(source.name, str(error), settings)
    votes: Counter = Counter((layer, shape) for shapes in found.values() for layer, shape in shapes.items())
    sizes: dict[str, Shape] = {}
    for (layer, shape), _ in votes.most_common():
        sizes.setdefault(layer, shape)
    fitting, layers = [], set()
    for source in sources:
        shapes = found.get(source.name)
        if shapes is None:
            continue
        shared = [layer for layer in shapes if votes[layer, shapes[layer]] * 2 >= len(found)]
        odd = next((layer for layer, shape in shapes.items() if not _same(sizes[layer], shape)), None)
        if odd or not shared:
            refusals.add(source.name, _other_base(odd, shapes, sizes), settings)
        else:
            fitting.append(source)
            layers |= set(shapes)
    if not fitting:
        raise ValueError(f"No LoRA fits: {'; '.join(refusals.reasons.values()) or 'the folder holds none'}")
    return fitting, _layout(fitting, {layer: sizes[layer] for layer in layers}, settings)


def _other_base(odd: str | None, shapes: dict, sizes: dict) -> str:
    if odd is None:
        return "it shares no layer with most of the others (another base model, or another trainer's names for Flux)."
    return f"{odd} has inputs and outputs {shapes[odd]} in it and {sizes[odd]} in most others."


def _same(one: Shape, other: Shape) -> bool:
    return all(bare(a) == bare(b) for a, b in zip(one, other, strict=True))


def _layout(sources: list[Source], sizes: dict[str, Shape], settings: Settings) -> Layout:
    """Rank-r shapes of every layer; in the form AS_TRAINED those and the scale of the first member that is whole."""
    if settings.form == AS_TRAINED:
        layers = _first_whole(sources).layers
        example = next(iter(layers.values()))
        shapes = {name: (tuple(one.down.shape), tuple(one.up.shape)) for name, one in layers.items()}
        return Layout.of(shapes, example.rank, example.scale * example.rank)
    rank = settings.rank
    shapes = {name: ((rank, *inputs), (outputs[0], rank, *outputs[1:])) for name, (inputs, outputs) in sizes.items()}
    return Layout.of(shapes, rank, float(rank))


def _first_whole(sources: list[Source]) -> Lora:
    for source in sources[:-1]:
        with contextlib.suppress(ValueError):  # it is named when its turn comes
            return source.read()
    return sources[-1].read()


def _reference(sources: list[Source], layout: Layout, settings: Settings, track: Track) -> torch.Tensor | None:
    if settings.form == AS_TRAINED:
        return None
    rows = []
    for source in track(sources[:_REFERENCE_MEMBERS]):
        try:
            rows.append(flattened(source.read(), layout, settings.form, None)[0])
        except ValueError:
            continue  # named when its turn comes
    return sign_reference(layout, torch.stack(rows)) if rows else None


def _add(source: Source, layout: Layout, settings: Settings, reference, scratch: Scratch, refusals: Refusals) -> None:
    try:
        flat, lost = flattened(source.read(), layout, settings.form, reference)
    except ValueError as error:
        refusals.add(source.name, str(error), settings)
        return
    scratch.add(source.name, flat.numpy(), lost)


def _decompose(scratch: Scratch, layout: Layout, settings: Settings, reference, refusals: Refusals, target: Path,
               track: Track) -> None:  # fmt: skip
    """Both passes over the scratch file, and the space's own file."""
    count = len(scratch.members)
    mean, deviation = np.zeros(layout.size), np.ones(layout.size)
    gram = np.zeros((count, count), order="F")
    for columns in track(scratch.blocks()):
        block = scratch.read(columns).astype(np.float64)
        mean[columns] = block.mean(axis=0)
        block -= mean[columns]
        if settings.standardise:
            spread = np.sqrt(np.einsum("ij,ij->j", block, block) / (count - 1))
            deviation[columns] = np.where(spread > 0, spread, 1.0)
            block /= deviation[columns]
        gram = _with_products(gram, block)
    squares = torch.from_numpy(gram.diagonal().copy()).float()
    left, values = _left(gram, min(settings.components, count - 1))
    kept = left[:, : min(settings.components, left.shape[1])]
    weights = torch.from_numpy(kept / values[: kept.shape[1]])
    space = _described(scratch, layout, settings, reference, refusals, mean, deviation, kept, values, target)
    space = replace(space, squares=squares)
    tensors = space_files.small_tensors(space, torch.float32)
    specification = {name: (value.dtype, tuple(value.shape)) for name, value in tensors.items()}
    specification |= space_files.basis_tensors(kept.shape[1], layout.size, settings.storage)
    target.parent.mkdir(parents=True, exist_ok=True)
    with TensorFile(target, specification, space_files.header(space, settings.storage, None)) as file:
        for name, value in tensors.items():
            file.put(name, value)
        for columns in track(scratch.blocks()):
            block = scratch.read(columns).astype(np.float64)
            block -= mean[columns]
            block /= deviation[columns]
            numbers, scale = packed((weights.T @ torch.from_numpy(block)).float(), settings.storage)
            file.put_columns("basis", columns.start, numbers)
            if scale is not None:
                file.put_columns("basis_scale", columns.start // scratch.group, scale)


def _with_products(gram: np.ndarray, block: np.ndarray) -> np.ndarray:
    """The Gram matrix (n, n), its upper half alone, with the products of a block (n, width) added in place."""
    from scipy.linalg.blas import dsyrk

    return dsyrk(1.0, block.T, beta=1.0, c=gram, trans=1, overwrite_c=1)


def _left(gram: np.ndarray, components: int) -> tuple[np.ndarray, np.ndarray]:
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


def _described(scratch, layout, settings, reference, refusals, mean, deviation, left, values, target) -> Space:
    lost = list(scratch.members.values())
    sizes = {slot.layer: torch.Size(slot.down_shape[1:]).numel() for slot in layout.slots}
    about = {
        "name": target.stem, "base": base_of(sizes), "standardised": settings.standardise, "refused": refusals.reasons,
        "lost": {reason: float(np.mean([one.get(reason, 0.0) for one in lost]))
                 for reason in sorted({reason for one in lost for reason in one})},
    }  # fmt: skip
    return Space(
        layout=layout,
        mean=torch.from_numpy(mean).float(),
        deviation=torch.from_numpy(deviation).float(),
        basis=torch.empty(left.shape[1], 0),
        coefficients=torch.from_numpy(left * values[: left.shape[1]]).float(),
        members=tuple(scratch.members),
        singular_values=torch.from_numpy(values).float(),
        form=settings.form,
        sign_reference=reference,
        kept=torch.tensor([1 - sum(one.values()) for one in lost]),
        about=about,
    )
