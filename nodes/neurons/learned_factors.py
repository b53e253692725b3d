"""Factors of neurons that are learned by gradient, so that a memorized prompt gives what a generic
one gives.

g are factors of all neurons, 1 in the untouched network, each in [low, 1]. With p a memorized
prompt, a the anchor (a generic prompt), c an ordinary prompt, and x_t noised latents, Adam lowers

    loss(g) = erase E(g) + keep O(g) + size sum (1 - g)
    E(g) = mean |eps_g(x_t, p) - eps_1(x_t, a)|^2 / |eps_1(x_t, p) - eps_1(x_t, a)|^2
    O(g) = mean |eps_g(x_t, c) - eps_1(x_t, c)|^2 / |eps_1(x_t, c) - eps_1(x_t, a)|^2

E is 1 in the untouched network and 0 where the prompt gives the anchor's prediction; O is 0 in the
untouched network and 1 where an ordinary prompt has lost as much as lies between it and the anchor.
No paper: the masks of Finding NeMo (arXiv 2406.02366) are sets of neurons at factor 0, and its
search knows no price.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from ..common.resume import named_input
from .nemo_search import Neurons
from .neuron_attribution import (
    Cost,
    NetworkInput,
    Predictor,
    by_layer,
    predict_all,
    predict_batch,
)

#: The last so many of the steps go on at a quarter of the rate.
_LATE = 0.3
_LATE_RATE = 0.25
#: Neurons whose factor is nearer to 1 than this are left as they are.
_UNCHANGED = 0.05


@dataclass(frozen=True, kw_only=True)
class LearningSettings:
    """How factors are learned; ``rows``: how many inputs of either kind, memorized and ordinary, a
    step evaluates.

    ``count``: at most so many neurons are scaled, 0 for any number.
    """

    steps: int = 60
    learning_rate: float = 0.08
    low: float = field(default=0.0, metadata=named_input("min_factor"))
    erase: float = field(default=20.0, metadata=named_input("removal"))
    keep: float = 1.0
    size: float = field(default=0.04, metadata=named_input("sparsity"))
    rows: int = field(default=2, metadata=named_input("batch_size"))
    count: int = field(default=0, metadata=named_input("max_neurons"))
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class Example:
    """An input (1, C, H, W) of the network at a timestep with a conditioning's row, and what it
    should predict.

    ``distance``: the squared distance between the predictions of the row and of the anchor, in the
    untouched network.
    """

    x: torch.Tensor
    timestep: int
    row: int
    target: torch.Tensor
    distance: float

    @property
    def input(self) -> NetworkInput:
        """What the network is evaluated on."""
        return self.x, self.timestep, self.row


def make_examples(
    predictor: Predictor,
    inputs: Sequence[NetworkInput],
    anchor: int,
    erased: bool,
    cost: Cost,
) -> list[Example]:
    """Examples of inputs (latent, timestep, row): the target is the anchor's prediction where
    ``erased``, else its own.

    ``anchor``: the anchor's row. Raises ValueError for a row that predicts what the anchor
    predicts.
    """
    if not inputs:
        return []
    # Side by side, so that a call evaluates both.
    both = [(x, timestep, side) for x, timestep, row in inputs for side in (row, anchor)]
    predictions = predict_all(predictor, both, cost)
    own = predictions[0::2]
    generic = predictions[1::2]
    targets = generic if erased else own
    distances = (own - generic).flatten(1).square().sum(1).tolist()
    if not min(distances) > 0:
        raise ValueError(
            "A prompt gives the same prediction as the anchor: choose an anchor that is none "
            "of the prompts."
        )
    return [
        Example(x=x, timestep=timestep, row=row, target=target, distance=distance)
        for (x, timestep, row), target, distance in zip(
            inputs, targets.split(1), distances, strict=True
        )
    ]


def _relative_errors(
    predictor: Predictor,
    examples: Sequence[Example],
    batch: Sequence[int],
    factors: dict[str, torch.Tensor],
) -> torch.Tensor:
    """The terms of E or O of a batch, (B,)."""
    inputs = [example.input for example in examples]
    targets = torch.cat([examples[index].target for index in batch])
    error = predict_batch(predictor, inputs, batch, factors) - targets
    distances = error.new_tensor([examples[index].distance for index in batch])
    return error.flatten(1).square().sum(1) / distances


class FactorLearning:
    """Adam on the factors (total,) of all neurons; ``advance`` makes one step.

    ``start``: initial factors, ones for none. Each step draws its examples from the seed and its
    own number.
    """

    def __init__(self, neurons: Neurons, settings: LearningSettings, start: torch.Tensor):
        self.neurons = neurons
        self.settings = settings
        self.factors = start.detach().clone().clamp(settings.low, 1.0).requires_grad_()
        self.optimizer = torch.optim.Adam([self.factors], lr=settings.learning_rate)
        self.losses: list[float] = []

    @property
    def done(self) -> int:
        """How many steps are done."""
        return len(self.losses)

    def gradient(
        self,
        predictor: Predictor,
        memorized: Sequence[Example],
        ordinary: Sequence[Example],
        cost: Cost,
    ) -> tuple[float, torch.Tensor]:
        """The loss and its gradient (total,): both kinds of examples together, in batches that
        fit in memory.
        """
        settings = self.settings
        total = settings.size * (1 - self.factors.detach()).sum()
        gradient = torch.full_like(self.factors, -settings.size)
        examples = [*memorized, *ordinary]
        weights = [settings.erase / len(memorized) for _ in memorized]
        weights += [settings.keep / len(ordinary) for _ in ordinary]
        inputs = [example.input for example in examples]
        for batch in predictor.batches(inputs, gradients=True):
            factors = by_layer(self.factors, self.neurons)
            errors = _relative_errors(predictor, examples, batch=batch, factors=factors)
            loss = errors @ errors.new_tensor([weights[index] for index in batch])
            gradient += torch.autograd.grad(loss, self.factors)[0]
            total = total + loss.detach()
            cost.gradient += len(batch)
        return float(total), gradient

    def advance(
        self,
        predictor: Predictor,
        memorized: Sequence[Example],
        ordinary: Sequence[Example],
        cost: Cost,
    ) -> None:
        """One step on some of the examples."""
        settings = self.settings
        late = self.done >= settings.steps - round(_LATE * settings.steps)
        for group in self.optimizer.param_groups:
            group["lr"] = settings.learning_rate * (_LATE_RATE if late else 1.0)
        memorized, ordinary = (
            _drawn(examples, settings.rows, settings.seed, self.done)
            for examples in (memorized, ordinary)
        )
        loss, self.factors.grad = self.gradient(predictor, memorized, ordinary, cost)
        self.optimizer.step()
        with torch.no_grad():
            self.factors.clamp_(settings.low, 1.0)
            if late:
                self.factors.copy_(strongest(self.factors, settings.count))
        self.losses.append(loss)

    def result(self) -> torch.Tensor:
        """The factors (total,) that are learned, 1 for neurons that hardly change."""
        found = strongest(self.factors.detach(), self.settings.count)
        return torch.where(found > 1 - _UNCHANGED, 1.0, found)


def strongest(factors: torch.Tensor, count: int) -> torch.Tensor:
    """Factors of which only the ``count`` smallest stay, the others 1; all of them for 0."""
    if not count or count >= len(factors):
        return factors
    kept = torch.ones_like(factors)
    smallest = factors.argsort(stable=True)[:count]
    kept[smallest] = factors[smallest]
    return kept


@torch.no_grad()
def mean_error(
    predictor: Predictor, examples: Sequence[Example], factors: dict[str, torch.Tensor], cost: Cost
) -> float:
    """E or O over all of the examples."""
    cost.forward += len(examples)
    batches = predictor.batches([example.input for example in examples], gradients=False)
    errors = [
        _relative_errors(predictor, examples, batch=batch, factors=factors) for batch in batches
    ]
    return float(torch.cat(errors).mean())


def _drawn(examples: Sequence[Example], count: int, seed: int, step: int) -> list[Example]:
    """So many of the examples, other ones at every step until all have been taken."""
    if not examples:
        return []
    order = torch.randperm(len(examples), generator=torch.Generator().manual_seed(seed)).tolist()
    return [
        examples[order[(step * count + number) % len(order)]]
        for number in range(min(count, len(examples)))
    ]
