"""The form on weight updates: members in one common basis for each layer, without ever forming an
update dW.

dW_i = up_i @ down_i is L C_i R with L (out, p) and R (q, in) of orthonormal columns and rows that
all members have in common. The core C_i = (L^T up_i) (down_i R^T) has the products <C_i, C_j> =
<dW_i, dW_j>, whatever the rank, sign and gauge of the factors, so principal components of cores are
those of the updates, and every sum of members is again a LoRA of rank min(p, q). L and R are
truncated one after the other (Vannieuwenhoven et al., SIAM J. Sci. Comput. 34(2), 2012): what the
two steps leave out adds up exactly.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch

from ..common.lora_reader import Factors
from .flat_layout import LayerBasis

_TINY = 1e-12  # a fraction of the energy that is rounding
_OVERSAMPLED = 16
_POWERS = 2
_DEPENDENT = 1e-6  # a direction with less than this fraction of the first one's energy is rounding


@dataclass(frozen=True)
class LayerUpdates:
    """Updates dW_i = up_i @ down_i of one layer side by side: ``up`` (out, R), ``down`` (R, in)
    float32, R ranks.
    """

    up: torch.Tensor
    down: torch.Tensor
    ranks: tuple[int, ...]

    @classmethod
    def of(cls, changes: list[Factors]) -> LayerUpdates:
        """Those of one layer, with their scales in ``up``; at least one."""
        ranks = tuple(change.rank for change in changes)
        first = changes[0].matrices()
        up = torch.empty(len(first[0]), sum(ranks))
        down = torch.empty(sum(ranks), first[1].shape[1])
        for change, left, right in zip(changes, up.split(ranks, 1), down.split(ranks), strict=True):
            left.copy_(change.up.flatten(1)).mul_(change.scale)
            right.copy_(change.down.flatten(1))
        return cls(up, down, ranks)

    @property
    def transposed(self) -> LayerUpdates:
        """dW_i^T."""
        return LayerUpdates(self.down.T, self.up.T, self.ranks)

    def pairs(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """up_i and down_i: views."""
        return list(zip(self.up.split(self.ranks, 1), self.down.split(self.ranks), strict=True))

    @cached_property
    def grams(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """up_i^T up_i and down_i down_i^T."""
        return [(up.T @ up, down @ down.T) for up, down in self.pairs()]

    @cached_property
    def squares(self) -> list[float]:
        """|dW_i|^2."""
        return [float((up.double() * down.double()).sum().clamp_min(0)) for up, down in self.grams]

    def cores(self, basis: LayerBasis) -> list[torch.Tensor]:
        """C_i (p, q) in a basis."""
        lefts = (basis.left.T @ self.up).split(self.ranks, 1)
        rights = (self.down @ basis.right.T).split(self.ranks)
        return [left @ right for left, right in zip(lefts, rights, strict=True)]


def extend_basis(
    updates: LayerUpdates, energy: float, limit: int, start: LayerBasis | None = None
) -> LayerBasis:
    """A layer's basis that keeps at least the fraction ``energy`` of the updates on average, each
    counted the same.

    At most ``limit`` vectors on a side (0: no limit), then less is kept. Vectors of ``start`` stay;
    the new ones are chosen for what it leaves out. Updates that are zero have no say.
    """
    outputs = len(updates.up)
    inputs = updates.down.shape[1]
    left, right = (
        (start.left, start.right) if start else (torch.empty(outputs, 0), torch.empty(0, inputs))
    )
    weights = [1 / square if square else 0.0 for square in updates.squares]
    budget = sum(map(bool, weights)) * (1 - energy) / 2
    if inputs <= outputs:
        right = _extend(
            right.T, updates.transposed, weights=weights, budget=budget, limit=limit
        ).T.contiguous()
        inside = LayerUpdates(updates.up, updates.down @ right.T, updates.ranks)
        left = _extend(left, inside, weights=weights, budget=budget, limit=limit)
    else:
        left = _extend(left, updates, weights=weights, budget=budget, limit=limit)
        inside = LayerUpdates(updates.down.T, updates.up.T @ left, updates.ranks)
        right = _extend(right.T, inside, weights=weights, budget=budget, limit=limit).T.contiguous()
    return LayerBasis(left, right)


def _extend(
    basis: torch.Tensor, updates: LayerUpdates, weights: list[float], budget: float, limit: int
) -> torch.Tensor:
    """Orthonormal columns (m, p) and those that leave at most ``budget`` of the weighted |dW_i|^2
    outside.
    """
    room = limit - basis.shape[1] if limit else len(basis)
    if not any(weights) or room <= 0:
        return basis
    total = outside = sum(
        weight * square for weight, square in zip(weights, updates.squares, strict=True)
    )
    if basis.shape[1]:
        up = updates.up
        for _ in range(2):  # twice is enough for orthogonality (Kahan and Parlett)
            up = up - basis @ (basis.T @ up)
        updates = LayerUpdates(up, updates.down, updates.ranks)
        outside = sum(
            weight * square for weight, square in zip(weights, updates.squares, strict=True)
        )
    if limit and min(updates.up.shape) > 2 * room:
        vectors, squares = _leading_vectors(updates, weights, room)
    else:
        parts = zip(updates.pairs(), weights, strict=True)
        stack = torch.cat([weight**0.5 * _half(*pair) for pair, weight in parts if weight], dim=1)
        if stack.shape[1] > 2 * stack.shape[0]:
            stack = torch.linalg.qr(stack.T, mode="r").R.T
        vectors, values, _ = torch.linalg.svd(stack, full_matrices=False)
        squares = values.double().square()
        outside = float(
            squares.sum()
        )  # what is left is exact then, below the rounding of another sum, too
    rest = outside - torch.cat([torch.zeros(1), squares]).cumsum(0)
    needed = int((rest > max(budget, _TINY * total)).sum())
    return torch.cat([basis, vectors[:, : min(needed, room, len(squares))]], dim=1)


def _half(up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
    """X (out, r) with X X^T = (up down) (up down)^T."""
    return up @ torch.linalg.qr(down.T, mode="r").R.T


def _leading_vectors(
    updates: LayerUpdates, weights: list[float], count: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """The first eigenvectors of S = sum w_i dW_i dW_i^T by random projection, and their
    eigenvalues, not above S's own.

    S = up G up^T with G the weighted down_i down_i^T as blocks, so no update is formed and no
    factor decomposed. One subspace iteration (Halko, Martinsson and Tropp, arXiv 0909.4061) starts
    from G (up_i^T up_i G)^2 x random numbers, which for members with little in common is two
    iterations more; then S is taken as its Nystroem approximation.
    """
    width = min(count + _OVERSAMPLED, *updates.up.shape)
    draws = torch.randn(
        sum(updates.ranks), width, generator=torch.Generator().manual_seed(0)
    ).split(updates.ranks)
    blocks = [
        (up, weight * down) for (up, down), weight in zip(updates.grams, weights, strict=True)
    ]
    start = []
    for (up, down), numbers in zip(blocks, draws, strict=True):
        for _ in range(_POWERS):
            numbers = up @ (down @ numbers)
        start.append(down @ numbers)
    mixed = torch.cat(start)
    first = torch.linalg.qr(updates.up @ (mixed / mixed.norm())).Q
    inside = updates.up.T @ first
    weighted = torch.cat(
        [down @ part for (_, down), part in zip(blocks, inside.split(updates.ranks), strict=True)]
    )
    image, small = torch.linalg.qr(updates.up @ weighted)
    squares, turn = torch.linalg.eigh((inside.T @ weighted).double())
    kept = squares > _DEPENDENT * squares[-1]
    vectors, values, _ = torch.linalg.svd(
        small.double() @ (turn[:, kept] * squares[kept].rsqrt()), full_matrices=False
    )
    return image @ vectors[:, :count].float(), values[:count].square()
