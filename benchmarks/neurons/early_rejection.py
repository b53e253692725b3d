"""NeMo Localize's search beside evaluating every set whole with all seeds: decisions, rows and
seconds.

What the search spares: rows, by early rejection in the refinement, and on a network the blocks
before the layer whose neurons changed.

Toy networks draw an image from their neurons, over what depends on the noise; neurons act
differently from seed to seed. Half of the searches stall, half keep only some of the seeds, a
quarter have the official score (latent 44). At latent 64, on SD1.5's layout, half stall and all
keep 2 to 4 of ten seeds; the long ones, at latent 32, stall with all ten.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from studies.common import host, results

from . import networks

SEARCHES, QUICK_SEARCHES = 200, 40
SEEDS = 10
_STALLED_TARGET = 0.01  # no set of neurons reaches it


class Toy:
    """``predict(noise, factors)`` of a random network with three value layers."""

    def __init__(self, side: int, widths: tuple[int, ...], generator: torch.Generator):
        def draw(*shape):
            return torch.randn(*shape, generator=generator)

        layer = host.pack("nodes.neurons.neuron_layers").NeuronLayer
        self.shape = (2, side, side)
        self.layers = tuple(
            layer(f"layer.{place}", "down", width) for place, width in enumerate(widths)
        )
        self.values = {
            layer.path: draw(layer.width) * (draw(layer.width) > 0.5) * 2 for layer in self.layers
        }
        self.weights = {layer.path: draw(layer.width, 2 * side * side) for layer in self.layers}
        self.listening = {layer.path: draw(layer.width, 2) for layer in self.layers}
        self.mix = draw(2, 2, 3, 3) / 5
        self.z = [self.values[layer.path] * 1.5 for layer in self.layers]
        self.activations = [values.abs() for values in self.values.values()]

    def __call__(
        self, noise: torch.Tensor, factors: dict[str, torch.Tensor] | None = None
    ) -> torch.Tensor:
        generated = torch.zeros(len(noise), *self.shape)
        seen = noise.mean((2, 3)) * self.shape[-1]
        for path, values in self.values.items():
            factor = (factors or {}).get(path, torch.ones(1, len(values)))
            active = values * (1 + 0.5 * (seen @ self.listening[path].T).tanh()) * factor
            generated = (
                generated + (active @ self.weights[path]).view(-1, *self.shape) / 3
            ).tanh() * 2
        return noise + torch.conv2d(noise, self.mix, padding=1) + generated


def toys(quick: bool) -> dict[str, dict]:
    """Pairs of searches on toy networks."""
    nemo_search, compared = host.pack("nodes.neurons.nemo_search"), _Compared("toys")
    for number in range(QUICK_SEARCHES if quick else SEARCHES):
        generator = torch.Generator().manual_seed(number)
        stalls, official, subset = number % 2 == 1, number // 2 % 4 == 1, number // 4 % 2 == 1
        toy = Toy(44 if official else 16, (24, 16, 20) if number % 4 else (60, 40, 80), generator)
        noise = torch.randn(SEEDS, *toy.shape, generator=generator)
        kept = (
            sorted(torch.randperm(SEEDS, generator=generator)[: 2 + number % 8].tolist())
            if subset
            else range(SEEDS)
        )
        noise, neurons = noise[list(kept)], nemo_search.Neurons(toy.layers)
        criterion = (
            nemo_search.Criterion.BETWEEN_SEEDS
            if number % 5 == 4
            else nemo_search.Criterion.SAME_SEED
        )
        problem = Problem(toy, toy, noise, neurons, toy.z, toy.activations, criterion)
        compared.search(problem, _STALLED_TARGET if stalls else _reached(problem), stalls)
    return compared.numbers("searches on toy networks")


def latent64(quick: bool) -> dict[str, dict]:
    """Pairs of searches at SD1.5's latent size, on a narrow network of its layout, with 2 to 4 of
    ten seeds kept.
    """
    cases = networks.random_sd15(32, 64, 6, prompts=2 if quick else 12, heads=1)
    return _on_networks(cases, "latent 64", lambda number: (number % 2 == 1, 2 + number % 3))


def long(quick: bool) -> dict[str, dict]:
    """Pairs of long searches, all stalled with ten seeds, on a narrow network of SD1.5's layout."""
    cases = networks.random_sd15(32, 32, 24 if quick else 100, prompts=1 if quick else 6, heads=1)
    return _on_networks(cases, "long", lambda number: (True, SEEDS))


def _on_networks(
    cases: list[networks.Case], name: str, kind: Callable[[int], tuple[bool, int]]
) -> dict[str, dict]:
    """Pairs of searches on random networks; ``kind``: whether a search stalls and how many seeds it
    keeps.
    """
    nemo_search, compared = host.pack("nodes.neurons.nemo_search"), _Compared(name)
    drawn = host.pack("nodes.neurons.memorization_score").seeded_noise(cases[0].shape, SEEDS, 1)
    for number, case in enumerate(cases):
        generator, (stalls, kept) = torch.Generator().manual_seed(number), kind(number)
        noise = drawn[sorted(torch.randperm(SEEDS, generator=generator)[:kept].tolist())]
        neurons = nemo_search.Neurons(tuple(case.layers))

        def work(predict, case=case, noise=noise, neurons=neurons, stalls=stalls):
            whole, criterion = (
                functools.partial(predict, replay=False),
                nemo_search.Criterion.SAME_SEED,
            )
            problem = Problem(predict, whole, noise, neurons, case.z, case.activations, criterion)
            compared.search(
                problem, _STALLED_TARGET if stalls else _reached(problem, steps=4), stalls
            )

        networks.at_first_step(case, work)
    side = cases[0].shape[-1]
    return compared.numbers(
        f"searches at latent {side} on SD1.5's layout, 32 channels wide, random weights"
    )


