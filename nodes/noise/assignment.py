"""Linear assignment of noise to pictures: Immiscible Diffusion (arXiv 2406.12303), Algorithm 1.

A permutation leaves the set of noises as it was drawn, so the sum of |z|^2 never changes, and the permutation of least
total squared distance is that of least -<x, z>: one matrix product instead of a table of differences.
"""

from __future__ import annotations

import time
from collections import defaultdict
from dataclasses import dataclass

import numpy as np
import torch

from ...kernels import assignment_cost
from .groups import Groups
from .rows import shared, twins
from .solvers import solve_all

DOT, HALF_L2 = COSTS = ("dot product", "L2 in half precision")
# Gains below this share of the largest possible one are rounding: the batch is constant, and nothing is moved.
_ROUNDING = 1e-5


@dataclass(frozen=True)
class Assignment:
    """Row i takes noise `permutation[i]`; the identity where there is nothing to gain."""

    permutation: torch.Tensor
    solver: str = "none"
    milliseconds: float = 0.0

    @property
    def is_identity(self) -> bool:
        """Whether every row keeps its own noise."""
        return bool((self.permutation == torch.arange(len(self.permutation))).all())


def assign(
    data: torch.Tensor,
    noise: torch.Tensor,
    *,
    cost: str = DOT,
    weights: torch.Tensor | None = None,
    groups: Groups | None = None,
    solver: str = "auto",
) -> Assignment:
    """Exact assignment of `noise` (P, D) to `data` (N, D), each of whose rows takes P / N noises.

    Row r * N + i of the result is the noise of picture i in turn r; for P = N that is a plain permutation. `weights`
    (N, D), 0 to 1, count coordinates in part. The matrix product runs on the device of `data`. No random number is
    drawn. Equal pictures keep their own noises where they can, and the rest goes to them in order. Raises ValueError
    for sizes that do not fit and for values that are not finite.
    """
    count, total = len(data), len(noise)
    if count == 0 or total % count or data.shape[1:] != noise.shape[1:]:
        raise ValueError(f"Noise of shape {tuple(noise.shape)} cannot be shared out to data {tuple(data.shape)}.")
    if count == 1:
        return Assignment(torch.arange(total))
    started = time.perf_counter()
    weights = shared(weights)
    table, rounding = _cost_table(cost, data, noise.to(data.device), weights)
    copies = total // count
    table = np.tile(table, (copies, 1))
    groups = (groups or Groups([""] * count)).repeated(copies)
    table = groups.charged(table)
    columns, name = _solve_blocks(table, groups.blocks(), solver, data.device)
    if _gain(table, columns) <= rounding * copies:
        columns = np.arange(total)
    else:
        kinds = list(zip(twins(data, weights) * copies, groups.labels, strict=True))
        columns = _settle_ties(columns, kinds)
    return Assignment(torch.from_numpy(columns), name, 1000 * (time.perf_counter() - started))


def dot_cost(data: torch.Tensor, noise: torch.Tensor, weights: torch.Tensor | None = None) -> torch.Tensor:
    """Half the squared distance of each pair up to terms that no assignment changes: -<x_i, z_j>, doubly centred.

    With weights of each picture's own the noise's part of the distance depends on the pair and is kept. (N, P).
    """
    weights = shared(weights)
    if weights is None:
        return assignment_cost(data, noise)
    cost = assignment_cost(data * weights, noise)
    return cost if len(weights) == 1 else cost + assignment_cost(-0.5 * weights, noise.square())


def half_precision_l2(data: torch.Tensor, noise: torch.Tensor, weights: torch.Tensor | None = None) -> torch.Tensor:
    """The cost of the paper's code: |0.1 x - 0.1 z| in half precision; (N, P).

    The same numbers as the broadcast there, a row at a time: its table of differences takes N * P * D * 2 bytes.
    """
    half_data, half_noise = 0.1 * data.half(), 0.1 * noise.half()
    weights = shared(weights)
    if weights is None:
        return torch.stack([torch.linalg.vector_norm(row - half_noise, dim=1) for row in half_data])
    roots = weights.sqrt().half().expand_as(half_data)
    pairs = zip(half_data, roots, strict=True)
    return torch.stack([torch.linalg.vector_norm((row - half_noise) * root, dim=1) for row, root in pairs])


def _cost_table(
    cost: str, data: torch.Tensor, noise: torch.Tensor, weights: torch.Tensor | None
) -> tuple[np.ndarray, float]:
    """The cost in float64 on the CPU, and the gain of one batch that is no more than rounding."""
    if cost not in COSTS:
        raise ValueError(f"There is no cost {cost}: choose one of {', '.join(COSTS)}.")
    table = (dot_cost if cost == DOT else half_precision_l2)(data, noise, weights)
    table = table.double().cpu().numpy()
    if not np.isfinite(table).all():
        raise ValueError("The latents or the noise hold NaN or infinity: look at the nodes before this one.")
    if cost == HALF_L2:
        return table, 1e-9 * float(table.diagonal().sum())
    norms = float(torch.linalg.vector_norm(data)) / len(data) ** 0.5, float(torch.linalg.vector_norm(noise))
    return table, _ROUNDING * len(data) * norms[0] * norms[1] / noise.numel() ** 0.5


def _solve_blocks(
    table: np.ndarray, blocks: list[list[int]], solver: str, device: torch.device
) -> tuple[np.ndarray, str]:
    columns = np.arange(len(table))
    blocks = [block for block in blocks if len(block) > 1]
    if not blocks:
        return columns, "none"
    solved, name = solve_all([table[np.ix_(block, block)] for block in blocks], solver, device)
    for block, inside in zip(blocks, solved, strict=True):
        columns[block] = np.asarray(block)[inside]
    return columns, name


def _gain(table: np.ndarray, columns: np.ndarray) -> float:
    return float(np.trace(table) - table[np.arange(len(table)), columns].sum())


def _settle_ties(columns: np.ndarray, kinds: list) -> np.ndarray:
    """Share out the noises of rows of one kind: first those that keep their own, then the rest in order."""
    settled = columns.copy()
    of_kind = defaultdict(list)
    for row, kind in enumerate(kinds):
        of_kind[kind].append(row)
    for members in of_kind.values():
        noises = sorted(columns[members].tolist())
        keep = set(members) & set(noises)
        settled[[row for row in members if row not in keep]] = [noise for noise in noises if noise not in keep]
        settled[list(keep)] = list(keep)
    return settled
