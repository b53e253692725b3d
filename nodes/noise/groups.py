"""Conditions in assignment: pictures of one group share a caption, a class or whatever conditions the model on them.

Assignment across conditions skews p(noise | condition) while sampling draws noise from N(0, I); C2OT (arXiv
2503.10636) adds a penalty for pairs of different conditions to the cost, or forbids such pairs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

GROUPINGS = ("ignore", "within groups", "penalty")


@dataclass(frozen=True)
class Groups:
    """The label of each picture, which is also that of the noise drawn for it.

    Without a `penalty` no noise leaves its group. With one, a pair of different groups costs that much more, in
    standard deviations of the centred cost.
    """

    labels: Sequence[str]
    penalty: float | None = None

    def repeated(self, copies: int) -> Groups:
        """The groups of a batch that is laid out `copies` times, one after another."""
        return Groups(list(self.labels) * copies, self.penalty)

    def charged(self, cost: np.ndarray) -> np.ndarray:
        """The cost with the penalty on pairs of different groups."""
        if self.penalty is None:
            return cost
        numbers = np.unique(np.asarray(self.labels), return_inverse=True)[1]
        return cost + self.penalty * cost.std() * (numbers[:, None] != numbers[None, :])

    def blocks(self) -> list[list[int]]:
        """The pictures among which noise may move."""
        if self.penalty is not None:
            return [list(range(len(self.labels)))]
        return [[i for i, label in enumerate(self.labels) if label == name] for name in dict.fromkeys(self.labels)]


def parse(text: str, count: int) -> list[str]:
    """Labels from a text of one line a picture; raises ValueError when there are not `count` of them."""
    labels = [line.strip() for line in text.strip().splitlines()]
    if len(labels) != count:
        raise ValueError(
            f"The batch holds {count} pictures and the labels have {len(labels)} lines: "
            "write one line a picture, the same line for pictures of the same group, or set grouping to ignore."
        )
    return labels


def make(grouping: str, text: str, penalty: float, count: int) -> Groups | None:
    """The groups of a batch of `count` pictures as a node's widgets describe them; None when they are ignored."""
    if grouping not in GROUPINGS:
        raise ValueError(f"There is no grouping {grouping}: choose one of {', '.join(GROUPINGS)}.")
    if grouping == "ignore":
        return None
    return Groups(parse(text, count), penalty if grouping == "penalty" else None)
