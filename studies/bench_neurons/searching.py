"""Localising one prompt: the official schedule of calls, exact mode and fast mode, in turn in one process."""

from __future__ import annotations

import time

import numpy as np
import torch

from ..common import host
from . import networks
from .official import Schedule, search

#: Seeds of a search, all of which look memorised: the official number, and the costliest case.
SEEDS = 10


def measure(quick: bool, demo: bool) -> dict[str, dict]:
    """Seconds, rows of noise evaluated, and whether the neurons agree, for each network."""
    seeds = 3 if quick else SEEDS
    numbers = _searched(networks.random_sd15(64, 16, 8, 0.9965), seeds)
    if demo:
        numbers |= _searched(networks.demo(seeds), seeds)
    if not quick:
        numbers |= _counted(networks.random_sd15(320, 8, 16, 0.99), seeds)
    return numbers


def _searched(case: networks.Case, seeds: int) -> dict[str, dict]:
    """All three in full."""
    localization, speculation = host.pack("nodes.neurons.localization"), host.pack("nodes.neurons.speculation")
    noise, neurons = _given(case, seeds)

    def official(predict):
        schedule = Schedule(predict, noise, list(range(seeds)), neurons, host.pack("nodes.neurons.memorization"))
        left = search(case.z, case.activations, schedule, neurons, localization, case.threshold)
        return left, schedule.rows

    def ours(refiner):
        def work(predict):
            found, evaluator = _found(case, noise, neurons, refiner, predict)
            return found.refined, evaluator.rows

        return work

    modes = {
        "official schedule": official,
        "exact": ours(localization.refine),
        "fast": ours(speculation.refine),
    }
    _seconds(case, lambda predict: predict(noise))  # warm up
    seconds, rows, kept, numbers = {}, {}, {}, {}
    for name, run in modes.items():
        seconds[name], (kept[name], rows[name]) = _seconds(case, run)
        print(f"{case.name}, {name}: {seconds[name]:.1f} s, {rows[name]} rows, {sum(map(len, kept[name]))} neurons")
        numbers[f"{case.name}: seconds, {name}"] = _one(seconds[name], "s", f"one search, {seeds} seeds")
        numbers[f"{case.name}: rows, {name}"] = _one(rows[name], "rows", "rows of noise given to the network")
    for name in ("exact", "fast"):
        numbers |= _speed_up(case, name, seconds["official schedule"] / seconds[name], "measured")
        same = float(kept[name] == kept["official schedule"])
        numbers[f"{case.name}: same neurons, {name}"] = _one(same, "yes is 1", "as the official schedule in float32")
    return numbers | {f"{case.name}: neurons": _one(sum(map(len, kept["fast"])), "neurons", "found")}


def _counted(case: networks.Case, seeds: int) -> dict[str, dict]:
    """Fast mode in full; of the official schedule its calls, each as long as the median of three."""
    noise, neurons = _given(case, seeds)
    fast = host.pack("nodes.neurons.speculation").refine

    def timed(predict):
        taken = []
        for _ in range(4):  # the first warms up
            begun = time.perf_counter()
            predict(noise)
            taken.append(time.perf_counter() - begun)
        return float(np.median(taken[1:]))

    _, call = _seconds(case, timed)
    seconds, (found, evaluator) = _seconds(case, lambda predict: _found(case, noise, neurons, fast, predict))
    # At least: neurons of layers of which none is left may have been decided one by one as well.
    singles = sum(len(listed) for listed, left in zip(found.initial, found.refined, strict=True) if left)
    evaluations = 1 + len(found.trace) + sum(map(bool, found.initial)) + singles
    official = 2 * evaluations * call + len(found.trace) * call / seeds
    print(
        f"{case.name}: fast {seconds:.1f} s, {evaluator.rows} rows; official {evaluations} x 2 calls, {official:.0f} s"
    )
    return {
        f"{case.name}: seconds, official schedule": _one(
            official, "s", f"counted: 2 calls of {call:.2f} s for each of at least {evaluations} evaluations"
        ),
        f"{case.name}: seconds, fast": _one(seconds, "s", f"one search, {seeds} seeds"),
        f"{case.name}: rows, fast": _one(evaluator.rows, "rows", "rows of noise given to the network"),
        f"{case.name}: neurons": _one(sum(map(len, found.refined)), "neurons", "found"),
        **_speed_up(case, "fast", official / seconds, "official counted, fast measured"),
    }


def _given(case: networks.Case, seeds: int):
    noise = host.pack("nodes.neurons.memorization").first_noise(case.shape, seeds, 1)
    return noise, host.pack("nodes.neurons.evaluation").Neurons(tuple(case.layers))


def _found(case: networks.Case, noise, neurons, refiner, predict):
    """The search, and its evaluator."""
    evaluation, localization = host.pack("nodes.neurons.evaluation"), host.pack("nodes.neurons.localization")
    evaluator = evaluation.Evaluator(predict, noise, neurons, 0.0, evaluation.SAME_SEED)
    settings = localization.Settings(case.threshold)
    return localization.search(case.z, case.activations, evaluator, settings, refiner), evaluator


def _seconds(case: networks.Case, work) -> tuple[float, object]:
    """Wall time of work at the first step, and what it gives."""
    begun = time.perf_counter()
    with torch.inference_mode():
        result = host.pack("nodes.host.first_step").at_first_step(case.model, case.conditioning, case.shape, 961, work)
    return time.perf_counter() - begun, result


def _speed_up(case: networks.Case, name: str, ratio: float, how: str) -> dict[str, dict]:
    return {
        f"{case.name}: speed-up, {name}": _one(ratio, "times", f"seconds of the official schedule over ours, {how}")
    }


def _one(value: float, unit: str, what: str) -> dict:
    return {"value": float(value), "low": float(value), "high": float(value), "n": 1, "unit": unit, "what": what}
