"""Which members of a space are near copies, such as checkpoints of one training: for statistics
they are one member.

Two members belong together when their changes point the same way, both as they are (raw cosine) and
seen from the mean (centered cosine): people of one training setup have much in common as they are,
and strangers of little strength look alike from the mean. Names that differ by a step or epoch
alone need less.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import torch

_ALIKE = 0.8
_ALIKE_BY_NAME = 0.3
_FEW = 8  # members; with fewer, centering makes any two of them opposite
_ROWS = 1024
# kohya's `-000010` and `-step00000500`, AI Toolkit's `_000000500`, ComfyUI's `_200_steps_00001_`,
# `-epoch5`, `_s2100`
_STEP = re.compile(
    r"[-_ .](?:\d+[-_]steps?(?:_\d+_?)?|(?:checkpoint|steps?|epochs?|ep|e|s)[-_ ]?\d+|\d{6,})$",
    re.IGNORECASE,
)


def find_groups(
    members: Sequence[str], gram: np.ndarray, along: np.ndarray | None = None, square: float = 0.0
) -> list[list[str]]:
    """The groups of two or more members, in order.

    ``gram`` (n, n): products of the centered members, its upper half alone; ``along`` (n,) and
    ``square``: their products with the mean and its square, for raw cosines.
    """
    count = len(members)
    diagonal = gram.diagonal()
    lengths = np.sqrt(np.maximum(diagonal, 1e-300))
    raw_lengths = (
        lengths if along is None else np.sqrt(np.maximum(diagonal + 2 * along + square, 1e-300))
    )
    names = np.unique([_without_step(name) for name in members], return_inverse=True)[1]
    parent = list(range(count))

    def root(row: int) -> int:
        while parent[row] != row:
            parent[row] = row = parent[parent[row]]
        return row

    for first in range(0, count, _ROWS):
        rows = slice(first, min(first + _ROWS, count))
        products = np.triu(gram[rows, first:], 1)
        cosines = products / lengths[rows, None] / lengths[first:]
        if along is not None:
            raw = (
                (products + along[rows, None] + along[first:] + square)
                / raw_lengths[rows, None]
                / raw_lengths[first:]
            )
            cosines = np.minimum(raw, cosines) if count >= _FEW else raw
        needed = np.where(names[rows, None] == names[first:], _ALIKE_BY_NAME, _ALIKE)
        upper = np.triu(np.ones(cosines.shape, bool), 1)
        for row, column in zip(*np.nonzero((cosines > needed) & upper), strict=True):
            parent[root(first + int(column))] = root(first + int(row))
    together: dict[int, list[str]] = {}
    for row, name in enumerate(members):
        together.setdefault(root(row), []).append(name)
    return [group for group in together.values() if len(group) > 1]


def group_means(
    rows: torch.Tensor, members: Sequence[str], groups: Sequence[Sequence[str]]
) -> torch.Tensor:
    """Rows (n, ...) of members with those of each group in one row, their mean; NaN counts for
    nothing.
    """
    owner = {name: number for number, group in enumerate(groups) for name in group}
    numbers: dict[object, list[int]] = {}
    for row, name in enumerate(members):
        numbers.setdefault(owner.get(name, name), []).append(row)
    return torch.stack([rows[own].nanmean(dim=0) for own in numbers.values()])


def _without_step(name: str) -> str:
    """A name without its step or epoch; kohya's last file has none."""
    return _STEP.sub("", name)
