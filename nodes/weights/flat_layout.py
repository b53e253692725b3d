"""How the factors of all layers lie in one flat vector (weights2weights, arXiv 2406.09413, section
3.1).

Layers stand in alphabetical order of their diffusers names, in each first down (rank, in), then up
(out, rank), every tensor row by row: for rank 1 and the query and value projections of SD1.5 this
is the order of the official release, 99,648 numbers. In the form on weight updates they hold each
layer's core in a common basis instead (common_basis.py).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import cast

import torch

from ..common.headers import LARGEST_INTEGER, LARGEST_SIDE, read_section
from ..common.lora_keys import trim_shape
from ..common.lora_reader import Factors
from ..common.peft_files import LARGEST_ALPHA


@dataclass(frozen=True)
class Slot:
    """Where one layer lies: ``down`` of shape ``down_shape`` at ``offset``, ``up`` right after
    it.
    """

    layer: str
    offset: int
    down_shape: tuple[int, ...]
    up_shape: tuple[int, ...]

    @cached_property
    def up_offset(self) -> int:
        return self.offset + _numel(self.down_shape)

    @cached_property
    def end(self) -> int:
        return self.up_offset + _numel(self.up_shape)


@dataclass(frozen=True)
class Layout:
    """The slots of a space, one a layer; ``alpha`` / ``rank`` is the scale of the product up @
    down.
    """

    slots: tuple[Slot, ...]
    rank: int
    alpha: float

    @classmethod
    def of(
        cls, shapes: dict[str, tuple[tuple[int, ...], tuple[int, ...]]], rank: int, alpha: float
    ) -> Layout:
        """A layout from each layer's shapes of down (rank, in, ...) and up (out, rank, ...)."""
        slots = []
        offset = 0
        for layer in sorted(shapes):
            slot = Slot(layer, offset, *map(tuple, shapes[layer]))
            slots.append(slot)
            offset = slot.end
        return cls(tuple(slots), rank, alpha)

    @cached_property
    def size(self) -> int:
        """Numbers in the flat vector."""
        return self.slots[-1].end if self.slots else 0

    @cached_property
    def _counts(self) -> list[int]:
        """Numbers of every tensor, in order."""
        return [
            count
            for slot in self.slots
            for count in (slot.up_offset - slot.offset, slot.end - slot.up_offset)
        ]

    @property
    def scale(self) -> float:
        return self.alpha / self.rank

    @cached_property
    def matrix_sizes(self) -> dict[str, tuple[int, int]]:
        """Outputs and inputs of every layer that some vector changes; a kernel's window counts as
        inputs.
        """
        return {
            slot.layer: (slot.up_shape[0], _numel(slot.down_shape[1:])) for slot in self.changed
        }

    @cached_property
    def sizes(self) -> dict[str, tuple[tuple[int, ...], int]]:
        """Inputs and outputs of every layer."""
        return {
            slot.layer: (trim_shape(slot.down_shape[1:]), slot.up_shape[0]) for slot in self.slots
        }

    @cached_property
    def shapes(self) -> dict[str, tuple[tuple[int, ...], tuple[int, ...]]]:
        """Shapes of down and up of every layer."""
        return {slot.layer: (slot.down_shape, slot.up_shape) for slot in self.slots}

    def flatten(self, layers: dict[str, Factors]) -> torch.Tensor:
        """Factors as float32 (size,); a layer that is absent is zero. Scales other than the
        layout's go into up.
        """
        parts = []
        scale = self.scale
        for slot in self.slots:
            if factors := layers.get(slot.layer):
                up = (
                    factors.up.float()
                    if factors.scale == scale
                    else factors.up.float() * (factors.scale / scale)
                )
                parts += [factors.down.float().flatten(), up.flatten()]
            else:
                parts.append(torch.zeros(slot.end - slot.offset))
        return torch.cat(parts)

    def unflatten(self, flat: torch.Tensor) -> dict[str, Factors]:
        """The factors of a flat vector (size,): views of it."""
        scale = self.scale
        parts = iter(flat.split(self._counts))
        return {
            slot.layer: Factors(
                next(parts).view(slot.down_shape), next(parts).view(slot.up_shape), scale
            )
            for slot in self.slots
        }

    @cached_property
    def changed(self) -> tuple[Slot, ...]:
        """The slots of layers that some vector changes."""
        return self.slots

    def factors_at(self, slot: Slot, flat: torch.Tensor) -> Factors:
        """One layer's factors in a flat vector."""
        return self.factors_of(slot, flat[slot.offset : slot.end])

    def factors_of(self, slot: Slot, numbers: torch.Tensor) -> Factors:
        """One layer's factors from its own numbers of a flat vector: views."""
        count = slot.up_offset - slot.offset
        return Factors(
            numbers[:count].view(slot.down_shape), numbers[count:].view(slot.up_shape), self.scale
        )

    def rows(self) -> Iterator[tuple[int, int, tuple[int, ...], str]]:
        """Offset, count, shape and name of every tensor in order, as the table of the official
        release lists them.
        """
        for slot in self.slots:
            yield (
                slot.offset,
                slot.up_offset - slot.offset,
                slot.down_shape,
                f"{slot.layer}.lora_A.weight",
            )
            yield (
                slot.up_offset,
                slot.end - slot.up_offset,
                slot.up_shape,
                f"{slot.layer}.lora_B.weight",
            )

    def to_json(self) -> str:
        """The layout as text, for a file's header."""
        layers = {slot.layer: [slot.down_shape, slot.up_shape] for slot in self.slots}
        return json.dumps({"rank": self.rank, "alpha": self.alpha, "layers": layers})

    @classmethod
    def from_json(cls, text: str, file: str = "The layout") -> Layout:
        """The layout that ``to_json`` wrote; raises HeaderError for any other text of a
        ``file``.
        """
        about = read_section(text, file, "its layout")
        layers = about.section("layers")
        shapes = {}
        for layer in layers:
            down, up = layers.shapes(layer, count=2)
            if min(len(down), len(up)) < 2:
                raise layers.mismatch(layer, "the shapes of two factors")
            shapes[layer] = (down, up)
        rank = about.integer("rank", low=1, high=LARGEST_SIDE)
        layout = cls.of(shapes, rank, about.number("alpha", low=-LARGEST_ALPHA, high=LARGEST_ALPHA))
        if layout.size > LARGEST_INTEGER // 16:
            raise layers.mismatch(max(layers, key=len, default=""), "shapes that fit on a disk")
        return layout


