"""The form on weight updates: members in one common basis for each layer, without ever forming an update dW.

dW_i = up_i @ down_i is L C_i R with L (out, p) and R (q, in) of orthonormal columns and rows that all members have in
common. The core C_i = (L^T up_i) (down_i R^T) has the products <C_i, C_j> = <dW_i, dW_j>, whatever the rank, sign and
gauge of the factors, so principal components of cores are those of the updates, and every sum of members is again a
LoRA of rank min(p, q). L and R are truncated one after the other (Vannieuwenhoven et al., SIAM J. Sci. Comput. 34(2),
2012): what the two steps leave out adds up exactly.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import cast

import torch

from .flat_layout import Layout, Slot
from .lora_reader import Factors, Shape

_TINY = 1e-12  # a fraction of the energy that is rounding
_OVERSAMPLED = 16


@dataclass(frozen=True)
class LayerBasis:
    """Orthonormal ``left`` (out, p) and ``right`` (q, in) of one layer; a kernel's window counts as inputs."""

    left: torch.Tensor
    right: torch.Tensor

    def core(self, change: Factors) -> torch.Tensor:
        """C (p, q) float32 of an update."""
        up, down = change.matrices()
        return (self.left.T @ up) @ (down @ self.right.T)


def extend_basis(
    changes: list[Factors], shape: Shape, energy: float, limit: int, start: LayerBasis | None = None
) -> LayerBasis:
    """A layer's basis that keeps at least the fraction ``energy`` of the updates on average, each counted the same.

    At most ``limit`` vectors on a side (0: no limit), then less is kept. Vectors of ``start`` stay; the new ones are
    chosen for what it leaves out. Updates that are zero have no say.
    """
    halves = []
    for change in changes:
        if norm := change.squared_norm() ** 0.5:
            up, down = change.matrices()
            halves.append((up / norm, down))
    inputs, outputs = torch.Size(shape[0]).numel(), shape[1][0]
    left, right = (start.left, start.right) if start else (torch.empty(outputs, 0), torch.empty(0, inputs))
    budget = len(halves) * (1 - energy) / 2
    if inputs <= outputs:
        right = _extend(right.T, [_half(down.T, up.T) for up, down in halves], budget, limit).T
        left = _extend(left, [_half(up, down @ right.T) for up, down in halves], budget, limit)
    else:
        left = _extend(left, [_half(up, down) for up, down in halves], budget, limit)
        right = _extend(right.T, [_half(down.T, up.T @ left) for up, down in halves], budget, limit).T
    return LayerBasis(left, right.contiguous())


def _half(up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
    """X (out, r) with X X^T = (up down) (up down)^T."""
    return up @ torch.linalg.qr(down.T).R.T


def _extend(basis: torch.Tensor, parts: list[torch.Tensor], budget: float, limit: int) -> torch.Tensor:
    """Orthonormal columns (m, p) and those that leave at most ``budget`` of |parts|^2 outside of all of them."""
    room = limit - basis.shape[1] if limit else len(basis)
    if not parts or room <= 0:
        return basis
    stack = torch.cat(parts, dim=1)
    total = float(stack.double().square().sum())
    for _ in range(2 if basis.shape[1] else 0):  # twice is enough for orthogonality (Kahan and Parlett)
        stack = stack - basis @ (basis.T @ stack)
    if stack.shape[1] > 2 * stack.shape[0]:
        stack = torch.linalg.qr(stack.T).R.T
    if limit and min(stack.shape) > 2 * room:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            vectors, values, _ = torch.svd_lowrank(stack, q=min(room + _OVERSAMPLED, *stack.shape), niter=1)
    else:
        vectors, values, _ = torch.linalg.svd(stack, full_matrices=False)
    rest = float(stack.double().square().sum()) - torch.cat([torch.zeros(1), values]).double().square().cumsum(0)
    needed = int((rest > max(budget, _TINY * total)).sum())
    return torch.cat([basis, vectors[:, : min(needed, room, len(values))]], dim=1)


class CoreSlot(Slot):
    """Where one layer's core lies; ``down_shape`` is (q, in, ...), ``up_shape`` (out, p, ...)."""

    @property
    def shape(self) -> tuple[int, int]:
        """(p, q)."""
        return self.up_shape[1], self.down_shape[0]

    @property
    def end(self) -> int:
        return self.offset + self.shape[0] * self.shape[1]


@dataclass(frozen=True)
class CommonBasis(Layout):
    """A layout of cores, one a layer; ``left`` and ``right`` hold all bases one after another, in any float dtype."""

    left: torch.Tensor = field(default_factory=lambda: torch.empty(0), compare=False)
    right: torch.Tensor = field(default_factory=lambda: torch.empty(0), compare=False)

    @classmethod
    def of_bases(cls, shapes: dict, left: torch.Tensor, right: torch.Tensor) -> CommonBasis:
        """A layout from each layer's shapes (q, in, ...) and (out, p, ...), in this order, and the bases in it."""
        slots, offset = [], 0
        for layer, (down, up) in shapes.items():
            slot = CoreSlot(layer, offset, tuple(down), tuple(up))
            slots.append(slot)
            offset = slot.end
        return cls(tuple(slots), max(min(slot.shape) for slot in slots), 1.0, left, right)

    @property
    def core_slots(self) -> tuple[CoreSlot, ...]:
        """The slots, which are all of cores."""
        return cast("tuple[CoreSlot, ...]", self.slots)

    @cached_property
    def bases(self) -> dict[str, LayerBasis]:
        """The basis of every layer: views."""
        found, first_left, first_right = {}, 0, 0
        for slot in self.core_slots:
            (p, q), outputs = slot.shape, slot.up_shape[0]
            inputs = torch.Size(slot.down_shape[1:]).numel()
            left = self.left[first_left : first_left + outputs * p].view(outputs, p)
            right = self.right[first_right : first_right + q * inputs].view(q, inputs)
            found[slot.layer] = LayerBasis(left, right)
            first_left, first_right = first_left + left.numel(), first_right + right.numel()
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

    def unflatten(self, flat: torch.Tensor) -> dict[str, Factors]:
        """The factors of a flat vector (size,); layers that no member changes have none."""
        return {slot.layer: self.factors_at(slot, flat) for slot in self.core_slots if min(slot.shape)}

    def factors_at(self, slot: Slot, flat: torch.Tensor) -> Factors:
        """One layer's factors, of rank min(p, q); differentiable in the flat vector, on its device."""
        basis, p, q = self.bases[slot.layer], slot.up_shape[1], slot.down_shape[0]
        left, right = (side.to(flat.device, torch.float32) for side in (basis.left, basis.right))
        core = flat[slot.offset : slot.end].view(p, q)
        up, down = (left, core @ right) if p < q else (left @ core, right)
        return Factors(
            down.reshape(-1, *slot.down_shape[1:]), up.reshape(slot.up_shape[0], -1, *slot.up_shape[2:]), 1.0
        )

    def to(self, device) -> CommonBasis:
        """The same with its bases on a device."""
        return CommonBasis(self.slots, self.rank, self.alpha, self.left.to(device), self.right.to(device))
