"""What looking in adds to an evaluation: differences of neighbors in time, many times over.

In a turn all contenders come one after the other, forwards and then backwards, so that what changes
slowly on a machine falls on each alike. Networks of a fifth of the width make many turns cheap. Of
what a tap costs beside its copies, work for each hook does not grow with the width, and there is
most of it where there are most modules, so depth stays whole; laying tokens out as images does
grow, and is measured at the full width too.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping
from functools import partial

import numpy as np
import torch

from studies.common import host, results
from studies.common.turns import threads

from . import tapping
from .networks import Bench

_WARM = 2


def rounds(contenders: Mapping[str, Callable[[], object]], turns: int) -> dict[str, np.ndarray]:
    """Milliseconds (turns,) of each contender, the mean of its two times in a turn.

    On a CPU the processor's time on one thread; on a GPU until the device has finished.
    """
    cuda = torch.cuda.is_available()
    clock = time.perf_counter if cuda else time.process_time
    found: dict[str, list[float]] = {name: [] for name in contenders}
    with threads(torch.get_num_threads() if cuda else 1):
        for _ in range(_WARM + turns):
            gc.collect()
            for order in (list(contenders), list(contenders)[::-1]):
                for name in order:
                    started = clock()
                    contenders[name]()
                    if cuda:
                        torch.cuda.synchronize()
                    found[name].append(1000 * (clock() - started))
    return {
        name: np.array(values[2 * _WARM :]).reshape(turns, 2).mean(1)
        for name, values in found.items()
    }


def added_numbers(
    name: str, measured: np.ndarray, plain: np.ndarray, about: str
) -> dict[str, dict]:
    """What a contender adds to the plain evaluation, turn by turn, and that as a fraction of it."""
    added = measured - plain
    about = f"turn by turn; {about}, {np.median(plain):.1f} ms"
    return {
        f"{name}: added": results.bootstrap(added, about, "ms", np.median),
        f"{name}: fraction added": results.bootstrap(
            added / np.median(plain), about, "fraction", np.median
        ),
    }


def measure(quick: bool) -> dict[str, dict]:
    """What taps and hooks add on the narrow networks, in ms and as a fraction of the real ones'
    evaluation.
    """
    numbers, turns = {}, 8 if quick else 20
    for family, name in tapping.sizes(quick).items():
        bench = Bench(name)
        outputs = tapping.by_hooks(
            bench,
            bench.chosen(host.pack("nodes.activations.select_ids").Preset.ALL_FEATURES),
            tapping.as_it_is,
        )
        times = rounds(
            {
                "plain": partial(tapping.plain, bench),
                "copies": partial(tapping.copies, outputs),
                "images": partial(tapping.copies, outputs, laid_out=True),
            },
            2,
        )
        layout = float(np.median(times["images"] - times["copies"]))
        del bench, outputs
        full = name, float(np.median(times["plain"])), layout
        numbers |= narrow(family, turns if family == "SD1.5" else turns // 2, full)
    return numbers


def narrow(family: str, turns: int, full: tuple[str, float, float]) -> dict[str, dict]:
    """What taps and hooks add to the narrow SD1.5 or SDXL.

    ``full``: of a real network the name, the milliseconds of an evaluation, and those of laying its
    tokens out.
    """
    name, selection = f"narrow {family}", host.pack("nodes.activations.select_ids")
    bench = Bench(name)
    ours, every = (
        bench.chosen(selection.Preset.RECOMMENDED),
        bench.chosen(selection.Preset.ALL_FEATURES),
    )
    wanted = {
        len(chosen): chosen
        for chosen in (ours[:1], ours, bench.chosen(selection.Preset.PAPER_FILTER), every)
    }
    hooks = f"hooks that append copies ({len(every)})"
    contenders = {"plain": partial(tapping.plain, bench)}
    contenders |= {
        f"tap of {count}": partial(tapping.tap, bench, chosen) for count, chosen in wanted.items()
    }
    contenders[hooks] = partial(tapping.by_hooks, bench, every, tapping.copied)
    for count, chosen in wanted.items():
        outputs = tapping.by_hooks(bench, chosen, tapping.as_it_is)
        contenders[f"copies of {count}"] = partial(tapping.copies, outputs)
    times = rounds(contenders, turns)
    numbers, plain = {}, times["plain"]
    for contender in (*(f"tap of {count}" for count in wanted), hooks):
        about = "of one evaluation through ComfyUI's path"
        numbers |= added_numbers(f"{name}, {contender}", times[contender], plain, about)
    for count in wanted:
        copies = times[f"copies of {count}"]
        rest = times[f"tap of {count}"] - plain - copies
        numbers[f"{name}, tap of {count}: added minus its copies"] = results.bootstrap(
            rest,
            f"hooks, layout, bookkeeping; the copies alone take {np.median(copies):.2f} ms",
            "ms",
            np.median,
        )
    full_name, milliseconds, layout = full
    about = (
        f"goal: at most .05; as narrow, and {layout:.1f} ms of layout at full width; of "
        f"{milliseconds:.0f} ms"
    )
    numbers[f"{full_name}, tap of {len(every)}: added minus its copies, over its evaluation"] = (
        results.bootstrap((rest + layout) / milliseconds, about, "fraction", np.median)
    )
    return numbers
