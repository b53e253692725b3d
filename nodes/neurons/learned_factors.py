"""Factors of neurons that are learned by gradient, so that a memorized prompt gives what a generic one gives.

g are factors of all neurons, 1 in the untouched network, each in [low, 1]. With p a memorized prompt, a the anchor (a
generic prompt), c an ordinary prompt, and x_t noised latents, Adam lowers

    loss(g) = erase E(g) + keep O(g) + size sum (1 - g)
    E(g) = mean |eps_g(x_t, p) - eps_1(x_t, a)|^2 / |eps_1(x_t, p) - eps_1(x_t, a)|^2
    O(g) = mean |eps_g(x_t, c) - eps_1(x_t, c)|^2 / |eps_1(x_t, c) - eps_1(x_t, a)|^2

E is 1 in the untouched network and 0 where the prompt gives the anchor's prediction; O is 0 in the untouched network
and 1 where an ordinary prompt has lost as much as lies between it and the anchor. No paper: the masks of Finding NeMo
(arXiv 2406.02366) are sets of neurons at factor 0, and its search knows no price.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from .nemo_search import Neurons
from .neuron_attribution import Cost, PredictNoise, by_layer

#: The last so many of the steps go on at a quarter of the rate.
_LATE, _LATE_RATE = 0.3, 0.25
#: Neurons whose factor is nearer to 1 than this are left as they are.
_UNCHANGED = 0.05


@dataclass(frozen=True)
class LearningSettings:
    """How factors are learned; ``rows``: how many inputs of either kind, memorized and ordinary, a step evaluates.

    ``count``: at most so many neurons are scaled, 0 for any number.
    """

    steps: int = 60
    learning_rate: float = 0.08
    low: float = 0.0
    erase: float = 20.0
    keep: float = 1.0
    size: float = 0.04
    rows: int = 2
    count: int = 0
    seed: int = 0


@dataclass(frozen=True)
class Example:
    """An input (1, C, H, W) of the network at a timestep with a conditioning's row, and what it should predict.

    ``distance``: the squared distance between the predictions of the row and of the anchor, in the untouched network.
    """

    x: torch.Tensor
    timestep: int
    row: int
    target: torch.Tensor
    distance: float


@torch.no_grad()
def make_examples(
    predict: PredictNoise, inputs: Sequence[tuple[torch.Tensor, int, int]], anchor: int, erased: bool, cost: Cost
) -> list[Example]:
    """Examples of inputs (latent, timestep, row): the target is the anchor's prediction where ``erased``, else its own.

    ``anchor``: the anchor's row. Raises ValueError for a row that predicts what the anchor predicts.
    """
    found = []
    for x, timestep, row in inputs:
        own, generic = predict(x, timestep, row, None), predict(x, timestep, anchor, None)
        cost.forward += 2
        distance = float((own - generic).square().sum())
        if not distance > 0:
            raise ValueError(
                "A prompt gives the same prediction as the anchor: choose an anchor that is none of the prompts."
            )
        found.append(Example(x, timestep, row, generic if erased else own, distance))
    return found


def relative_error(predict: PredictNoise, example: Example, factors: dict[str, torch.Tensor]) -> torch.Tensor:
    """One term of E or O."""
    error = predict(example.x, example.timestep, example.row, factors) - example.target
    return error.square().sum() / example.distance


class FactorLearning:
    """Adam on the factors (total,) of all neurons; ``advance`` makes one step.

    ``start``: initial factors, ones for none. Each step draws its examples from the seed and its own number.
    """

    def __init__(self, neurons: Neurons, settings: LearningSettings, start: torch.Tensor):
        self.neurons, self.settings = neurons, settings
        self.factors = start.detach().clone().clamp(settings.low, 1.0).requires_grad_()
        self.optimizer = torch.optim.Adam([self.factors], lr=settings.learning_rate)
        self.losses: list[float] = []

    @property
    def done(self) -> int:
        """How many steps are done."""
        return len(self.losses)

    def gradient(
        self, predict: PredictNoise, memorized: Sequence[Example], ordinary: Sequence[Example], cost: Cost
    ) -> tuple[float, torch.Tensor]:
        """The loss and its gradient (total,), one example at a time."""
        settings, total = self.settings, 0.0
        gradient = torch.full_like(self.factors, -settings.size)
        for weight, examples in ((settings.erase, memorized), (settings.keep, ordinary)):
            for example in examples:
                loss = weight / len(examples) * relative_error(predict, example, by_layer(self.factors, self.neurons))
                gradient += torch.autograd.grad(loss, self.factors)[0]
                total += float(loss.detach())
                cost.gradient += 1
        return total + settings.size * float((1 - self.factors.detach()).sum()), gradient

    def advance(
        self, predict: PredictNoise, memorized: Sequence[Example], ordinary: Sequence[Example], cost: Cost
    ) -> None:
        """One step on some of the examples."""
        settings = self.settings
        late = self.done >= settings.steps - round(_LATE * settings.steps)
        for group in self.optimizer.param_groups:
            group["lr"] = settings.learning_rate * (_LATE_RATE if late else 1.0)
        memorized, ordinary = (
            _drawn(examples, settings.rows, settings.seed, self.done) for examples in (memorized, ordinary)
        )
        loss, self.factors.grad = self.gradient(predict, memorized, ordinary, cost)
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
    predict: PredictNoise, examples: Sequence[Example], factors: dict[str, torch.Tensor], cost: Cost
) -> float:
    """E or O over all of the examples."""
    cost.forward += len(examples)
    return float(torch.stack([relative_error(predict, example, factors) for example in examples]).mean())


def _drawn(examples: Sequence[Example], count: int, seed: int, step: int) -> list[Example]:
    """So many of the examples, other ones at every step until all have been taken."""
    if not examples:
        return []
    order = torch.randperm(len(examples), generator=torch.Generator().manual_seed(seed)).tolist()
    return [examples[order[(step * count + number) % len(order)]] for number in range(min(count, len(examples)))]