@dataclass(frozen=True)
class LayerBasis:
    """Orthonormal ``left`` (out, p) and ``right`` (q, in) of one layer; a kernel's window counts as
    inputs.
    """

    left: torch.Tensor
    right: torch.Tensor

    def core(self, change: Factors) -> torch.Tensor:
        """C (p, q) float32 of an update."""
        up, down = change.matrices()
        return (self.left.T @ up) @ (down @ self.right.T)


class CoreSlot(Slot):
    """Where one layer's core lies; ``down_shape`` is (q, in, ...), ``up_shape`` (out, p, ...)."""

    @property
    def shape(self) -> tuple[int, int]:
        """(p, q)."""
        return self.up_shape[1], self.down_shape[0]

    @cached_property
    def end(self) -> int:
        return self.offset + self.shape[0] * self.shape[1]


@dataclass(frozen=True)
class CommonBasis(Layout):
    """A layout of cores, one a layer; ``left`` and ``right`` hold all bases one after another, in
    any float dtype.
    """

    left: torch.Tensor = field(default_factory=lambda: torch.empty(0), compare=False)
    right: torch.Tensor = field(default_factory=lambda: torch.empty(0), compare=False)

    @classmethod
    def of_bases(cls, shapes: dict, left: torch.Tensor, right: torch.Tensor) -> CommonBasis:
        """A layout from each layer's shapes (q, in, ...) and (out, p, ...), in this order, and the
        bases in it.
        """
        slots = []
        offset = 0
        for layer, (down, up) in shapes.items():
            slot = CoreSlot(layer, offset, tuple(down), tuple(up))
            slots.append(slot)
            offset = slot.end
        return cls(
            slots=tuple(slots),
            rank=max(min(slot.shape) for slot in slots),
            alpha=1.0,
            left=left,
            right=right,
        )

    @property
    def core_slots(self) -> tuple[CoreSlot, ...]:
        """The slots, which are all of cores."""
        return cast("tuple[CoreSlot, ...]", self.slots)

    @cached_property
    def bases(self) -> dict[str, LayerBasis]:
        """The basis of every layer: views."""
        found = {}
        first_left = 0
        first_right = 0
        for slot in self.core_slots:
            p, q = slot.shape
            outputs = slot.up_shape[0]
            inputs = torch.Size(slot.down_shape[1:]).numel()
            left = self.left[first_left : first_left + outputs * p].view(outputs, p)
            right = self.right[first_right : first_right + q * inputs].view(q, inputs)
            found[slot.layer] = LayerBasis(left, right)
            first_left = first_left + left.numel()
            first_right = first_right + right.numel()
        return found

    def flatten(self, layers: dict[str, Factors]) -> torch.Tensor:
        """Cores as float32 (size,); a layer that is absent is zero."""
        flat = torch.zeros(self.size)
        for slot in self.slots:
            if slot.layer in layers:
                basis = self.bases[slot.layer]
                wide = LayerBasis(basis.left.float(), basis.right.float())
                flat[slot.offset : slot.end] = wide.core(layers[slot.layer]).flatten()
        return flat

    @cached_property
    def changed(self) -> tuple[Slot, ...]:
        """The slots of layers that some vector changes: those that no member changes have no
        core.
        """
        return tuple(slot for slot in self.core_slots if min(slot.shape))

    def unflatten(self, flat: torch.Tensor) -> dict[str, Factors]:
        """The factors of a flat vector (size,); layers that no member changes have none."""
        return {slot.layer: self.factors_at(slot, flat) for slot in self.changed}

    def factors_of(self, slot: Slot, numbers: torch.Tensor) -> Factors:
        """One layer's factors, of rank min(p, q); differentiable in the numbers, on their
        device.
        """
        basis = self.bases[slot.layer]
        p = slot.up_shape[1]
        q = slot.down_shape[0]
        left, right = (side.to(numbers.device, torch.float32) for side in (basis.left, basis.right))
        core = numbers.view(p, q)
        up, down = (left, core @ right) if p < q else (left @ core, right)
        return Factors(
            down.reshape(-1, *slot.down_shape[1:]),
            up.reshape(slot.up_shape[0], -1, *slot.up_shape[2:]),
            1.0,
        )

    def to(self, device: torch.device | str) -> CommonBasis:
        """The same with its bases on a device."""
        return replace(self, left=self.left.to(device), right=self.right.to(device))


def _numel(shape: tuple[int, ...]) -> int:
    count = 1
    for side in shape:
        count *= side
    return count
