"""Early rejection in NeMo Localize's refinement, beside evaluating every set with all seeds: decisions and rows.

Toy networks draw an image from their neurons, over what depends on the noise; neurons act differently from seed to
seed. Half of the searches stall, half keep only some of the seeds, a quarter have the official score (latent 44).
"""

from __future__ import annotations

import time

import numpy as np
import torch

from studies.common import host, results

SEARCHES, QUICK_SEARCHES = 200, 40
SEEDS = 10


class Toy:
    """``predict(noise, factors)`` of a random network with three value layers."""

    def __init__(self, side: int, widths: tuple[int, ...], generator: torch.Generator):
        def draw(*shape):
            return torch.randn(*shape, generator=generator)

        layer = host.pack("nodes.neurons.neuron_layers").NeuronLayer
        self.shape = (2, side, side)
        self.layers = tuple(layer(f"layer.{place}", "down", width) for place, width in enumerate(widths))
        self.values = {layer.path: draw(layer.width) * (draw(layer.width) > 0.5) * 2 for layer in self.layers}
        self.weights = {layer.path: draw(layer.width, 2 * side * side) for layer in self.layers}
        self.listening = {layer.path: draw(layer.width, 2) for layer in self.layers}
        self.mix = draw(2, 2, 3, 3) / 5
        self.z = [self.values[layer.path] * 1.5 for layer in self.layers]
        self.activations = [values.abs() for values in self.values.values()]

    def __call__(self, noise: torch.Tensor, factors: dict[str, torch.Tensor] | None = None) -> torch.Tensor:
        generated = torch.zeros(len(noise), *self.shape)
        seen = noise.mean((2, 3)) * self.shape[-1]
        for path, values in self.values.items():
            factor = (factors or {}).get(path, torch.ones(1, len(values)))
            active = values * (1 + 0.5 * (seen @ self.listening[path].T).tanh()) * factor
            generated = (generated + (active @ self.weights[path]).view(-1, *self.shape) / 3).tanh() * 2
        return noise + torch.conv2d(noise, self.mix, padding=1) + generated


def toys(quick: bool) -> dict[str, dict]:
    """Pairs of searches on toy networks."""
    nemo_search = host.pack("nodes.neurons.nemo_search")

    class Complete(nemo_search.Evaluator):
        """Evaluates every set with all seeds."""

        def score_below(self, mask, threshold):
            score = self.score(mask)
            return score if score < threshold else None

    same, ratios = [], {True: [], False: []}
    seconds = {True: [], False: []}
    for number in range(QUICK_SEARCHES if quick else SEARCHES):
        generator = torch.Generator().manual_seed(number)
        stalls, official, subset = number % 2 == 1, number // 2 % 4 == 1, number // 4 % 2 == 1
        toy = Toy(44 if official else 16, (24, 16, 20) if number % 4 else (60, 40, 80), generator)
        noise = torch.randn(SEEDS, *toy.shape, generator=generator)
        kept = sorted(torch.randperm(SEEDS, generator=generator)[: 2 + number % 8].tolist()) if subset else range(SEEDS)
        noise, neurons = noise[list(kept)], nemo_search.Neurons(toy.layers)
        criterion = nemo_search.Criterion.BETWEEN_SEEDS if number % 5 == 4 else nemo_search.Criterion.SAME_SEED
        target = 0.01 if stalls else _reached(nemo_search, toy, noise, neurons, criterion)
        found = {}
        for kind in (Complete, nemo_search.Evaluator):
            evaluator = kind(toy, noise, neurons, criterion)
            begun = time.process_time()
            settings = nemo_search.SearchSettings(target_score=target)
            *_, result = nemo_search.search(toy.z, toy.activations, evaluator, settings)
            found[kind] = (result.refined, result.converged, evaluator.rows, time.process_time() - begun)
        complete, ours = found[Complete], found[nemo_search.Evaluator]
        same.append(complete[:2] == ours[:2])
        ratios[stalls].append(complete[2] / ours[2])
        seconds[stalls].append(complete[3] / ours[3])
        name = f"{number}: {'stalled' if stalls else 'converging'}, {criterion}, {len(noise)} seeds"
        print(f"{name}: {complete[2]} rows, early {ours[2]}, same neurons {same[-1]}", flush=True)
    what = "searches on toy networks with the neurons of evaluating every set with all seeds"
    numbers = {"toys: same neurons": results.fraction(np.array(same), what)}
    for stalls, name in ((False, "converging"), (True, "stalled")):
        what = "rows of the network with all seeds over those with early rejection, mean of the searches"
        numbers[f"toys: fewer rows, {name}"] = results.bootstrap(np.array(ratios[stalls]), what, "times")
        what = "the same of CPU seconds"
        numbers[f"toys: fewer seconds, {name}"] = results.bootstrap(np.array(seconds[stalls]), what, "times")
    return numbers


def _reached(nemo_search, toy: Toy, noise: torch.Tensor, neurons, criterion) -> float:
    """A target score between two steps of the selection."""
    evaluator = nemo_search.Evaluator(toy, noise, neurons, criterion)
    scores = [
        evaluator.score(neurons.mask(nemo_search.select(toy.z, toy.activations, theta, k)))
        for theta, k in nemo_search.selection_schedule(nemo_search.SearchSettings())
    ]
    lowest = min(range(len(scores)), key=scores.__getitem__)
    before = min(scores[:lowest], default=1.0)
    return (scores[lowest] + before) / 2
