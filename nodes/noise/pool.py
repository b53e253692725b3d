"""Pools: P pairs of picture and noise, assigned once and served batch by batch.

A batch of four gains little. Assigned in a pool of P pairs, each picture comes P / N times, owns as many noises, and a
batch is served one of each picture's own. Which of them comes first depends on the order in which they were drawn and
not on their values, so that what is served over all turns is exactly the Gaussian noise that was drawn.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from .assignment import DOT, Assignment, assign
from .groups import Groups


def turns(size: int, count: int) -> int:
    """How many noises each of `count` pictures owns in a pool of at least `size` pairs."""
    return max(1, -(-size // count))


@dataclass(frozen=True)
class Pool:
    """Noises shared out to pictures: `table[turn, picture]` is the index of a noise."""

    table: torch.Tensor
    assignment: Assignment

    @classmethod
    def build(
        cls,
        data: torch.Tensor,
        noise: torch.Tensor,
        *,
        cost: str = DOT,
        weights: torch.Tensor | None = None,
        groups: Groups | None = None,
        solver: str = "auto",
    ) -> Pool:
        """Share out `noise` (P, D) to the pictures `data` (N, D), P / N to each; P is a multiple of N."""
        assignment = assign(data, noise, cost=cost, weights=weights, groups=groups, solver=solver)
        return cls(assignment.permutation.reshape(-1, len(data)), assignment)

    def serve(self, turn: int, pictures: Sequence[int] | None = None) -> torch.Tensor:
        """The noises of the pictures, all of them by default, in this turn; turns go round."""
        row = self.table[turn % len(self.table)]
        return row if pictures is None else row[list(pictures)]
