"""Localizing prompts: the official schedule of calls and NeMo Localize (exact), in turn in one
process.

Seconds are of CPU time, which other work on the machine does not lengthen.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

import numpy as np

from studies.common import host, results

from . import networks
from .official import Schedule, search

#: Seeds of a search, all of which are kept: the official number, and the costliest case.
SEEDS, QUICK_SEEDS = 10, 3
OFFICIAL, EXACT = "official schedule", "exact"


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
    """Memorized names of the demo model."""
    seeds = QUICK_SEEDS if quick else SEEDS
    return _compared(networks.demo(seeds, 2 if quick else 6), seeds)


def _blocked(case: networks.Case, steps: int, seeds: int) -> networks.Case:
    return networks.blocked_after(case, steps, *_noise_and_neurons(case, seeds))


def _compared(cases: Iterable[networks.Case], seeds: int) -> dict[str, dict]:
    """Both in full on each case."""
    seconds, rows = ({name: [] for name in (OFFICIAL, EXACT)} for _ in range(2))
    same, kept = [], []
    for case in cases:
        found = {}
        networks.at_first_step(
            case, lambda predict, case=case: predict(_noise_and_neurons(case, seeds)[0])
        )  # warm up
        for name in (OFFICIAL, EXACT):
            taken, found[name], count = _searched(case, seeds, name)
            seconds[name].append(taken)
            rows[name].append(count)
            print(
                f"{case.name}, {name}: {taken:.1f} s, {count} rows, {sum(map(len, found[name]))} "
                "neurons",
                flush=True,
            )
        same.append(found[EXACT] == found[OFFICIAL])
        kept.append(sum(map(len, found[EXACT])))
    numbers = {}
    for name in (OFFICIAL, EXACT):
        each = f"a search with {seeds} seeds, mean of the prompts"
        numbers[f"{case.name}: seconds, {name}"] = results.bootstrap(
            np.array(seconds[name]), each, "CPU s"
        )
        what = "rows of noise given to the network, mean of the prompts"
        numbers[f"{case.name}: rows, {name}"] = results.bootstrap(
            np.array(rows[name]), what, "rows"
        )
    ratio = np.array(seconds[OFFICIAL]) / np.array(seconds[EXACT])
    what = "seconds of the official schedule over ours, mean of the prompts"
    numbers[f"{case.name}: speed-up, {EXACT}"] = results.bootstrap(ratio, what, "times")
    what = "prompts with the neurons of the official schedule, in float32"
    numbers[f"{case.name}: same neurons, {EXACT}"] = results.fraction(np.array(same), what)
    what = "found, mean of the prompts"
    return numbers | {f"{case.name}: neurons": results.bootstrap(np.array(kept), what, "neurons")}


def _searched(case: networks.Case, seeds: int, name: str) -> tuple[float, list[list[int]], int]:
    """CPU seconds, neurons and rows of one search."""
    noise, neurons = _noise_and_neurons(case, seeds)
    nemo_search = host.pack("nodes.neurons.nemo_search")

    def official(predict):
        schedule = Schedule(
            predict,
            noise,
            list(range(seeds)),
            neurons,
            host.pack("nodes.neurons.memorization_score"),
        )
        return search(
            case.z, case.activations, schedule, nemo_search, case.threshold
        ), schedule.rows

    def ours(predict):
        evaluator = nemo_search.Evaluator(predict, noise, neurons)
        settings = nemo_search.SearchSettings(target_score=case.threshold)
        *_, result = nemo_search.search(case.z, case.activations, evaluator, settings)
        return result.refined, evaluator.rows

    begun = time.process_time()
    left, rows = networks.at_first_step(case, official if name == OFFICIAL else ours)
    return time.process_time() - begun, left, rows


def _noise_and_neurons(case: networks.Case, seeds: int):
    noise = host.pack("nodes.neurons.memorization_score").seeded_noise(case.shape, seeds, 1)
    return noise, host.pack("nodes.neurons.nemo_search").Neurons(tuple(case.layers))
