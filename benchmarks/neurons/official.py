"""The official code's schedule of calls, transcribed: the rival of NeMo Localize.

Every evaluation predicts twice for every seed, at 981 and at 961 on the same noise, and uses the
second (the first is discarded); every step of the selection runs the network once more to read
activations that depend on the text alone.
"""

from __future__ import annotations

import torch


class Schedule:
    """Evaluates mem(S) as the official code calls the network; counts rows. The interface of
    ``Evaluator``.
    """

    def __init__(self, predict, noise: torch.Tensor, kept: list[int], neurons, method):
        self._predict, self._noise, self._kept = predict, noise, kept
        self.neurons, self._method, self.rows = neurons, method, 0
        self._scored: dict[bytes, float] = {}
        self._untouched = self._differences(None)

    def _differences(self, mask: torch.Tensor | None) -> torch.Tensor:
        factors = None if mask is None else self.neurons.factors(mask.expand(len(self._noise), -1))
        for _ in range(2):
            predicted = self._predict(self._noise, factors)
            self.rows += len(self._noise)
        return self._method.noise_difference(predicted.cpu(), self._noise)[self._kept]

    def score(self, mask: torch.Tensor) -> float:
        """mem(S) over the kept seeds."""
        key = mask.numpy().tobytes()
        if key not in self._scored:
            self._scored[key] = float(
                self._method.similarity(self._differences(mask), self._untouched).max()
            )
        return self._scored[key]

    def score_below(self, mask: torch.Tensor, threshold: float) -> float | None:
        """mem(S) where it is below the threshold, else None."""
        score = self.score(mask)
        return score if score < threshold else None

    def read_activations(self) -> None:
        """The extra pass of every step of the selection."""
        self._predict(self._noise[:1])
        self.rows += 1


def search(z, activations, schedule: Schedule, nemo_search, target_score: float) -> list[list[int]]:
    """Selection and refinement by the official rules; the refined neurons."""
    *_, result = nemo_search.search(
        z, activations, schedule, nemo_search.SearchSettings(target_score=target_score)
    )
    for _ in result.trace:
        schedule.read_activations()
    return result.refined
