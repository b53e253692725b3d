"""Ways to edit that are chosen on half of the people and judged on the other half."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

REACHED, KEPT = 0, 1


def choose(rows: dict[str, np.ndarray], rival: str, candidates: Sequence[str]) -> str:
    """The candidate that reaches most of those that keep at least what the rival keeps, by means of
    rows (n, 2: reached, kept); where none does, the one that keeps most.
    """
    means = {name: rows[name].mean(axis=0) for name in (rival, *candidates)}
    allowed = [name for name in candidates if means[name][KEPT] >= means[rival][KEPT]]
    if not allowed:
        return max(candidates, key=lambda name: means[name][KEPT])
    return max(allowed, key=lambda name: means[name][REACHED])


def judged_on_others(
    rows: dict[str, np.ndarray], rival: str, candidates: Sequence[str]
) -> tuple[np.ndarray, list[str]]:
    """Reached and kept less the rival's (n, 2), each unit by the candidate that the units of the
    other parity chose, and the candidates that were judged on the even and on the odd units.
    """
    differences = np.empty_like(rows[rival], dtype=float)
    names = []
    for parity in (0, 1):
        others = {name: values[1 - parity :: 2] for name, values in rows.items()}
        name = choose(others, rival, candidates)
        differences[parity::2] = rows[name][parity::2] - rows[rival][parity::2]
        names.append(name)
    return differences, names
