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
#: Rounding differs with the size of the batch; in float32 similarities then differ by far less than this.
CLOSE = 5e-6
#: How many sets are evaluated ahead at first.
_FEW = 4
#: Places of the latents that share a batch at most: ten rows of 64 x 64, the official batch.
_POSITIONS = 10 * 64 * 64
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
    ``rows`` counts the rows of noise that the network was given. A ``predict`` that can begin at a layer (with the
    methods ``remember`` and ``beginning_at`` of ``host.first_step.FirstStep``) does so in ``lower_bounds``.
    """

    def __init__(self, predict: Predict, noise: torch.Tensor, neurons: Neurons, factor: float, criterion: str):
        self._predict, self._noise, self.neurons = predict, noise, neurons
        self._base = torch.zeros(neurons.total, dtype=torch.bool)
        self._remembered: list[int] | None = None
        self._at_once = max(len(noise), _POSITIONS // noise[0, 0].numel())
        self._factor, self._criterion = factor, criterion
        self.calls = self.rows = 0
        self._known: dict[bytes, torch.Tensor] = {}
        self._open = difference(self._counted(noise, None), noise)
        self._official = is_official(min(noise.shape[-2:]))
        self._extremes = (extremes(self._open),) * 2 if self._official else None
        self._leading: list[int] | None = None

    def exact(self, mask: torch.Tensor) -> float:
        """mem(S), all rows in one batch as the official code has them; asked again, the same number again."""
        return float(self.by_seed(mask).max())

    def by_seed(self, mask: torch.Tensor) -> torch.Tensor:
        """The similarities (seeds,) of which mem(S) is the largest; between seeds, each one's with the most alike."""
        key = mask.numpy().tobytes()
        if key not in self._known:
            rows = mask.expand(len(self._noise), -1)
            blocked = difference(self._counted(self._noise, rows), self._noise)
            self._known[key] = self._compared(blocked)
        return self._known[key]

    def quick(self, masks: list[torch.Tensor], threshold: float) -> Iterator[float]:
        """For each set mem(S), or a number below it that is still clearly over the threshold; evaluated a few ahead."""
        if masks:
            yield self.exact(masks[0])
        waiting, ahead = masks[1:], _FEW
        while waiting:
            part, waiting = waiting[:ahead], waiting[ahead:]
            for mask, bound in zip(part, self.lower_bounds(part), strict=True):
                clear = self.bounds_are_exact or bound > threshold + CLOSE
                yield bound if clear else self.exact(mask)
            ahead *= 2

    def begin_with(self, mask: torch.Tensor) -> None:
        """Sets to come differ from this one in late layers: what earlier layers do is then computed once."""
        self._base, self._remembered = mask, None

    def lower_bounds(self, masks: list[torch.Tensor]) -> Iterator[float]:
        """For each set a number that mem(S) is not below, from the rows that were most alike at the last full look.

        Many sets share a batch. The official score's dynamic range comes from these rows and from the last full look at
        the others.
        """
        rows = self.leading
        at_once = max(self._at_once // len(rows), 1)
        for first in range(0, len(masks), at_once):
            part = torch.stack(masks[first : first + at_once])
            blocked = self._of_rows(rows, part)
            noise = self._noise[rows].repeat(len(part), 1, 1, 1)
            yield from [self._bound(one, rows) for one in difference(blocked, noise).split(len(rows))]

    def _of_rows(self, rows: list[int], masks: torch.Tensor) -> torch.Tensor:
        """Predictions for each set and row, beginning at the first layer in which a set differs from the base."""
        stacked, count = masks.repeat_interleave(len(rows), dim=0), len(masks)
        differs = (masks != self._base).any(0).split([layer.width for layer in self.neurons.layers])
        first = next((layer.path for layer, part in zip(self.neurons.layers, differs, strict=True) if part.any()), None)
        if first is None or not hasattr(self._predict, "beginning_at"):
            return self._counted(self._noise[rows].repeat(count, 1, 1, 1), stacked)
        if self._remembered != rows:
            base = self.neurons.factors(self._base.expand(len(rows), -1), self._factor)
            self._predict.remember(self._noise[rows], base, [layer.path for layer in self.neurons.layers])
            self._remembered = rows
            self._count(len(rows))
        self._count(len(stacked))
        factors = self.neurons.factors(stacked, self._factor)
        return self._predict.beginning_at(first, list(range(len(rows))) * count, factors).cpu()

    @property
    def leading(self) -> list[int]:
        """The rows of ``lower_bounds``."""
        return self._leading or list(range(len(self._noise)))

    def lead(self, rows: list[int]) -> None:
        """Take these rows for ``lower_bounds``."""
        self._leading = sorted(set(rows))

    @property
    def bounds_are_exact(self) -> bool:
        """Whether all rows lead, so that ``lower_bounds`` leaves nothing to look at."""
        return len(self.leading) == len(self._noise)

    def _count(self, rows: int) -> None:
        self.calls += 1
        self.rows += rows

    def _counted(self, noise: torch.Tensor, masks: torch.Tensor | None) -> torch.Tensor:
        self._count(len(noise))
        return self._predict(noise, None if masks is None else self.neurons.factors(masks, self._factor)).cpu()

    def _compared(self, blocked: torch.Tensor) -> torch.Tensor:
        """Of all rows the similarities of ``by_seed``; remembers which rows lead."""
        if self._criterion == BETWEEN_SEEDS:
            pairs = pairwise(blocked).fill_diagonal_(-1)
            self._leading = sorted(divmod(int(pairs.argmax()), len(blocked)))
            return pairs.amax(1)
        if self._official:
            self._extremes = (self._extremes[0], extremes(blocked))
        values = similarity(blocked, self._open)
        self._leading = [int(values.argmax())]
        return values

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
