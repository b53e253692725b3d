"""From LoRAs of any trainer, rank and kind to cores in common bases, layer by layer: see
common_basis.py.

A few layers of all files are read at a time; each file is opened once, and each of its numbers read
once. Members that a space already holds come from it, with its bases: a member that joins costs its
own file, one that leaves costs none.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, cast

import torch

from ..common.lora_reader import Factors, Shape
from . import space_file
from .common_basis import LayerUpdates, extend_basis
from .core_store import CoreStore
from .flat_layout import CommonBasis, LayerBasis
from .member_store import MemberSource
from .space import Form, Space

# The group of all files is in memory, and of each open file its header: 0.4 MB of 2,000 tensors.
# More are opened again.
_MOST_LAYERS = 64
_GROUP_BYTES = 2**29
_MOST_OPEN = 2**13


class UpdateBuilder:
    """Brings the layers of ``sources`` into a store; ``start``: a space that already holds some of
    them, or None.
    """

    def __init__(self, sources: list[MemberSource], energy: float, limit: int, start: Space | None):
        self._sources = sources
        self._energy = energy
        self._limit = limit
        self._start = start
        self._known = _known_rows(start, sources)
        self._kept = start.kept if start is not None and start.kept is not None else torch.ones(0)
        layout = start.layout if start is not None else None
        self._slots = (
            {slot.layer: slot for slot in layout.core_slots}
            if isinstance(layout, CommonBasis)
            else {}
        )
        self._bases = layout.bases if isinstance(layout, CommonBasis) else {}

    @property
    def reused(self) -> list[str]:
        """The members that come from the space."""
        return list(self._known)

    def fill(
        self,
        store: CoreStore,
        shapes: dict[str, Shape],
        refuse: Callable[[str, str], None],
        track: Callable[[Iterable], Iterable],
    ) -> None:
        """Add every layer that the store lacks. ``refuse`` gets name and reason of what cannot be
        read; may raise.
        """
        with contextlib.ExitStack() as stack:
            readers = {
                source.name: source.read
                for source in self._sources
                if source.name not in self._known
            }
            for source in self._sources[:_MOST_OPEN]:
                if source.name in readers and source.keep_open is not None:
                    readers[source.name] = source.keep_open(stack)
            self._fill(store, shapes, refuse=refuse, track=track, readers=readers)

    def _fill(
        self,
        store: CoreStore,
        shapes: dict[str, Shape],
        refuse: Callable[[str, str], None],
        track: Callable[[Iterable], Iterable],
        readers: dict[str, Callable],
    ) -> None:
        refused = {
            name: why for entry in store.entries.values() for name, why in entry["refused"].items()
        }
        for name, why in refused.items():
            refuse(name, why)
        layers = sorted(shapes)
        files = [
            source.path
            for source in self._sources
            if source.path is not None and source.name not in self._known
        ]
        a_layer = sum(path.stat().st_size for path in files) // len(layers) + 1
        width = min(max(_GROUP_BYTES // a_layer, 1), _MOST_LAYERS)
        for first in track(range(0, len(layers), width)):
            group = [layer for layer in layers[first : first + width] if layer not in store.entries]
            wanted = functools.partial(_belongs, group, {} if first else shapes)
            loras = {}
            new = {}
            for name, read in readers.items() if group else ():
                if name not in refused:
                    try:
                        loras[name] = read(wanted)
                    except ValueError as error:
                        new[name] = str(error)
            for layer in group:
                changes = {}
                for name, lora in loras.items():
                    try:
                        if layer in lora.layers or layer in lora.text:
                            changes[name] = (lora.layers if layer in lora.layers else lora.text)[
                                layer
                            ]
                    except ValueError as error:
                        new[name] = f"{name} {error}"
                for name in new:
                    refuse(name, new[name])
                    loras.pop(name, None)
                    changes.pop(name, None)
                dropped = {
                    name: lora.dropped
                    for name, lora in loras.items()
                    if lora.dropped and layer == group[0]
                }
                self._add(store, layer, shapes[layer], changes, refused=new, dropped=dropped)
                refused = refused | new
                new = {}

    def finish(self, store: CoreStore, left_out: Iterable[str], dtype: torch.dtype) -> CommonBasis:
        """The layout; the store then gives the members that were not left out, with what they lose
        by reason.
        """
        members = {}
        for row, source in enumerate(self._sources):
            if source.name not in left_out:
                whole = 0.0
                kept = 0.0
                lost: dict[str, float] = {}
                for entry in store.entries.values():
                    whole = whole + entry["whole"][row]
                    kept = kept + entry["kept"][row]
                    for reason, norm in entry["dropped"].get(source.name, {}).items():
                        lost[reason] = lost.get(reason, 0.0) + norm
                total = max(whole + sum(lost.values()), 1e-300)
                lost = {reason: norm / total for reason, norm in lost.items()}
                before = (
                    1.0
                    if source.name not in self._known
                    else float(self._kept[self._known[source.name]])
                )
                lost["common basis"] = 1 - sum(lost.values()) - before * kept / total
                members[row] = (
                    source.name,
                    {reason: part for reason, part in lost.items() if part > 1e-9},
                )
        return store.finish(members, dtype)

    def _add(
        self, store: CoreStore, layer: str, shape: Shape, changes: dict[str, Factors], **about: Any
    ) -> None:
        basis = None
        stored = None
        if layer in self._bases:
            basis = LayerBasis(self._bases[layer].left.float(), self._bases[layer].right.float())
        made = {}
        squares = {}
        if changes:
            updates = LayerUpdates.of(list(changes.values()))
            basis = extend_basis(updates, self._energy, self._limit, basis)
            made = dict(zip(changes, updates.cores(basis), strict=True))
            squares = dict(zip(changes, updates.squares, strict=True))
        elif basis is None:
            basis = LayerBasis(
                torch.empty(shape[1][0], 0), torch.empty(0, torch.Size(shape[0]).numel())
            )
        cores = torch.zeros(len(self._sources), basis.left.shape[1], len(basis.right))
        whole = [0.0] * len(cores)
        kept = [0.0] * len(cores)
        if self._start is not None and layer in self._slots:
            slot = self._slots[layer]
            space = self._start
            columns = slice(slot.offset, slot.end)
            p, q = slot.shape
            numbers = space.coefficients @ space.stored_basis[:, columns].float()
            stored = (space.mean[columns] + space.deviation[columns] * numbers) / space.strengths[
                :, None
            ]
            stored = stored.view(-1, p, q)
        for row, source in enumerate(self._sources):
            if source.name in changes:
                cores[row] = made[source.name]
                whole[row] = squares[source.name]
            elif source.name in self._known and stored is not None:
                cores[row, : stored.shape[1], : stored.shape[2]] = stored[self._known[source.name]]
            kept[row] = float(torch.linalg.vector_norm(cores[row])) ** 2
            if source.name in self._known:
                whole[row] = kept[row]
        store.add(layer, shape, basis, cores, whole=whole, kept=kept, **about)


def space_to_extend(target: Path, settings: str) -> Space | None:
    """The space in a file, if members can join and leave it: of these settings, with all its
    components in full.
    """
    with contextlib.suppress(ValueError):
        space = space_file.read(target)
        complete = space.components == len(space.singular_values) and space.basis_scale is None
        if (
            space.form == Form.WEIGHT_UPDATES
            and space.about.get("settings") == settings
            and complete
        ):
            return space
    return None


def _known_rows(space: Space | None, sources: list[MemberSource]) -> dict[str, int]:
    """The rows of a space's members by name, for those that have not changed."""
    if space is None:
        return {}
    stamps = cast("dict[str, str]", space.about["stamps"])
    rows = {name: row for row, name in enumerate(space.members)}
    known = (one.name for one in sources if one.name in rows and stamps.get(one.name) == one.stamp)
    return {name: rows[name] for name in known}


def _belongs(group: list[str], others: dict[str, Shape], layer: str) -> bool:
    """Whether a key is read with a group of layers: with the first one also biases and norms of no
    layer.
    """
    return layer in group or (bool(others) and layer not in others)
