"""The refinement of NeMo in far fewer network evaluations, with the same decisions.

The greedy rule drops neuron after neuron until one is needed. Three things save work:

- Speculation: the sets left after dropping the next 1, 2, 3, ... neurons are known in advance, as long as each of them
  may go, so they are evaluated in one batch, and the prefix that the rule confirms is accepted.
- mem(S) is a largest similarity, so the seeds that led at the last full look already prove that a neuron is needed.
  That the others agree with what was dropped is looked at once for several neurons; if they do not, those are decided
  again one by one.
- Where a bound is closer to the threshold than rounding can tell, the decision is made again as in exact mode.

What could go unseen is a neuron without which a seed that does not lead passes the threshold, while after some more
decisions no seed does. `python run.py bench neurons` tells whether that happens.
"""

from __future__ import annotations

import torch

from .evaluation import CLOSE, Evaluator
from .localization import Chosen, Keep, dropped

_FIRST_AHEAD, _MOST_AHEAD = 4, 32
#: After how many drops all seeds are looked at.
_UNSEEN = 16

#: What is dropped together: listings of neurons, by position of the layer and index.
Unit = list[tuple[int, int]]


def refine(chosen: Chosen, evaluator: Evaluator, threshold: float, keep: Keep) -> Chosen:
    """As ``localization.refine``, by speculation. ``keep`` gets only what all seeds agree with."""
    left, search = [list(indices) for indices in chosen], _Search(evaluator, threshold, keep)
    layers = reversed(range(len(left)))
    left = search.drop(left, [[(position, index) for index in left[position]] for position in layers if left[position]])
    layers = reversed(range(len(left)))
    return search.drop(left, [[(position, index)] for position in layers for index in left[position]])


class _Search:
    def __init__(self, evaluator: Evaluator, threshold: float, keep: Keep):
        self._evaluator, self._threshold, self._keep = evaluator, threshold, keep
        self._ahead = _FIRST_AHEAD

    def drop(self, left: Chosen, units: list[Unit]) -> Chosen:
        """Drop each unit in turn that may go; all seeds agree with what is left."""
        agreed, undecided, waiting, unseen = left, units, units, 0
        while waiting:
            left, free, waiting = self._run(left, waiting)
            unseen += free
            if unseen >= _UNSEEN or not waiting:
                if unseen and not self._agree(left):
                    left = self._one_by_one(agreed, undecided[: len(undecided) - len(waiting)])
                agreed, undecided, unseen = left, waiting, 0
            self._keep(agreed)
        return agreed

    def _run(self, left: Chosen, waiting: list[Unit]) -> tuple[Chosen, int, list[Unit]]:
        """Drop the next units up to one that is needed; what is left, how many went, and what is to be decided."""
        run = waiting[: 1 if self._evaluator.bounds_are_exact else self._ahead]
        free = self._free(left, run)
        stopped = free < len(run)
        self._ahead = max(free, 1) if stopped else min(2 * self._ahead, _MOST_AHEAD)
        return dropped(left, _joined(run[:free])), free, waiting[free + stopped :]

    def _agree(self, left: Chosen) -> bool:
        """Whether all seeds let pass what the leading ones did."""
        return self._evaluator.bounds_are_exact or self._below(self._mask(left))

    def _one_by_one(self, left: Chosen, units: list[Unit]) -> Chosen:
        """The greedy rule as exact mode has it."""
        for unit in units:
            without = dropped(left, unit)
            if self._below(self._mask(without)):
                left = without
        return left

    def _free(self, left: Chosen, run: list[Unit]) -> int:
        """How many units in a row the leading seeds let pass."""
        masks = [self._mask(dropped(left, _joined(run[: length + 1]))) for length in range(len(run))]
        for length, (bound, mask) in enumerate(zip(self._evaluator.lower_bounds(masks), masks, strict=True)):
            close = abs(bound - self._threshold) < CLOSE
            if (close and not self._below(mask)) or (not close and bound >= self._threshold):
                return length
        return len(run)

    def _mask(self, chosen: Chosen) -> torch.Tensor:
        return self._evaluator.neurons.mask(chosen)

    def _below(self, mask: torch.Tensor) -> bool:
        return self._evaluator.exact(mask) < self._threshold


def _joined(run: list[Unit]) -> Unit:
    return [neuron for unit in run for neuron in unit]
