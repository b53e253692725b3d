"""Contenders that take turns."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import numpy as np
import torch

from . import results


@contextmanager
def threads(count: int) -> Iterator[None]:
    """PyTorch with so many threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def times(
    contenders: Mapping[str, Callable[[], object]], turns: int, alone: bool = False
) -> dict[str, np.ndarray]:
    """Milliseconds of each contender's turns, (turns,) each; one turn before them warms up, every
    second is reversed.

    ``alone``: on a CPU the processor's time on one thread, whoever else uses it; on a GPU it makes
    no difference.
    """
    alone = alone and not torch.cuda.is_available()
    clock = time.process_time if alone else time.perf_counter
    found: dict[str, list[float]] = {name: [] for name in contenders}
    gc.collect()
    gc.freeze()  # what is there already is not looked through again before every turn
    try:
        with threads(1 if alone else torch.get_num_threads()):
            for turn in range(turns + 1):
                for name, contender in list(contenders.items())[:: -1 if turn % 2 else 1]:
                    gc.collect()
                    started = clock()
                    contender()
                    if turn:
                        found[name].append(1000 * (clock() - started))
    finally:
        gc.unfreeze()
    return {name: np.array(values) for name, values in found.items()}


def timing_numbers(
    where: str, measured: Mapping[str, np.ndarray], ours: str, what: str
) -> dict[str, dict]:
    """The medians, and how many times as long as ours the others take, turn by turn."""
    numbers = {}
    for name, values in measured.items():
        numbers[f"{where}, {name}"] = results.bootstrap(values, what, "ms", np.median)
        if name != ours:
            numbers[f"{where}, {name} over {ours}"] = results.bootstrap(
                values / measured[ours], f"ratio of times, turn by turn; {what}", "times", np.median
            )
    return numbers
