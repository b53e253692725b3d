"""Rank the neurons of a memorized prompt by a gradient, and shorten the ranking to the neurons that are needed.

The search of Finding NeMo (arXiv 2406.02366) silences sets of neurons, hundreds of times a prompt. Here g are factors
of all neurons, 1 in the untouched network. A neuron's attribution is the gradient of what makes a prompt memorized to
its factor, averaged over a path on which all factors go together from 0 to 1 (integrated gradients, arXiv 1703.01365):

dot    mean of d_i . d_j over the pairs of seeds, d_j = eps_g(x_j) - x_j in pure noise x_j at the first step: a form of
       the memorization score that has a gradient.
multi  mean over t of <eps_g(x_t, prompt) - eps(x_t, anchor), u_t> / |u_t|^2, u_t = eps(x_t, prompt) - eps(x_t, anchor):
       how far the prompt's prediction still is from that of a generic prompt, the anchor, along a sampling run.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import cast

import torch

from .nemo_search import Chosen, Evaluator, Neurons, SearchResult, SelectionStep, SetScores

#: Timesteps of ``multi``, from nearly pure noise to where the image is laid out.
TIMESTEPS = (961, 800, 640, 480)

#: (x (1, C, H, W), timestep, row of a conditioning, factors by layer path or None) -> predicted noise, float32
PredictNoise = Callable[..., torch.Tensor]


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


def attribute_dot(
    predict: PredictNoise, noise: torch.Tensor, timestep: int, neurons: Neurons, cost: Cost, midpoints: int = 1
) -> torch.Tensor:
    """The attribution (total,) of every neuron to ``dot`` over noise samples (N, C, H, W), N at least 2.

    One row at a time: d dot / d d_j = 2 (sum d - d_j) / (N (N - 1)) is known from the rows without gradients.
    """
    count = len(noise)
    if count < 2:
        raise ValueError("The ranking dot compares noise samples: set noise_samples to 2 or more.")
    found = torch.zeros(sum(layer.width for layer in neurons.layers))
    for factors in _path(neurons, midpoints):
        with torch.no_grad():
            d = torch.cat([predict(row, timestep, 0, by_layer(factors, neurons)) - row for row in noise.split(1)])
        rest = 2 * (d.sum(0, keepdim=True) - d) / (count * (count - 1))
        for row, towards in zip(noise.split(1), rest.split(1), strict=True):
            predict(row, timestep, 0, by_layer(factors, neurons)).backward(towards)
        cost.forward += count
        cost.gradient += count
        found += _gradient(factors) / midpoints
    return found


def attribute_multi(
    predict: PredictNoise, inputs: Sequence[tuple[torch.Tensor, int]], neurons: Neurons, cost: Cost, midpoints: int = 1
) -> torch.Tensor:
    """The attribution (total,) of every neuron to ``multi``.

    ``inputs``: noised latents (1, C, H, W) with their timesteps. Row 0 of ``predict`` is the prompt, row 1 the anchor.
    """
    found = torch.zeros(sum(layer.width for layer in neurons.layers))
    paths = list(_path(neurons, midpoints))
    for x, timestep in inputs:
        with torch.no_grad():
            towards = predict(x, timestep, 0, None) - predict(x, timestep, 1, None)
        towards = towards / towards.square().sum().clamp(min=torch.finfo(towards.dtype).tiny) / len(inputs)
        for factors in paths:
            predict(x, timestep, 0, by_layer(factors, neurons)).backward(towards)
        cost.forward += 2
        cost.gradient += midpoints
    for factors in paths:
        found += _gradient(factors) / midpoints
    return found


def ranked(attribution: torch.Tensor, z: torch.Tensor | None) -> torch.Tensor:
    """What neurons are ranked by, (total,): the attribution where it is positive, times |z| where that is given."""
    found = attribution.clamp(min=0)
    return found if z is None else found * z.abs()


def _path(neurons: Neurons, midpoints: int) -> Iterator[torch.Tensor]:
    """All factors (total,) together at the midpoints of equal parts of the way from 0 to 1."""
    total = sum(layer.width for layer in neurons.layers)
    for number in range(midpoints):
        yield torch.full((total,), (number + 0.5) / midpoints).requires_grad_()


def _gradient(factors: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(factors) if factors.grad is None else factors.grad


def by_layer(factors: torch.Tensor, neurons: Neurons) -> dict[str, torch.Tensor]:
    """Factors (total,) of all neurons by layer path."""
    parts = factors.split([layer.width for layer in neurons.layers])
    return {layer.path: part for layer, part in zip(neurons.layers, parts, strict=True)}


def take_fraction(values: torch.Tensor, fraction: float, evaluator: Evaluator, target: float) -> Iterator[SearchResult]:
    """The neurons whose value is at least a fraction of the largest; their score is measured once, and decides nothing.

    Yields the result like ``shorten``.
    """
    result = SearchResult()
    taken = [index for index in _order(values) if float(values[index]) >= fraction * float(values.max())]
    chosen, score = _silenced(taken, evaluator, result.trace)
    result.initial, result.refined, result.initial_score, result.score = chosen, chosen, score, score
    result.converged, result.finished, result.progress = score <= target, True, 1.0
    yield result


def shorten(
    values: torch.Tensor, evaluator: SetScores, target: float, leave_out: bool = True
) -> Iterator[SearchResult]:
    """The shortest prefix of the ranking that reaches the target, then without each neuron that it does not need.

    Yields the same result object after every evaluation, and once finished. The length is doubled until the target is
    reached and the last interval bisected (the score need not fall with the length: what is kept reaches it). Then the
    neurons are left out one by one, the last of the ranking first, where the rest stays below the target. Where the
    whole ranking does not reach it, the result has not converged. Neurons of value 0 are never taken. Without
    ``leave_out`` the shortest prefix is the result.
    """
    result, order, short, length = SearchResult(), _order(values), 0, 1
    while order:
        length = min(length, len(order))
        chosen, score = _silenced(order[:length], evaluator, result.trace)
        result.converged = score <= target
        result.progress = 0.3 * math.log(1 + length) / math.log(1 + len(order))
        if result.converged or length == len(order):
            result.initial, result.refined, result.initial_score, result.score = chosen, chosen, score, score
            break
        short, length = length, 2 * length
        yield result
    while result.converged and length - short > 1:
        yield result
        middle = (short + length) // 2
        chosen, score = _silenced(order[:middle], evaluator, result.trace)
        if score <= target:
            length = middle
            result.initial, result.refined, result.initial_score, result.score = chosen, chosen, score, score
        else:
            short = middle
    kept = order[:length] if result.converged and leave_out else []
    for number, index in enumerate(reversed(kept), 1):
        yield result
        without = [other for other in kept if other != index]
        chosen = _by_layer_indices(without, evaluator.neurons)
        below = cast(Evaluator, evaluator).score_below(evaluator.neurons.mask(chosen), target) if without else None
        if below is not None:
            kept, result.refined, result.score = without, chosen, below
        result.progress = 0.5 + 0.5 * number / length
    result.finished, result.progress = True, 1.0
    yield result


def _order(values: torch.Tensor) -> list[int]:
    """The neurons of a value over 0, the largest first."""
    return [index for index in values.argsort(descending=True, stable=True).tolist() if float(values[index]) > 0]


def _silenced(indices: list[int], evaluator: SetScores, trace: list[SelectionStep]) -> tuple[Chosen, float]:
    """Neurons that are counted over all layers as indices in each layer, and the score with them silenced."""
    chosen = _by_layer_indices(indices, evaluator.neurons)
    score = evaluator.score(evaluator.neurons.mask(chosen))
    trace.append(SelectionStep(None, 0, len(indices), len(indices), score))
    return chosen, score


def _by_layer_indices(indices: Sequence[int], neurons: Neurons) -> Chosen:
    """Neurons that are counted over all layers as indices in each layer, ascending."""
    chosen: Chosen = []
    first = 0
    for layer in neurons.layers:
        chosen.append(sorted(index - first for index in indices if first <= index < first + layer.width))
        first += layer.width
    return chosen
