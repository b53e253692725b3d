"""How memorised a prompt still is with a set of neurons silenced: the search of NeMo asks this over and over.

Finding NeMo (arXiv 2406.02366), section 3.2: mem(S) is the largest similarity, over the seeds that look memorised,
between the noise difference of the untouched network and that with S silenced.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from .layers import ValueLayer
from .memorization import Predict, difference, extremes, is_official, pairwise, similarity, spans_of_extremes

SAME_SEED, BETWEEN_SEEDS = "same seed (paper)", "between seeds"
#: Rounding differs with the size of the batch; differences in similarity stay far below this.
CLOSE = 2e-5
CRITERIA = (SAME_SEED, BETWEEN_SEEDS)


@dataclass(frozen=True)
class Neurons:
    """All neurons of the searched layers side by side, so that a set of them is a boolean vector (total,)."""

    layers: tuple[ValueLayer, ...]

    @property
    def total(self) -> int:
        """How many neurons there are."""
        return sum(layer.width for layer in self.layers)

    def offset(self, position: int) -> int:
        """Where the layer at a position begins."""
        return sum(layer.width for layer in self.layers[:position])

    def mask(self, chosen: list[list[int]]) -> torch.Tensor:
        """The boolean vector (total,) of neurons that are given by layer; one named twice counts once."""
        mask = torch.zeros(self.total, dtype=torch.bool)
        for position, indices in enumerate(chosen):
            mask[[self.offset(position) + index for index in indices]] = True
        return mask

    def factors(self, masks: torch.Tensor, factor: float) -> dict[str, torch.Tensor]:
        """Factors (rows, C) by layer path for one mask a row (rows, total); layers without a neuron are left out."""
        parts = masks.split([layer.width for layer in self.layers], dim=1)
        return {
            layer.path: torch.where(part, factor, 1.0)
            for layer, part in zip(self.layers, parts, strict=True)
            if bool(part.any())
        }


class Evaluator:
    """Evaluates mem(S) for one prompt.

    ``criterion``: SAME_SEED is the paper's. BETWEEN_SEEDS takes the detection score of the blocked network instead (the
    largest similarity of two seeds), for models whose error on pure noise makes all prompts alike at the same seed.
    ``rows`` counts the rows of noise that the network was given.
    """

    def __init__(self, predict: Predict, noise: torch.Tensor, neurons: Neurons, factor: float, criterion: str):
        self._predict, self._noise, self.neurons = predict, noise, neurons
        self._factor, self._criterion = factor, criterion
        self.calls = self.rows = 0
        self._known: dict[bytes, float] = {}
        self._open = difference(self._counted(noise, None), noise)
        self._official = is_official(min(noise.shape[-2:]))
        self._extremes = (extremes(self._open),) * 2 if self._official else None
        self._leading: list[int] | None = None

    def exact(self, mask: torch.Tensor, threshold: float = 0.0) -> float:
        """mem(S), all rows in one batch as the official code has them; asked again, the same number again."""
        key = mask.numpy().tobytes()
        if key not in self._known:
            rows = mask.expand(len(self._noise), -1)
            blocked = difference(self._counted(self._noise, rows), self._noise)
            self._known[key] = self._compared(blocked)
        return self._known[key]

    def quick(self, mask: torch.Tensor, threshold: float) -> float:
        """mem(S), or a number below it that is still clearly over the threshold, for which a few rows are enough."""
        if self._leading is None or self.bounds_are_exact or mask.numpy().tobytes() in self._known:
            return self.exact(mask)
        bound = next(self.lower_bounds([mask]))
        return bound if bound > threshold + CLOSE else self.exact(mask)

    def lower_bounds(self, masks: list[torch.Tensor]) -> Iterator[float]:
        """For each set a number that mem(S) is not below, from the rows that were most alike at the last full look.

        As many sets share a batch as have room in that of a full look. The official score's dynamic range then comes
        from these rows and from the last full look at the others.
        """
        rows = self._leading or list(range(len(self._noise)))
        at_once = max(len(self._noise) // len(rows), 1)
        for first in range(0, len(masks), at_once):
            part = masks[first : first + at_once]
            noise = self._noise[rows].repeat(len(part), 1, 1, 1)
            stacked = torch.stack(part).repeat_interleave(len(rows), dim=0)
            blocked = difference(self._counted(noise, stacked), noise).split(len(rows))
            yield from [self._bound(one, rows) for one in blocked]

    @property
    def bounds_are_exact(self) -> bool:
        """Whether all rows lead, so that ``lower_bounds`` leaves nothing to look at."""
        return self._leading is not None and len(self._leading) == len(self._noise)

    def _counted(self, noise: torch.Tensor, masks: torch.Tensor | None) -> torch.Tensor:
        self.calls += 1
        self.rows += len(noise)
        return self._predict(noise, None if masks is None else self.neurons.factors(masks, self._factor)).cpu()

    def _compared(self, blocked: torch.Tensor) -> float:
        """mem(S) of all rows; remembers which rows lead."""
        if self._criterion == BETWEEN_SEEDS:
            pairs = pairwise(blocked).fill_diagonal_(-1)
            self._leading = sorted(divmod(int(pairs.argmax()), len(blocked)))
            return float(pairs.max())
        if self._official:
            self._extremes = (self._extremes[0], extremes(blocked))
        values = similarity(blocked, self._open)
        self._leading = [int(values.argmax())]
        return float(values.max())

    def _bound(self, blocked: torch.Tensor, rows: list[int]) -> float:
        if self._criterion == BETWEEN_SEEDS:
            return float(pairwise(blocked).fill_diagonal_(-1).max())
        return float(similarity(blocked, self._open[rows], self._spans(blocked, rows)).max())

    def _spans(self, blocked: torch.Tensor, rows: list[int]) -> list[float] | None:
        if not self._official:
            return None
        whole, last = self._extremes
        others = [row for row in range(len(last)) if row not in rows]
        return spans_of_extremes(torch.cat([extremes(blocked), last[others]]), whole)
