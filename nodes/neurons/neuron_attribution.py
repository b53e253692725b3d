"""Rank the neurons of a memorized prompt by a gradient, and shorten the ranking to the neurons that
are needed.

The search of Finding NeMo (arXiv 2406.02366) silences sets of neurons, hundreds of times a prompt.
Here g are factors of all neurons, 1 in the untouched network. A neuron's attribution is the
gradient of what makes a prompt memorized to its factor, averaged over a path on which all factors
go together from 0 to 1 (integrated gradients, arXiv 1703.01365):

dot    mean of d_i . d_j over the pairs of seeds, d_j = eps_g(x_j) - x_j in pure noise x_j at the
first step: a form of
       the memorization score that has a gradient.
multi  mean over t of <eps_g(x_t, prompt) - eps(x_t, anchor), u_t> / |u_t|^2, u_t = eps(x_t, prompt)
- eps(x_t, anchor):
       how far the prompt's prediction still is from that of a generic prompt, the anchor, along a
       sampling run.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, cast

import torch

from .nemo_search import Chosen, Evaluator, Neurons, SearchResult, SelectionStep, SetScores

#: Timesteps of ``multi``, from nearly pure noise to where the image is laid out.
TIMESTEPS = (961, 800, 640, 480)

#: What a network is evaluated on: a noised latent (1, C, H, W), its timestep, and the row of a
#: conditioning.
NetworkInput = tuple[torch.Tensor, int, int]


class Predictor(Protocol):
    """Noise predictions of a network, float32, with gradients to factors of its neurons."""

    device: torch.device

    def predicted(
        self,
        x: torch.Tensor,
        timesteps: Sequence[int],
        rows: Sequence[int],
        factors: dict[str, torch.Tensor] | None = None,
    ) -> torch.Tensor:
        """The noise (B, C, H, W) in latents of these timesteps with these conditionings, on the
        device; ``factors`` by layer path.
        """
        ...

    def batches(self, inputs: Sequence[NetworkInput], *, gradients: bool) -> list[list[int]]:
        """Which inputs are evaluated together: their indices, each once, as many as memory
        takes.
        """
        ...


class Method(enum.StrEnum):
    """How the neurons of a prompt are found."""

    SEARCH = "search"  # the paper's
    ATTRIBUTION = "attribution"


class Ranking(enum.StrEnum):
    """What neurons are ranked by; ``_z`` multiplies it by |z|, which needs statistics."""

    MULTI = "multi"
    MULTI_Z = "multi_z"
    DOT = "dot"
    DOT_Z = "dot_z"

    @property
    def needs_z(self) -> bool:
        """Whether statistics take part."""
        return self.endswith("_z")


class StoppingRule(enum.StrEnum):
    """Which neurons of the ranking are taken."""

    GAP = "gap"  # those before the largest relative drop of the ranking
    SCORE = "score"  # as few as bring the score to the target
    FRACTION = "fraction"  # those whose attribution is at least a fraction of the largest
    GONE = "gone"  # as few as leave no more of the image than a generic prompt has of it


@dataclass
class Cost:
    """Rows of the network: ``forward`` without gradients, and ``gradient`` forward and backward."""

    forward: int = 0
    gradient: int = 0


def dot_product(differences: torch.Tensor) -> torch.Tensor:
    """The mean product of two different rows of (N, ...): (|sum d|^2 - sum |d|^2) / (N (N - 1))."""
    flat = differences.flatten(1)
    return (flat.sum(0).square().sum() - flat.square().sum()) / (len(flat) * (len(flat) - 1))


def predict_batch(
    predictor: Predictor,
    inputs: Sequence[NetworkInput],
    batch: Sequence[int],
    factors: dict[str, torch.Tensor] | None,
) -> torch.Tensor:
    """The noise (B, C, H, W) in the inputs of a batch."""
    chosen = [inputs[index] for index in batch]
    x = torch.cat([latent for latent, _, _ in chosen])
    timesteps = [timestep for _, timestep, _ in chosen]
    rows = [row for _, _, row in chosen]
    return predictor.predicted(x, timesteps, rows, factors)


@torch.no_grad()
def predict_all(predictor: Predictor, inputs: Sequence[NetworkInput], cost: Cost) -> torch.Tensor:
    """The noise (N, C, H, W) in all inputs, in the untouched network and without gradients."""
    return _in_batches(predictor, inputs, None, cost)


def _in_batches(
    predictor: Predictor,
    inputs: Sequence[NetworkInput],
    factors: dict[str, torch.Tensor] | None,
    cost: Cost,
) -> torch.Tensor:
    batches = predictor.batches(inputs, gradients=False)
    predicted = torch.cat([predict_batch(predictor, inputs, batch, factors) for batch in batches])
    cost.forward += len(inputs)
    places = [index for batch in batches for index in batch]
    if places == list(range(len(inputs))):
        return predicted
    order = sorted(range(len(places)), key=places.__getitem__)
    return predicted[torch.tensor(order, device=predicted.device)]


def attribute_dot(
    predictor: Predictor,
    noise: torch.Tensor,
    timestep: int,
    neurons: Neurons,
    cost: Cost,
    midpoints: int = 1,
) -> torch.Tensor:
    """The attribution (total,) of every neuron to ``dot`` over noise samples (N, C, H, W), N at
    least 2, on the predictor's device.

    In batches: d dot / d d_j = 2 (sum d - d_j) / (N (N - 1)) is known from the rows without
    gradients.
    """
    count = len(noise)
    if count < 2:
        raise ValueError("The ranking dot compares noise samples: set noise_samples to 2 or more.")
    noise = noise.to(predictor.device)
    inputs = [(row, timestep, 0) for row in noise.split(1)]
    paths = _path(neurons, midpoints, predictor.device)
    for factors in paths:
        with torch.no_grad():
            d = _in_batches(predictor, inputs, by_layer(factors, neurons), cost) - noise
        rest = 2 * (d.sum(0, keepdim=True) - d) / (count * (count - 1))
        _backward(predictor, inputs, factors=factors, towards=rest, neurons=neurons)
        cost.gradient += count
    return _mean_gradient(paths)


def anchor_predictions(
    predictor: Predictor, inputs: Sequence[tuple[torch.Tensor, int]], cost: Cost
) -> torch.Tensor:
    """What ``multi`` compares every prompt of a list with: the anchor's predictions, row 1 of the
    conditionings, (N, C, H, W).
    """
    return predict_all(predictor, [(x, timestep, 1) for x, timestep in inputs], cost)


def attribute_multi(
    predictor: Predictor,
    inputs: Sequence[tuple[torch.Tensor, int]],
    anchor: torch.Tensor,
    neurons: Neurons,
    cost: Cost,
    *,
    midpoints: int = 1,
) -> torch.Tensor:
    """The attribution (total,) of every neuron to ``multi``, on the predictor's device.

    ``inputs``: noised latents (1, C, H, W) with their timesteps; ``anchor``: what
    ``anchor_predictions`` gives for them. Row 0 of the conditionings is the prompt.
    """
    of_prompt = [(x, timestep, 0) for x, timestep in inputs]
    difference = predict_all(predictor, of_prompt, cost) - anchor
    squared = difference.flatten(1).square().sum(1).clamp(min=torch.finfo(difference.dtype).tiny)
    towards = difference / squared.view(-1, *[1] * (difference.ndim - 1)) / len(inputs)
    paths = _path(neurons, midpoints, predictor.device)
    for factors in paths:
        _backward(predictor, of_prompt, factors=factors, towards=towards, neurons=neurons)
        cost.gradient += len(inputs)
    return _mean_gradient(paths)


def _backward(
    predictor: Predictor,
    inputs: Sequence[NetworkInput],
    *,
    factors: torch.Tensor,
    towards: torch.Tensor,
    neurons: Neurons,
) -> None:
    """Add the gradient of the sum of predictions times ``towards`` (N, C, H, W) to that of the
    factors (total,).
    """
    for batch in predictor.batches(inputs, gradients=True):
        predicted = predict_batch(predictor, inputs, batch, by_layer(factors, neurons))
        predicted.backward(torch.cat([towards[index : index + 1] for index in batch]))


def ranked(attribution: torch.Tensor, z: torch.Tensor | None) -> torch.Tensor:
    """What neurons are ranked by, (total,): the attribution where it is positive, times |z| where
    that is given.
    """
    found = attribution.clamp(min=0)
    return found if z is None else found * z.abs()


def _path(neurons: Neurons, midpoints: int, device: torch.device) -> list[torch.Tensor]:
    """All factors (total,) together at the midpoints of equal parts of the way from 0 to 1."""
    total = sum(layer.width for layer in neurons.layers)
    values = [(number + 0.5) / midpoints for number in range(midpoints)]
    return [torch.full((total,), value, device=device).requires_grad_() for value in values]


def _mean_gradient(paths: Sequence[torch.Tensor]) -> torch.Tensor:
    gradients = [torch.zeros_like(at) if at.grad is None else at.grad for at in paths]
    return torch.stack(gradients).mean(0)


def by_layer(factors: torch.Tensor, neurons: Neurons) -> dict[str, torch.Tensor]:
    """Factors (total,) of all neurons by layer path."""
    parts = factors.split([layer.width for layer in neurons.layers])
    return {layer.path: part for layer, part in zip(neurons.layers, parts, strict=True)}


def take_fraction(
    values: torch.Tensor, fraction: float, evaluator: Evaluator, target: float
) -> Iterator[SearchResult]:
    """The neurons whose value is at least a fraction of the largest; their score is measured once,
    and decides nothing.

    Yields the result like ``shorten``.
    """
    least = fraction * float(values.max())
    taken = [index for index in _order(values) if float(values[index]) >= least]
    result = _measured(taken, evaluator, target)
    result.finished = True
    result.progress = 1.0
    yield result


def count_before_gap(values: torch.Tensor) -> int:
    """How many neurons stand before the largest ratio of a value to the next smaller one.

    ``values``: (total,), at least 0. Only the larger half of the positive values counts, since
    ratios among the smallest are those of rounding. 0 where no value is positive.
    """
    positive = values[values > 0].double().sort(descending=True).values
    if len(positive) < 2:
        return len(positive)
    half = positive[: max(len(positive) // 2, 1) + 1]
    return int((half[:-1] / half[1:]).argmax()) + 1


def take_before_gap(
    values: torch.Tensor, evaluator: Evaluator, target: float
) -> Iterator[SearchResult]:
    """The neurons before the largest relative drop of the ranking; where they do not reach the
    target, the set of ``shorten``, if that does.

    No setting decides, so nothing has to be fitted to a model. Yields the result like ``shorten``.
    """
    before_gap = _measured(_order(values)[: count_before_gap(values)], evaluator, target)
    for result in () if before_gap.converged else shorten(values, evaluator, target):
        if not result.finished:
            before_gap.progress = result.progress
            yield result if result.initial else before_gap
        elif result.converged:
            result.trace = [*before_gap.trace, *result.trace]
            yield result
            return
    before_gap.finished = True
    before_gap.progress = 1.0
    yield before_gap


def shorten(
    values: torch.Tensor, evaluator: SetScores, target: float, leave_out: bool = True
) -> Iterator[SearchResult]:
    """The shortest prefix of the ranking that reaches the target, then without each neuron that it
    does not need.

    Yields the same result object after every evaluation, and once finished. The length is doubled
    until the target is reached and the last interval bisected (the score need not fall with the
    length: what is kept reaches it). Then the neurons are left out one by one, the last of the
    ranking first, where the rest stays below the target. Where the whole ranking does not reach it,
    the result has not converged. Neurons of value 0 are never taken. Without ``leave_out`` the
    shortest prefix is the result.
    """
    result = SearchResult()
    order = _order(values)
    short = 0
    length = 1
    while order:
        length = min(length, len(order))
        chosen, score = _silenced(order[:length], evaluator, result.trace)
        result.converged = score <= target
        result.progress = 0.3 * math.log(1 + length) / math.log(1 + len(order))
        if result.converged or length == len(order):
            result.initial = chosen
            result.refined = chosen
            result.initial_score = score
            result.score = score
            break
        short = length
        length = 2 * length
        yield result
    while result.converged and length - short > 1:
        yield result
        middle = (short + length) // 2
        chosen, score = _silenced(order[:middle], evaluator, result.trace)
        if score <= target:
            length = middle
            result.initial = chosen
            result.refined = chosen
            result.initial_score = score
            result.score = score
        else:
            short = middle
    kept = order[:length] if result.converged and leave_out else []
    for number, index in enumerate(reversed(kept), 1):
        yield result
        without = [other for other in kept if other != index]
        chosen = _by_layer_indices(without, evaluator.neurons)
        below = (
            cast(Evaluator, evaluator).score_below(evaluator.neurons.mask(chosen), target)
            if without
            else None
        )
        if below is not None:
            kept = without
            result.refined = chosen
            result.score = below
        result.progress = 0.5 + 0.5 * number / length
    result.finished = True
    result.progress = 1.0
    yield result


def _order(values: torch.Tensor) -> list[int]:
    """The neurons of a value over 0, the largest first."""
    return [
        index
        for index in values.argsort(descending=True, stable=True).tolist()
        if float(values[index]) > 0
    ]


def _measured(indices: list[int], evaluator: SetScores, target: float) -> SearchResult:
    """A set of neurons as a result that is not finished, with the score that it leaves."""
    result = SearchResult()
    chosen, score = _silenced(indices, evaluator, result.trace)
    result.initial = chosen
    result.refined = chosen
    result.initial_score = score
    result.score = score
    result.converged = score <= target
    return result


def _silenced(
    indices: list[int], evaluator: SetScores, trace: list[SelectionStep]
) -> tuple[Chosen, float]:
    """Neurons that are counted over all layers as indices in each layer, and the score with them
    silenced.
    """
    chosen = _by_layer_indices(indices, evaluator.neurons)
    score = evaluator.score(evaluator.neurons.mask(chosen))
    trace.append(
        SelectionStep(theta=None, k=0, listed=len(indices), neurons=len(indices), score=score)
    )
    return chosen, score


def _by_layer_indices(indices: Sequence[int], neurons: Neurons) -> Chosen:
    """Neurons that are counted over all layers as indices in each layer, ascending."""
    chosen: Chosen = []
    first = 0
    for layer in neurons.layers:
        chosen.append(
            sorted(index - first for index in indices if first <= index < first + layer.width)
        )
        first += layer.width
    return chosen
