"""Localize the neurons of a memorized prompt: NeMo's initial selection and refinement.

Finding NeMo (arXiv 2406.02366), sections 3.2 and 3.3, algorithms 2 to 4, and the official code
where it differs: neurons are outliers by |z| (two-sided), and the last selection has theta 1.25 and
k 15. mem(S) is the largest similarity, over the memorized seeds, between the noise difference of
the untouched network and that with the neurons S silenced.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Protocol

import torch

from .memorization_score import (
    PAPER_THRESHOLD,
    Predict,
    noise_difference,
    pairwise_similarity,
    similarity,
)
from .neuron_layers import NeuronLayer

#: Narrower layers get proportionally fewer neurons from the top-k (the narrowest layer of SD1.x).
FULL_WIDTH = 320
_MAX_K = 1280
#: Similarity that rounding may change in a row without its neighbors (half precision: up to about
#: .001), until so many comparisons have shown it; then so many times the most that they showed, but
#: at least the last of these.
_MARGIN = 1e-3
_COMPARISONS = 4
_TIMES = 4
_LEAST_MARGIN = 1e-6
#: Weight of the newest set in the running fraction of sets that a single seed rejects.
_RATE = 0.1

#: The chosen neurons of each layer, in the order in which the refinement visits them; one may be
#: listed twice.
Chosen = list[list[int]]
#: Fractions of a search that the selection takes, and of a refinement that whole layers take: for a
#: progress bar.
_SELECTION = 0.3
_LAYERS = 0.1


class Criterion(enum.StrEnum):
    """What must fall for a prompt to count as blocked."""

    SAME_SEED = "same_seed"  # the paper's
    BETWEEN_SEEDS = "between_seeds"  # the memorization score itself


@dataclass(frozen=True)
class Neurons:
    """All neurons of the searched layers side by side, so that a set of them is a boolean vector
    (total,).
    """

    layers: tuple[NeuronLayer, ...]

    def mask(self, chosen: list[list[int]]) -> torch.Tensor:
        """The boolean vector (total,) of neurons given by layer; one that is listed twice counts
        once.
        """
        parts = []
        for layer, indices in zip(self.layers, chosen, strict=True):
            part = torch.zeros(layer.width, dtype=torch.bool)
            part[indices] = True
            parts.append(part)
        return torch.cat(parts)

    def factors(self, masks: torch.Tensor) -> dict[str, torch.Tensor]:
        """Factors (rows, C) by layer path, 0 for silenced neurons, for one mask per row (rows,
        total).

        Layers without a silenced neuron are left out.
        """
        parts = masks.split([layer.width for layer in self.layers], dim=1)
        return {
            layer.path: torch.where(part, 0.0, 1.0)
            for layer, part in zip(self.layers, parts, strict=True)
            if bool(part.any())
        }


class SetScores(Protocol):
    """Scores a set (total,) of silenced neurons: small where little is left of what they carry."""

    neurons: Neurons

    def score(self, mask: torch.Tensor) -> float: ...


class Evaluator:
    """Evaluates mem(S) for one prompt over ``noise`` (seeds, C, H, W).

    BETWEEN_SEEDS replaces mem(S) by the detection score of the masked network (the largest
    similarity of two seeds), for models whose error on pure noise makes all prompts similar at the
    same seed. ``rows`` counts the rows of noise that the network evaluated.
    """

    def __init__(
        self,
        predict: Predict,
        noise: torch.Tensor,
        neurons: Neurons,
        criterion: Criterion = Criterion.SAME_SEED,
    ):
        self._predict = predict
        self._noise = noise
        self.neurons = neurons
        self._criterion = criterion
        self.calls = self.rows = 0
        self._known: dict[bytes, float] = {}
        self._at_least: dict[bytes, float] = {}  # lower bounds of what was rejected early
        self._witness: tuple[
            int, ...
        ] = ()  # the seed, or pair of seeds, with the last evaluation's largest similarity
        self._margin = _MARGIN
        self._compared = 0
        self._rounding = 0.0
        # running fraction of the sets that the witness alone rejects; few seeds wait for more
        self._rejecting = 0.25
        self._untouched = self._differences(noise, None)

    def score(self, mask: torch.Tensor) -> float:
        """mem(S), all rows in one comparison as in the official code; kept, so that a repeated set
        costs nothing.
        """
        key = mask.numpy().tobytes()
        if key not in self._known:
            self._known[key] = float(self._evaluate(mask).max())
        return self._known[key]

    def score_below(self, mask: torch.Tensor, threshold: float) -> float | None:
        """mem(S) where it is below the threshold, else None: the decision that ``score`` gives,
        often with fewer rows.

        mem(S) is the largest of many similarities, so a single one over the threshold rejects S.
        The seed (or pair) that had the largest one last is tried alone where that saves rows; what
        it does not reject is evaluated with all rows. The dynamic range of a few rows is at most
        that of all, and similarity grows with it, so that theirs is a lower bound but for rounding,
        which differs with the number of rows and is measured.
        """
        key = mask.numpy().tobytes()
        witness = self._witness
        if self._at_least.get(key, 0.0) >= threshold:
            return None
        if key not in self._known and witness:
            alone = None
            if self._rejecting * len(self._noise) > len(witness):
                alone = float(self._similarities(mask, list(witness)).max())
                if alone - self._margin >= threshold:
                    self._at_least[key] = alone - self._margin
                    self._rejecting += _RATE * (1 - self._rejecting)
                    return None
            values = self._evaluate(mask)
            self._known[key] = float(values.max())
            if alone is not None:
                self._compare(abs(alone - float(values[witness])))
            margin = 0.0 if self._compared < _COMPARISONS else self._margin
            self._rejecting += _RATE * (
                float(values[witness] - margin >= threshold) - self._rejecting
            )
        score = self.score(mask)
        return score if score < threshold else None

    def _compare(self, difference: float) -> None:
        """Note by how much a row alone differed from itself among all."""
        self._compared = self._compared + 1
        self._rounding = max(self._rounding, difference)
        if self._compared >= _COMPARISONS:
            self._margin = min(max(_TIMES * self._rounding, _LEAST_MARGIN), _MARGIN)

    def _evaluate(self, mask: torch.Tensor) -> torch.Tensor:
        """The similarities of all rows; the largest one is the next witness."""
        values = self._similarities(mask, list(range(len(self._noise))))
        self._witness = tuple(
            int(index) for index in torch.unravel_index(values.argmax(), values.shape)
        )
        return values

    def _similarities(self, mask: torch.Tensor, rows: list[int]) -> torch.Tensor:
        """Of each masked row to the untouched one, (rows,), or of all pairs, (rows, rows) with -1
        on the diagonal.
        """
        masked = self._differences(
            self._noise[rows], self.neurons.factors(mask.expand(len(rows), -1))
        )
        if self._criterion == Criterion.BETWEEN_SEEDS:
            return pairwise_similarity(masked).fill_diagonal_(-1.0)
        return similarity(masked, self._untouched[rows])

    def _differences(
        self, noise: torch.Tensor, factors: dict[str, torch.Tensor] | None
    ) -> torch.Tensor:
        self.calls += 1
        self.rows += len(noise)
        return noise_difference(self._predict(noise, factors).cpu(), noise)


@dataclass(frozen=True, kw_only=True)
class SearchSettings:
    """The official hyperparameters, with the official defaults.

    ``threshold``: the seeds over it are searched; ``target_score``: where a prompt counts as
    blocked, in the paper the threshold.
    """

    threshold: float = PAPER_THRESHOLD
    target_score: float = PAPER_THRESHOLD
    criterion: Criterion = Criterion.SAME_SEED
    theta_start: float = 5.0
    theta_end: float = 1.0
    theta_step: float = 0.25
    k_start: int = 0


@dataclass(frozen=True, kw_only=True)
class SelectionStep:
    """One step of the selection: its theta and k, how many neurons that chose, and the score with
    them silenced.

    ``theta``: None where the neurons are the first of a ranking.
    """

    theta: float | None
    k: int
    listed: int
    neurons: int
    score: float

    @property
    def rule(self) -> str:
        """What chose the neurons."""
        return "first of the ranking" if self.theta is None else f"theta {self.theta:g}, k {self.k}"


@dataclass(kw_only=True)
class SearchResult:
    """The result of a search, complete where ``finished``; before that the best so far.

    ``converged``: the selection reached the target; otherwise it has stalled. ``initial`` and
    ``refined`` are the chosen neurons by layer, empty until the selection ends; ``progress`` is the
    fraction done, 0 to 1.
    """

    initial: Chosen = field(default_factory=list)
    refined: Chosen = field(default_factory=list)
    initial_score: float = 1.0
    score: float = 1.0
    converged: bool = False
    trace: list[SelectionStep] = field(default_factory=list)
    finished: bool = False
    progress: float = 0.0


def select(z: list[torch.Tensor], activations: list[torch.Tensor], theta: float, k: int) -> Chosen:
    """In each layer the neurons with |z| over theta, ascending, then the k most active ones
    (algorithm 2).

    ``z`` and ``activations``: (C,) per layer. A neuron that is both is listed twice, as in the
    official code. In a layer narrower than 320 k shrinks in proportion (rounded up), so that a
    small model's layers are not chosen whole.
    """
    chosen = []
    for deviation, activation in zip(z, activations, strict=True):
        outliers = (deviation.abs() > theta).nonzero().flatten().tolist()
        width = len(activation)
        count = min(math.ceil(k * min(width / FULL_WIDTH, 1.0)), width)
        chosen.append(outliers + activation.topk(count).indices.tolist())
    return chosen


def selection_schedule(settings: SearchSettings) -> Iterator[tuple[float, int]]:
    """Theta and k of each step of the selection (algorithm 3)."""
    theta = settings.theta_start
    k = settings.k_start
    while True:
        yield theta, k
        theta = max(theta - settings.theta_step, settings.theta_end)
        k = k + 1
        if theta <= settings.theta_end or k >= _MAX_K:
            return


def search(
    z: list[torch.Tensor],
    activations: list[torch.Tensor],
    evaluator: Evaluator,
    settings: SearchSettings,
) -> Iterator[SearchResult]:
    """The whole procedure for one prompt; yields the same result object after every evaluation, and
    once finished.

    Selection: loosen theta and k until silencing the chosen neurons brings mem(S) to the target
    (algorithm 3). Where it never does, the search has stalled and the refinement goes on against
    the score it stalled at, as in the official code. Refinement: from the last layer to the first,
    drop every whole layer and then every neuron without which mem(S) stays below the threshold
    (algorithm 4).
    """
    result = SearchResult()
    neurons = evaluator.neurons
    schedule = list(selection_schedule(settings))
    for number, (theta, k) in enumerate(schedule, 1):
        chosen = select(z, activations, theta, k)
        mask = neurons.mask(chosen)
        score = evaluator.score(mask)
        result.trace.append(
            SelectionStep(
                theta=theta, k=k, listed=sum(map(len, chosen)), neurons=int(mask.sum()), score=score
            )
        )
        result.converged = score <= settings.target_score
        result.progress = _SELECTION * number / len(schedule)
        if result.converged:
            break
        yield result
    result.initial = result.refined = chosen
    result.initial_score = result.score = score
    threshold = settings.target_score if result.converged else result.initial_score
    yield result

    layers = [(at, of_layer) for at, of_layer in reversed([*enumerate(chosen)]) if of_layer]
    yield from _refine(
        result, layers, evaluator=evaluator, threshold=threshold, progress=(0.0, _LAYERS)
    )
    single = [
        (at, [index])
        for at, of_layer in reversed([*enumerate(result.refined)])
        for index in of_layer
    ]
    yield from _refine(
        result, single, evaluator=evaluator, threshold=threshold, progress=(_LAYERS, 1.0)
    )
    result.finished = True
    result.progress = 1.0
    yield result


def _refine(
    result: SearchResult,
    units: list[tuple[int, list[int]]],
    evaluator: Evaluator,
    threshold: float,
    progress: tuple[float, float],
) -> Iterator[SearchResult]:
    """Drop each unit (position of the layer, neurons) without which mem(S) stays below the
    threshold.

    ``progress``: the fractions of the refinement done at the beginning and at the end.
    """
    first, last = progress
    for number, (at, indices) in enumerate(units, 1):
        kept = list(result.refined[at])
        for index in indices:
            kept.remove(index)  # the first listing
        without = [*result.refined[:at], kept, *result.refined[at + 1 :]]
        score = evaluator.score_below(evaluator.neurons.mask(without), threshold)
        if score is not None:
            result.refined = without
            result.score = score
        result.progress = _SELECTION + (1 - _SELECTION) * (
            first + (last - first) * number / len(units)
        )
        yield result
