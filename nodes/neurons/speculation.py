"""The refinement of NeMo in far fewer network evaluations, with the same decisions.

The greedy rule drops neuron after neuron until one is needed. Three things save work:

- Speculation: the sets left after dropping the next 1, 2, 3, ... neurons are known in advance, as long as each of them
  may go, so they are evaluated in one batch, and the prefix that the rule confirms is accepted.
- mem(S) is a largest similarity, so the rows that led at the last full look already prove that a neuron is needed. Only
  what they do not prove is looked at whole, once for an accepted run of neurons.
- Where a bound is closer to the threshold than rounding can tell, the decision is made again as in exact mode.

What could go unseen is a neuron without which a row that does not lead passes the threshold, while with later neurons
gone as well no row does. Whether that happens is measured: see the study and the benchmark.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from .evaluation import CLOSE, Evaluator
from .localization import Chosen, Keep, drop_layers, dropped

_FIRST_AHEAD, _MOST_AHEAD = 4, 32


def refine(chosen: Chosen, evaluator: Evaluator, threshold: float, keep: Keep) -> Chosen:
    """As ``localization.refine``, by speculation."""
    left = drop_layers(chosen, evaluator.quick, evaluator.neurons, threshold, keep)
    waiting = [(position, index) for position in reversed(range(len(left))) for index in left[position]]
    ahead = 1 if evaluator.bounds_are_exact else _FIRST_AHEAD
    while waiting:
        run = waiting[:ahead]
        masks = [evaluator.neurons.mask(dropped(left, run[: length + 1])) for length in range(len(run))]
        free = _free(masks, evaluator, threshold)
        left = dropped(left, run[:free])
        stopped = free < len(run)
        waiting = waiting[free + stopped :]  # the neuron that stopped the run is needed
        ahead = 1 if evaluator.bounds_are_exact else max(free, 1) if stopped else min(2 * ahead, _MOST_AHEAD)
        keep(left)
    return left


def _free(masks: list[torch.Tensor], evaluator: Evaluator, threshold: float) -> int:
    """How many neurons the greedy rule drops before it meets one that is needed; masks[i] lacks the first i + 1."""

    def below(mask: torch.Tensor) -> bool:
        return evaluator.exact(mask) < threshold

    free = _led(evaluator.lower_bounds(masks), masks, below, threshold)
    if free and not evaluator.bounds_are_exact and not below(masks[free - 1]):
        return next(length for length, mask in enumerate(masks[:free]) if not below(mask))
    return free


def _led(bounds: Iterator[float], masks: list[torch.Tensor], below, threshold: float) -> int:
    """How many sets in a row the leading seeds let pass."""
    for length, (bound, mask) in enumerate(zip(bounds, masks, strict=True)):
        close = abs(bound - threshold) < CLOSE
        if (close and not below(mask)) or (not close and bound >= threshold):
            return length
    return len(masks)
