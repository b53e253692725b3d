"""Find the neurons that carry a memorised prompt: NeMo's selection and refinement.

Finding NeMo (arXiv 2406.02366), sections 3.2 and 3.3, algorithms 2 to 4, and the official code where it differs:
neurons stand out by |z| (two-sided), and the last selection has theta 1.25 and k 15.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

import torch

from .evaluation import Evaluator, Neurons

#: Narrower layers get proportionally fewer neurons from the top-k (the narrowest layer of SD1.x).
FULL_WIDTH = 320
_MOST_K = 1280

#: Layer by layer the chosen neurons, in the order in which the refinement visits them; one may be listed twice.
Chosen = list[list[int]]
#: Sets -> mem(S) of each, or a number that compares with the threshold as mem(S) does; computed as they are taken.
Scores = Callable[[list[torch.Tensor]], Iterable[float]]
#: Gets the neurons that are left after a decision, and the share of decisions made (0 to 1); may raise OutOfTimeError.
Keep = Callable[[Chosen, float], None]
#: Shares of a search that the selection takes, and of a refinement that whole layers take: for a progress bar.
SELECTION, LAYERS = 0.3, 0.1


@dataclass(frozen=True)
class Settings:
    """The official hyperparameters, with the official defaults."""

    threshold: float = 0.428
    first_theta: float = 5.0
    last_theta: float = 1.0
    theta_step: float = 0.25
    first_k: int = 0
    factor: float = 0.0


@dataclass(frozen=True)
class Look:
    """One step of the selection: what was asked for, how many neurons that chose, and how memorised it left things."""

    theta: float
    k: int
    listed: int
    neurons: int
    score: float


@dataclass
class Found:
    """The result of a search; where it is not ``finished``, its time was up or it was ``stopped``, and the neurons are
    the best so far.
    """

    initial: Chosen
    refined: Chosen
    initial_score: float
    score: float
    converged: bool
    trace: list[Look] = field(default_factory=list)
    finished: bool = True
    stopped: bool = False


class OutOfTimeError(Exception):
    """The time for a search is up."""


def select(z: list[torch.Tensor], activations: list[torch.Tensor], theta: float, k: int) -> Chosen:
    """In each layer the neurons with |z| over theta, ascending, then the k most active ones (algorithm 2).

    ``z`` and ``activations`` (C,) a layer. A neuron that is both is listed twice, as in the official code. In a layer
    narrower than 320 k shrinks in proportion (rounded up), so that a small model's layers are not chosen whole.
    """
    chosen = []
    for deviation, activation in zip(z, activations, strict=True):
        outliers = (deviation.abs() > theta).nonzero().flatten().tolist()
        width = len(activation)
        count = min(math.ceil(k * min(width / FULL_WIDTH, 1.0)), width)
        chosen.append(outliers + activation.topk(count).indices.tolist())
    return chosen


def looks(
    z: list[torch.Tensor], activations: list[torch.Tensor], settings: Settings
) -> Iterator[tuple[float, int, Chosen]]:
    """Theta, k and the chosen neurons of each step of the selection, as long as it may go on (algorithm 3)."""
    theta, k = settings.first_theta, settings.first_k
    while True:
        yield theta, k, select(z, activations, theta, k)
        theta, k = max(theta - settings.theta_step, settings.last_theta), k + 1
        if theta <= settings.last_theta or k >= _MOST_K:
            return


def initial_selection(
    z: list[torch.Tensor], activations: list[torch.Tensor], memorized: Scores, neurons: Neurons, settings: Settings
) -> tuple[Chosen, list[Look], bool]:
    """Loosen theta and k until silencing the chosen neurons brings mem(S) to the threshold (algorithm 3).

    Returns the neurons, the trace, and whether the threshold was reached; where not, the search has stalled and the
    refinement goes on from the score it stalled at, as in the official code.
    """
    steps = list(looks(z, activations, settings))
    masks, trace = [neurons.mask(chosen) for _, _, chosen in steps], []
    for (theta, k, chosen), mask, score in zip(steps, masks, memorized(masks), strict=False):
        trace.append(Look(theta, k, sum(map(len, chosen)), int(mask.sum()), score))
        if score <= settings.threshold:
            return chosen, trace, True
    return chosen, trace, False


def refine(chosen: Chosen, evaluator: Evaluator, threshold: float, keep: Keep) -> Chosen:
    """Drop every layer, then every neuron, without which mem(S) stays below the threshold (algorithm 4).

    Greedy, from the last layer to the first. ``keep`` gets what is left after each decision.
    """

    def of_layers(kept: Chosen, share: float) -> None:
        keep(kept, LAYERS * share)

    left = drop_layers(chosen, evaluator.exact, evaluator.neurons, threshold, of_layers)
    units = [(position, index) for position in reversed(range(len(left))) for index in left[position]]
    for done, unit in enumerate(units, 1):
        without = dropped(left, [unit])
        if evaluator.exact(evaluator.neurons.mask(without)) < threshold:
            left = without
        keep(left, LAYERS + (1 - LAYERS) * done / len(units))
    return left


def drop_layers(
    chosen: Chosen, memorized: Callable[[torch.Tensor], float], neurons: Neurons, threshold: float, keep: Keep
) -> Chosen:
    """The first half of the refinement: whole layers, from the last to the first."""
    left = [list(indices) for indices in chosen]
    layers = [position for position in reversed(range(len(left))) if left[position]]
    for done, position in enumerate(layers, 1):
        without = [*left[:position], [], *left[position + 1 :]]
        if memorized(neurons.mask(without)) < threshold:
            left = without
        keep(left, done / len(layers))
    return left


def dropped(left: Chosen, run: list[tuple[int, int]]) -> Chosen:
    """``left`` without one listing, the first, of each neuron of the run: (position of the layer, index)."""
    result = [list(indices) for indices in left]
    for position, index in run:
        result[position].remove(index)
    return result


def search(
    z: list[torch.Tensor],
    activations: list[torch.Tensor],
    evaluator: Evaluator,
    settings: Settings,
    refiner: Callable = refine,
    checkpoint: Callable[[float], None] = lambda _share: None,
    stops: tuple[type[BaseException], ...] = (),
) -> Found:
    """The whole procedure for one prompt; with ``speculation.refine`` as refiner the fast mode.

    In fast mode the scores of the trace are lower bounds where the threshold was clearly missed. ``checkpoint`` is
    called with the share that is done, before each evaluation of the selection and after each decision of the
    refinement; it raises OutOfTimeError to end the search with the best so far: neurons that block, of which not all
    may be needed. One of ``stops`` that is raised in the refinement ends it in the same way.
    """
    exact = refiner is refine

    def memorized(masks: list[torch.Tensor]) -> Iterator[float]:
        checkpoint(0.0)
        scores = map(evaluator.exact, masks) if exact else evaluator.quick(masks, settings.threshold)
        for done, score in enumerate(scores, 1):
            yield score
            checkpoint(SELECTION * done / len(masks))

    neurons = evaluator.neurons
    found = Found([], [], 1.0, 1.0, False, finished=False)
    try:
        initial, found.trace, found.converged = initial_selection(z, activations, memorized, neurons, settings)
    except OutOfTimeError:
        return found
    found.initial = found.refined = initial
    found.initial_score = evaluator.exact(neurons.mask(initial))
    threshold = settings.threshold if found.converged else found.initial_score

    def keep(left: Chosen, share: float) -> None:
        found.refined = left
        checkpoint(SELECTION + (1 - SELECTION) * share)

    try:
        found.refined = refiner(initial, evaluator, threshold, keep)
        found.finished = True
    except (OutOfTimeError, *stops) as end:
        found.stopped = not isinstance(end, OutOfTimeError)
    found.score = evaluator.exact(neurons.mask(found.refined))
    return found
