"""Reference runs that take seconds: a ring of Gaussians in the plane, and handwritten digits of 8 x
8 pixels.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch

from ..common import host, results
from ..common.similarity import frechet
from .pairing import ASSIGN, VANILLA, WITHIN, Batches, Mode, nearest, pool

METHOD = host.pack("nodes.noise.scratch_training")
EULER = (2, 4, 20)
SAMPLES = 2000


def ring(count: int, seed: int) -> torch.Tensor:
    """Eight Gaussians of deviation 0.1 on a circle of radius 2: (N, 2)."""
    generator = torch.Generator().manual_seed(seed)
    angle = torch.randint(8, (count,), generator=generator) * (math.pi / 4)
    return 2 * torch.stack([angle.cos(), angle.sin()], 1) + 0.1 * torch.randn(
        count, 2, generator=generator
    )


def wasserstein(a: torch.Tensor, b: torch.Tensor) -> float:
    """The exact 2-Wasserstein distance of two point sets of one size."""
    from scipy.optimize import linear_sum_assignment

    cost = torch.cdist(a, b).square().numpy()
    return float(math.sqrt(cost[linear_sum_assignment(cost)].mean()))


def ring_run(
    mode: Mode, seed: int, looks: Sequence[int], euler: int = 4
) -> tuple[list[float], float]:
    """Distances of 1,024 samples from fresh data at the looks, and the training loss of the end."""
    torch.manual_seed(seed)
    noise, truth = (
        torch.randn(1024, 2, generator=torch.Generator().manual_seed(seed)),
        ring(1024, seed + 50_000),
    )

    def look(network) -> float:
        return wasserstein(METHOD.sample(network, noise, euler), truth)

    batches = Batches(data=ring(20_000, seed), size=256, mode=mode, seed=seed)
    seen, loss = METHOD.train(METHOD.Perceptron(2, 128), batches, looks, look, seed)
    return [one.score for one in seen], loss


def digits_run(
    mode: Mode, seed: int, looks: Sequence[int], batch: int = 256, classes: bool = False
) -> tuple[list[dict[int, float]], list[float], float]:
    """At each look the Frechet distance by Euler steps, in pixels; the seconds of training; the
    loss of the end.
    """
    torch.manual_seed(seed)
    data, target = METHOD.digits()
    generator = torch.Generator().manual_seed(seed + 7)
    noise = torch.randn(SAMPLES, 64, generator=generator)
    requested = (
        target[torch.randint(len(target), (SAMPLES,), generator=generator)] if classes else None
    )

    def look(network) -> dict[int, float]:
        samples = {steps: METHOD.sample(network, noise, steps, requested) for steps in EULER}
        return {steps: frechet(found.numpy(), data.numpy()) for steps, found in samples.items()}

    network = METHOD.Perceptron(64, 256, 10 if classes else 0)
    labels = target if classes or mode.within else None
    seen, loss = METHOD.train(
        network,
        Batches(data=data, size=batch, mode=mode, seed=seed, labels=labels),
        looks,
        look,
        seed,
    )
    return [one.score for one in seen], [one.seconds for one in seen], loss


def measure_ring(quick: bool = False) -> dict[str, dict]:
    """Points in the plane, by assigned and by unpaired noise."""
    numbers, seeds = {}, range(5)
    looks = (200,) if quick else (200, 1000)
    for mode in (VANILLA, ASSIGN):
        runs = [ring_run(mode, seed, looks) for seed in seeds]
        for place, step in enumerate(looks):
            values = np.array([scores[place] for scores, _ in runs])
            numbers[f"ring, {mode.name}, W2 at step {step}"] = results.bootstrap(
                values,
                "1,024 samples by 4 Euler steps against fresh data, over seeds; its floor is 0.26",
                "W2",
            )
        losses = np.array([loss for _, loss in runs])
        numbers[f"ring, {mode.name}, training loss"] = results.bootstrap(
            losses, "mean of the last 50 steps", "loss"
        )
    return numbers


def measure_digits(quick: bool = False) -> dict[str, dict]:
    """Digits without classes, over steps and over sampling steps, in every mode."""
    seeds = _seeds(quick)
    looks = (250, 500) if quick else (125, 250, 500, 1000, 2000)
    modes = (ASSIGN, nearest(4)) if quick else (ASSIGN, nearest(2), nearest(4), nearest(8))
    plain = [digits_run(VANILLA, seed, looks) for seed in seeds]
    numbers: dict[str, dict] = {}
    _tell(numbers, "digits, vanilla", looks, plain, "batch 256")
    for mode in modes:
        ours = looks if quick else looks[:-1]
        runs = [digits_run(mode, seed, ours) for seed in seeds]
        _tell(numbers, f"digits, {mode.name}", ours, runs, "batch 256")
        for euler in EULER:
            ratios = np.array(
                [
                    run[0][ours.index(500)][euler] / theirs[0][looks.index(500)][euler]
                    for run, theirs in zip(runs, plain, strict=True)
                ]
            )
            numbers[f"digits, {mode.name} over vanilla, {euler} Euler steps, step 500"] = (
                results.bootstrap(ratios, "ratio of Frechet distances, over seeds", "ratio")
            )
        paces = np.array(
            [
                run[1][-1] / ours[-1] / (theirs[1][-1] / looks[-1])
                for run, theirs in zip(runs, plain, strict=True)
            ]
        )
        numbers[f"digits, {mode.name} over vanilla, CPU time of a step"] = results.bootstrap(
            paces, "pairing done in line with so small a network", "ratio"
        )
        numbers |= {} if quick else _speed_up(mode, looks, runs, plain)
    return numbers


def _speed_up(mode: Mode, looks: Sequence[int], runs: list, plain: list) -> dict[str, dict]:
    """How much earlier a mode reaches vanilla's best score at 20 Euler steps, in steps and in CPU
    seconds.
    """
    found: dict[str, list[float]] = {"steps": [], "CPU seconds": []}
    for (ours, our_seconds, _), (theirs, their_seconds, _) in zip(runs, plain, strict=True):
        best = min(range(len(theirs)), key=lambda place: theirs[place][20])
        reached = next(
            (place for place, score in enumerate(ours) if score[20] <= theirs[best][20]), None
        )
        if reached is not None:
            found["steps"].append(looks[best] / looks[reached])
            found["CPU seconds"].append(their_seconds[best] / our_seconds[reached])
    what = (
        f"vanilla's over its own, to vanilla's best of {looks[-1]} steps at 20 Euler steps; looked "
        "at after "
    )
    return {
        f"digits, {mode.name}, speed-up in {kind}": results.bootstrap(
            np.array(values), f"{what}{', '.join(map(str, looks))}; seeds that got there", "times"
        )
        for kind, values in found.items()
        if values
    }


def measure_classes(quick: bool = False) -> dict[str, dict]:
    """Digits by class: assignment across classes skews what noise a class is trained with."""
    numbers, looks = {}, (250,) if quick else (1000,)
    for mode in (VANILLA, ASSIGN, WITHIN) + (() if quick else (nearest(4),)):
        runs = [digits_run(mode, seed, looks, classes=True) for seed in _seeds(quick)]
        _tell(
            numbers,
            f"digits by class, {mode.name}",
            looks,
            runs,
            "the classes requested as the data has them",
        )
    return numbers


def measure_batches(quick: bool = False) -> dict[str, dict]:
    """Digits in batches of 16, where a pool assigns what a batch alone cannot."""
    numbers, looks = {}, (250, 500) if quick else (500, 2000)
    for mode in (VANILLA, ASSIGN, pool(256)) + (() if quick else (pool(1024), nearest(4))):
        runs = [digits_run(mode, seed, looks, batch=16) for seed in _seeds(quick)]
        _tell(numbers, f"digits, batch 16, {mode.name}", looks, runs, "batch 16")
    return numbers


def _seeds(quick: bool) -> range:
    return range(2 if quick else 5)


def _tell(numbers: dict, name: str, looks: Sequence[int], runs: list, how: str) -> None:
    for place, step in enumerate(looks):
        for euler in EULER:
            values = np.array([scores[place][euler] for scores, _, _ in runs])
            numbers[f"{name}, Frechet, {euler} Euler steps, step {step}"] = results.bootstrap(
                values,
                f"{SAMPLES} samples against the data in pixels, {how}, over seeds",
                "distance",
            )
    losses = np.array([loss for _, _, loss in runs])
    numbers[f"{name}, training loss"] = results.bootstrap(
        losses, "mean of the last 50 steps; no evidence", "loss"
    )
