"""Localising one prompt: the official schedule of calls, exact mode and fast mode, in turn in one process."""

from __future__ import annotations

import time

import torch

from ..common import host
from . import networks
from .official import Schedule, search


def measure(quick: bool, demo: bool) -> dict[str, dict]:
    """Seconds, rows of noise evaluated, and whether the neurons agree, for each network."""
    if quick:
        cases = [networks.random_sd15(64, 16, 16, 0.9)]
    else:
        cases = [networks.random_sd15(96, 16, 48, 0.9), networks.random_sd15(64, 44, 24, 0.9)]
    if demo:
        cases.append(networks.demo(4))
    numbers = {}
    for case in cases:
        numbers |= _case(case, 3 if quick else 10 if "44" not in case.name else 4)
    return numbers


def _case(case: networks.Case, seeds: int) -> dict[str, dict]:
    method, evaluation = host.pack("nodes.neurons.memorization"), host.pack("nodes.neurons.evaluation")
    localization, speculation = host.pack("nodes.neurons.localization"), host.pack("nodes.neurons.speculation")
    noise = method.first_noise(case.shape, seeds, 1)
    neurons = evaluation.Neurons(tuple(case.layers))
    settings = localization.Settings(case.threshold)

    def ours(predict, refiner):
        # All seeds are taken for memorised, the costliest case.
        evaluator = evaluation.Evaluator(predict, noise, neurons, 0.0, evaluation.SAME_SEED)
        found = localization.search(case.z, case.activations, evaluator, settings, refiner)
        return found.refined, evaluator.rows, len(found.initial) and sum(map(len, found.initial))

    def official(predict):
        schedule = Schedule(predict, noise, list(range(seeds)), neurons, method)
        left = search(case.z, case.activations, schedule, neurons, localization, case.threshold)
        return left, schedule.rows, 0

    modes = {"official schedule": official, "exact": lambda p: ours(p, localization.refine),
             "fast": lambda p: ours(p, speculation.refine)}  # fmt: skip
    at_first_step = host.pack("nodes.host.first_step").at_first_step
    seconds, rows, kept = {}, {}, {}
    with torch.inference_mode():
        at_first_step(case.model, case.conditioning, case.shape, 961, lambda predict: predict(noise))  # warm up
        for name, run in modes.items():
            begun = time.perf_counter()
            kept[name], rows[name], listed = at_first_step(case.model, case.conditioning, case.shape, 961, run)
            seconds[name] = time.perf_counter() - begun
            print(f"{case.name}, {name}: {seconds[name]:.1f} s, {rows[name]} rows, {sum(map(len, kept[name]))} neurons")
    numbers = {}
    for name in modes:
        numbers[f"{case.name}: seconds, {name}"] = _one(seconds[name], "s", f"one search, {seeds} seeds")
        numbers[f"{case.name}: rows, {name}"] = _one(rows[name], "rows", "rows of noise through the network")
        if name != "official schedule":
            same = float(kept[name] == kept["official schedule"])
            numbers[f"{case.name}: same neurons, {name}"] = _one(
                same, "yes is 1", "as the official schedule in float32"
            )
            ratio = seconds["official schedule"] / seconds[name]
            numbers[f"{case.name}: speed-up, {name}"] = _one(
                ratio, "times", "seconds of the official schedule over ours"
            )
    numbers[f"{case.name}: neurons"] = _one(sum(map(len, kept["fast"])), "neurons", f"kept of {listed} listed")
    return numbers


def _one(value: float, unit: str, what: str) -> dict:
    return {"value": float(value), "low": float(value), "high": float(value), "n": 1, "unit": unit, "what": what}
