"""Localising prompts: the official schedule of calls, exact mode and fast mode, in turn in one process.

Seconds are of CPU time, which other work on the machine does not lengthen.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

import numpy as np

from ..common import host, results
from . import networks
from .official import Schedule, search

#: Seeds of a search, all of which look memorised: the official number, and the costliest case.
SEEDS, QUICK_SEEDS = 10, 3
OFFICIAL, EXACT, FAST = "official schedule", "exact", "fast"


def narrow(quick: bool) -> dict[str, dict]:
    """Several prompts on a narrow SD1.5."""
    seeds = QUICK_SEEDS if quick else SEEDS
    cases = networks.random_sd15(64, 16, 8, prompts=2 if quick else 4)
    return _compared((_blocked(case, 5, seeds) for case in cases), seeds)


def full_width(quick: bool) -> dict[str, dict]:
    """One prompt on SD1.5 in its real width; quick: half of it."""
    seeds = QUICK_SEEDS if quick else SEEDS
    cases = networks.random_sd15(160 if quick else 320, 8, 8)
    return _compared((_blocked(case, 3, seeds) for case in cases), seeds)


def demo(quick: bool) -> dict[str, dict]:
    """Memorised names of the demo model."""
    seeds = QUICK_SEEDS if quick else SEEDS
    return _compared(networks.demo(seeds, 2 if quick else 6), seeds)


def _blocked(case: networks.Case, looks: int, seeds: int) -> networks.Case:
    return networks.blocked_after(case, looks, *_given(case, seeds))


def _compared(cases: Iterable[networks.Case], seeds: int) -> dict[str, dict]:
    """All three in full on each case."""
    seconds, rows = ({name: [] for name in (OFFICIAL, EXACT, FAST)} for _ in range(2))
    same, kept = {EXACT: [], FAST: []}, []
    for case in cases:
        found = {}
        networks.at_first_step(case, lambda predict, case=case: predict(_given(case, seeds)[0]))  # warm up
        for name in (OFFICIAL, EXACT, FAST):
            taken, found[name], count = _searched(case, seeds, name)
            seconds[name].append(taken)
            rows[name].append(count)
            print(f"{case.name}, {name}: {taken:.1f} s, {count} rows, {sum(map(len, found[name]))} neurons", flush=True)
        for name, answers in same.items():
            answers.append(found[name] == found[OFFICIAL])
        kept.append(sum(map(len, found[FAST])))
    return _numbers(case.name, seeds, seconds, rows, same, kept)


def _numbers(name: str, seeds: int, seconds: dict, rows: dict, same: dict, kept: list[int]) -> dict[str, dict]:
    numbers = {}
    for mode in (OFFICIAL, EXACT, FAST):
        each = f"a search with {seeds} seeds, mean of the prompts"
        numbers[f"{name}: seconds, {mode}"] = results.bootstrap(np.array(seconds[mode]), each, "CPU s")
        what = "rows of noise given to the network, mean of the prompts"
        numbers[f"{name}: rows, {mode}"] = results.bootstrap(np.array(rows[mode]), what, "rows")
    for mode in (EXACT, FAST):
        ratio = np.array(seconds[OFFICIAL]) / np.array(seconds[mode])
        what = "seconds of the official schedule over ours, mean of the prompts"
        numbers[f"{name}: speed-up, {mode}"] = results.bootstrap(ratio, what, "times")
        what = "prompts with the neurons of the official schedule, in float32"
        numbers[f"{name}: same neurons, {mode}"] = results.share(np.array(same[mode]), what)
    return numbers | {f"{name}: neurons": results.bootstrap(np.array(kept), "found, mean of the prompts", "neurons")}


def _searched(case: networks.Case, seeds: int, name: str) -> tuple[float, list[list[int]], int]:
    """CPU seconds, neurons and rows of one search."""
    noise, neurons = _given(case, seeds)
    evaluation, localization = host.pack("nodes.neurons.evaluation"), host.pack("nodes.neurons.localization")

    def official(predict):
        schedule = Schedule(predict, noise, list(range(seeds)), neurons, host.pack("nodes.neurons.memorization"))
        left = search(case.z, case.activations, schedule, neurons, localization, case.threshold)
        return left, schedule.rows

    def ours(predict):
        refiner = localization.refine if name == EXACT else host.pack("nodes.neurons.speculation").refine
        evaluator = evaluation.Evaluator(predict, noise, neurons, 0.0, evaluation.SAME_SEED)
        settings = localization.Settings(case.threshold)
        found = localization.search(case.z, case.activations, evaluator, settings, refiner)
        return found.refined, evaluator.rows

    begun = time.process_time()
    left, rows = networks.at_first_step(case, official if name == OFFICIAL else ours)
    return time.process_time() - begun, left, rows


def _given(case: networks.Case, seeds: int):
    noise = host.pack("nodes.neurons.memorization").first_noise(case.shape, seeds, 1)
    return noise, host.pack("nodes.neurons.evaluation").Neurons(tuple(case.layers))