@dataclass(frozen=True)
class Problem:
    """What one search needs but its target."""

    predict: Callable
    whole: Callable  # the same without replay
    noise: torch.Tensor
    neurons: object
    z: list[torch.Tensor]
    activations: list[torch.Tensor]
    criterion: str


class _Compared:
    """Searches with all seeds for every set and with early rejection, one beside the other."""

    def __init__(self, name: str):
        self._name, self._same = name, []
        # stalled or not -> ratios
        self._rows, self._seconds, self._possible, self._faster = (
            {True: [], False: []} for _ in range(4)
        )

    def search(self, problem: Problem, target: float, stalls: bool) -> None:
        """Run both to their ends."""
        nemo_search, found = host.pack("nodes.neurons.nemo_search"), []

        class Complete(nemo_search.Evaluator):
            """Evaluates every set with all seeds; ``spared``: rows that were not needed to reject
            one, by phase.
            """

            spared, enough = (
                [0, 0],
                2 if problem.criterion == nemo_search.Criterion.BETWEEN_SEEDS else 1,
            )

            def score(self, mask):
                return self._counted(mask, 0, lambda score: score > target)

            def score_below(self, mask, threshold):
                score = self._counted(mask, 1, lambda score: score >= threshold)
                return score if score < threshold else None

            def _counted(self, mask, phase, rejects):
                before = self.rows
                score = super().score(mask)
                if rejects(score):
                    self.spared[phase] += max(self.rows - before - self.enough, 0)
                return score

        number = len(self._same)
        kinds = [Complete, nemo_search.Evaluator]
        for kind in kinds if number % 2 else reversed(kinds):
            begun = time.process_time()
            predict = problem.whole if kind is Complete else problem.predict
            evaluator = kind(predict, problem.noise, problem.neurons, problem.criterion)
            settings = nemo_search.SearchSettings(target_score=target)
            *_, result = nemo_search.search(problem.z, problem.activations, evaluator, settings)
            assert result.converged != stalls, (
                "The target does not make this search end as it should."
            )
            found.append(
                (kind is Complete, result.refined, evaluator.rows, time.process_time() - begun)
            )
            if kind is Complete:
                in_selection, in_refinement = evaluator.spared
        (_, refined, rows, seconds), (_, expected, all_rows, all_seconds) = sorted(
            found, key=lambda one: one[0]
        )
        self._same.append(refined == expected)
        self._rows[stalls].append(all_rows / rows)
        self._seconds[stalls].append(all_seconds / seconds)
        fewest = all_rows - in_refinement
        self._possible[stalls].append((all_rows / fewest, all_rows / (fewest - in_selection)))
        self._faster[stalls].append(all_seconds / (seconds / rows * fewest))
        print(
            f"{number}: {'stalled' if stalls else 'converging'}, {problem.criterion}, "
            f"{len(problem.noise)} seeds: {all_rows} rows, {all_seconds:.2f} s, early {rows}, "
            f"{seconds:.2f} s, at least {fewest}, same neurons {self._same[-1]}",
            flush=True,
        )

    def numbers(self, searches: str) -> dict[str, dict]:
        """The numbers of the result file."""
        what = f"{searches} with the neurons of evaluating every set with all seeds"
        numbers = {f"{self._name}: same neurons": results.fraction(np.array(self._same), what)}
        for stalls, kind in ((False, "converging"), (True, "stalled")):
            if not self._rows[stalls]:
                continue
            what = (
                "rows of the network with all seeds over those of the search, mean of the searches"
            )
            numbers[f"{self._name}: fewer rows, {kind}"] = results.bootstrap(
                np.array(self._rows[stalls]), what, "times"
            )
            what = "the same of CPU seconds"
            numbers[f"{self._name}: fewer seconds, {kind}"] = results.bootstrap(
                np.array(self._seconds[stalls]), what, "times"
            )
            what = (
                "the same with the rows that no order of the seeds undercuts, at the search's "
                "seconds a row"
            )
            numbers[f"{self._name}: fewer seconds possible, {kind}"] = results.bootstrap(
                np.array(self._faster[stalls]), what, "times"
            )
            refinement, both = np.array(self._possible[stalls]).T
            what = (
                "the rows that no order of the seeds undercuts: one seed (or pair) rejects, all "
                "seeds accept"
            )
            numbers[f"{self._name}: fewer rows possible, {kind}"] = results.bootstrap(
                refinement, f"{what}; the selection in full", "times"
            )
            numbers[f"{self._name}: fewer rows possible, {kind}, selection too"] = (
                results.bootstrap(both, what, "times")
            )
        ratios = [1 / ratio for kind in self._rows.values() for ratio in kind]
        what = (
            "the most rows that the search took for those of evaluating with all seeds, of all "
            "searches"
        )
        numbers[f"{self._name}: most rows"] = {
            "value": max(ratios),
            "n": len(ratios),
            "unit": "times",
            "what": what,
        }
        return numbers


def _reached(problem: Problem, steps: int | None = None) -> float:
    """A target score between two of the first ``steps`` of the selection."""
    nemo_search = host.pack("nodes.neurons.nemo_search")
    evaluator = nemo_search.Evaluator(
        problem.predict, problem.noise, problem.neurons, problem.criterion
    )
    scores = [
        evaluator.score(
            problem.neurons.mask(nemo_search.select(problem.z, problem.activations, theta, k))
        )
        for theta, k in list(nemo_search.selection_schedule(nemo_search.SearchSettings()))[:steps]
    ]
    lowest = min(range(len(scores)), key=scores.__getitem__)
    before = min(scores[:lowest], default=1.0)
    return (scores[lowest] + before) / 2
