"""The official code's schedule of calls, transcribed: what exact and fast mode are compared with.

Every evaluation predicts twice for every seed, at 981 and at 961 on the same noise, and uses the second (the first is
thrown away); every step of the selection runs the network once more to read activations that the text alone gives.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch


class Schedule:
    """Evaluates mem(S) as the official code calls the network; counts rows."""

    def __init__(self, predict, noise: torch.Tensor, kept: list[int], neurons, method):
        self._predict, self._noise, self._kept = predict, noise, kept
        self._neurons, self._method, self.rows = neurons, method, 0
        self._open = self._difference(None)

    def _difference(self, mask: torch.Tensor | None) -> torch.Tensor:
        factors = None
        if mask is not None:
            factors = self._neurons.factors(mask.expand(len(self._noise), -1), 0.0)
        for _ in range(2):
            predicted = self._predict(self._noise, factors)
            self.rows += len(self._noise)
        return self._method.difference(predicted.cpu(), self._noise)[self._kept]

    def memorized(self, mask: torch.Tensor) -> float:
        """mem(S) over the kept seeds."""
        return float(self._method.similarity(self._difference(mask), self._open).max())

    def selection_step(self) -> None:
        """The pass that reads the activations."""
        self._predict(self._noise[:1])
        self.rows += 1


def search(z, activations, schedule: Schedule, neurons, localization, threshold: float) -> list[list[int]]:
    """Selection and refinement by the official rules; the refined neurons."""

    def memorized(masks: list[torch.Tensor]) -> Iterator[float]:
        for mask in masks:
            schedule.selection_step()
            yield schedule.memorized(mask)

    settings = localization.Settings(threshold)
    chosen, trace, converged = localization.initial_selection(z, activations, memorized, neurons, settings)
    reference = threshold if converged else trace[-1].score
    left = localization.drop_layers(chosen, schedule.memorized, neurons, reference, lambda *_: None)
    for position in reversed(range(len(left))):
        for index in list(left[position]):
            without = localization.dropped(left, [(position, index)])
            if schedule.memorized(neurons.mask(without)) < reference:
                left = without
    return left
