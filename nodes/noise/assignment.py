"""Linear assignment of noise to images: Immiscible Diffusion (arXiv 2406.12303), Algorithm 1.

A permutation keeps the set of noise samples, so the sum of |z|^2 never changes, and the permutation
of least total squared distance is that of least -<x, z>: one matrix product instead of a table of
differences.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Any

import numpy as np
import torch

from ...kernels import assignment_cost
from .batch_matrix import check_finite, collapse_weights, first_equal_rows

# Gains below this fraction of the largest possible one are rounding: the batch is constant, and
# nothing moves.
_ROUNDING = 1e-5

Call = Callable[[Callable], Any]


class Cost(StrEnum):
    """What assignment minimizes: squared L2 by the dot product, or L2 in half precision as in the
    paper's code.
    """

    DOT_PRODUCT = "dot_product"
    L2_FP16 = "l2_fp16"


class Grouping(StrEnum):
    """How assignment treats images of different conditions."""

    IGNORE = "ignore"
    WITHIN_GROUPS = "within_groups"
    PENALTY = "penalty"


@dataclass(frozen=True)
class Groups:
    """The label of each image, such as its caption, which is also that of the noise sample drawn
    for it.

    Assignment across conditions skews p(noise | condition) while sampling draws noise from N(0, I).
    C2OT (arXiv 2503.10636) forbids such pairs (`penalty` None) or adds a `penalty`, in standard
    deviations of the centered cost.
    """

    labels: Sequence[str]
    penalty: float | None = None

    def tiled(self, copies: int) -> Groups:
        """The groups of a batch that is laid out `copies` times, one after another."""
        return Groups(list(self.labels) * copies, self.penalty)

    def add_penalty(self, cost: np.ndarray) -> np.ndarray:
        """The cost with the penalty on pairs of different groups."""
        if self.penalty is None:
            return cost
        numbers = np.unique(np.asarray(self.labels), return_inverse=True)[1]
        return cost + self.penalty * cost.std() * (numbers[:, None] != numbers[None, :])

    def blocks(self) -> list[list[int]]:
        """The rows among which noise may be swapped."""
        if self.penalty is not None:
            return [list(range(len(self.labels)))]
        images: dict[str, list[int]] = {}
        for image, label in enumerate(self.labels):
            images.setdefault(label, []).append(image)
        return list(images.values())


@dataclass(frozen=True)
class Assignment:
    """Row i takes noise sample `permutation[i]`; the identity where there is nothing to gain."""

    permutation: torch.Tensor
    milliseconds: float = 0.0


def assign(
    data: torch.Tensor,
    noise: torch.Tensor,
    *,
    cost: str = Cost.DOT_PRODUCT,
    weights: torch.Tensor | None = None,
    groups: Groups | None = None,
    call: Call = lambda work: work(),
) -> Assignment:
    """Optimal assignment of `noise` (P, D) to `data` (N, D), each of whose rows takes P / N noise
    samples.

    Row r * N + i of the result is the noise sample of image i in turn r; for P = N that is a plain
    permutation. `weights` (N, D), 0 to 1, weigh coordinates. The matrix product runs on the device
    of `data`. No random number is drawn. Equal images keep their own noise samples where they can
    and take the others in order. `call` makes each long call and may stop by raising. Raises
    ValueError for sizes that do not fit and for values that are not finite.
    """
    count = len(data)
    total = len(noise)
    if count == 0 or total % count or data.shape[1:] != noise.shape[1:]:
        raise ValueError(
            f"Noise of shape {tuple(noise.shape)} does not fit latents of shape "
            f"{tuple(data.shape)}."
        )
    noise = noise.to(data.device)
    if count == 1:
        check_finite(data, noise)
        return Assignment(torch.arange(total))
    started = time.perf_counter()
    weights = collapse_weights(weights)
    table, rounding = call(partial(_cost_table, Cost(cost), data, noise, weights))
    copies = total // count
    if copies > 1:
        table = np.tile(table, (copies, 1))
    groups = (groups or Groups([""] * count)).tiled(copies)
    table = groups.add_penalty(table)
    firsts = first_equal_rows(data, weights) * copies
    some_equal = len(set(firsts)) < total
    columns = np.arange(total)
    try:
        for block in groups.blocks():
            part = table if len(block) == total else table[np.ix_(block, block)]
            columns[block] = np.asarray(block)[call(partial(_solve, part, some_equal))]
    except (
        ValueError
    ):  # SciPy's: NaN and infinity spread from one number to a row or column of costs
        check_finite(data, noise)
        raise
    gain = table.trace(dtype=np.float64) - table[np.arange(total), columns].sum(dtype=np.float64)
    if gain <= rounding * copies:
        columns = np.arange(total)
    elif some_equal:
        columns = _settle_ties(columns, list(zip(firsts, groups.labels, strict=True)))
    return Assignment(torch.from_numpy(columns), 1000 * (time.perf_counter() - started))


def dot_cost(
    data: torch.Tensor, noise: torch.Tensor, weights: torch.Tensor | None = None
) -> torch.Tensor:
    """Half the squared distance of each pair up to terms that no assignment changes: -<x_i, z_j>,
    doubly centered.

    With weights that differ between images, the noise's part of the distance depends on the pair
    and is kept. (N, P).
    """
    weights = collapse_weights(weights)
    if weights is None:
        return assignment_cost(data, noise)
    cost = assignment_cost(data * weights, noise)
    return cost if len(weights) == 1 else cost + assignment_cost(-0.5 * weights, noise.square())


def half_precision_l2(
    data: torch.Tensor, noise: torch.Tensor, weights: torch.Tensor | None = None
) -> torch.Tensor:
    """The cost of the paper's code: |0.1 x - 0.1 z| in half precision; (N, P).

    The same numbers as the broadcast there, a row at a time: its table of differences takes N * P *
    D * 2 bytes.
    """
    half_data = 0.1 * data.half()
    half_noise = 0.1 * noise.half()
    weights = collapse_weights(weights)
    if weights is None:
        return torch.stack([torch.linalg.vector_norm(row - half_noise, dim=1) for row in half_data])
    roots = weights.sqrt().half().expand_as(half_data)
    pairs = zip(half_data, roots, strict=True)
    return torch.stack(
        [torch.linalg.vector_norm((row - half_noise) * root, dim=1) for row, root in pairs]
    )


def _cost_table(
    cost: Cost, data: torch.Tensor, noise: torch.Tensor, weights: torch.Tensor | None
) -> tuple[np.ndarray, float]:
    """The cost in float32 on the CPU, and the gain of one batch that is no more than rounding."""
    costs = (dot_cost if cost == Cost.DOT_PRODUCT else half_precision_l2)(data, noise, weights)
    table = costs.float().cpu().numpy()
    if cost == Cost.L2_FP16:
        return table, 1e-9 * float(table.diagonal().sum(dtype=np.float64))
    some = data[
        :: -(-len(data) // 4)
    ]  # rows enough for the order of magnitude of what products round
    size = float(torch.linalg.vector_norm(some, dim=1).square().mean().sqrt())
    deviation = float(torch.linalg.vector_norm(noise[0])) / noise.shape[1] ** 0.5
    return table, _ROUNDING * len(data) * size * deviation


def _solve(cost: np.ndarray, some_equal: bool) -> np.ndarray:
    """The column of each row in an assignment of least total cost, by SciPy (a shortest augmenting
    path method).
    """
    from scipy.optimize import linear_sum_assignment

    if not some_equal:
        return linear_sum_assignment(cost)[1]
    # Transposed: an image that stands for many rows makes equal columns then, and equal rows are 20
    # times slower.
    return np.argsort(linear_sum_assignment(np.ascontiguousarray(cost.T, dtype=np.float64))[1])


def _settle_ties(columns: np.ndarray, kinds: list) -> np.ndarray:
    """Distribute the noise samples of rows of one kind: first those that keep their own, then the
    rest in order.
    """
    settled = columns.copy()
    of_kind = defaultdict(list)
    for row, kind in enumerate(kinds):
        of_kind[kind].append(row)
    for members in of_kind.values():
        taken = sorted(columns[members].tolist())
        keep = set(members) & set(taken)
        settled[[row for row in members if row not in keep]] = [
            sample for sample in taken if sample not in keep
        ]
        settled[list(keep)] = list(keep)
    return settled


def pool_turns(size: int, count: int) -> int:
    """How many noise samples each of `count` images owns in a pool of at least `size` of them."""
    return max(1, -(-size // count))


@dataclass(frozen=True)
class Pool:
    """Noise samples assigned once and served batch by batch: `table[turn, image]` is the index of a
    noise sample.

    A batch of four gains little. In a pool of P noise samples each of N images owns P / N of them
    and is served one at a time. Which comes first depends on the order in which they were drawn and
    not on their values, so what is served over all turns is exactly the Gaussian noise that was
    drawn.
    """

    table: torch.Tensor

    @classmethod
    def build(cls, data: torch.Tensor, noise: torch.Tensor, **options: Any) -> Pool:
        """Assign `noise` (P, D) to the images `data` (N, D), P / N to each; `options` as those of
        `assign`.
        """
        return cls(assign(data, noise, **options).permutation.reshape(-1, len(data)))

    def serve(self, turn: int) -> torch.Tensor:
        """The noise samples of all images in this turn; turns wrap around."""
        return self.table[turn % len(self.table)]
