"""What looking inside costs: `python run.py bench activations [--quick]`.

Taps against the plain evaluation, against the copies that they cannot do without, and against forward hooks as people
write them, on ComfyUI's network and on diffusers', of SD1.5's size and of SDXL's with random weights (on a CPU SDXL's
with 2 of 10 blocks in a deep transformer), and on narrow ones for the small differences; and matching positions
against the matrix of all similarities. Every ratio is of contenders that take turns in one process; times are medians
over the turns.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from ..common import host, results

SEED = 0


def main(argv: Sequence[str]) -> int:
    """Run the benchmarks and write studies/results/bench_activations.json."""
    parser = argparse.ArgumentParser(prog="run.py bench activations", description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer sizes and turns, in under five minutes")
    quick = parser.parse_args(argv).quick
    from . import matching, tapping

    host.prepare()
    numbers = {**matching.measure(quick), **tapping.measure(quick)}
    numbers |= _many_turns(quick, numbers)
    name, command = "bench_activations", "python run.py bench activations"
    if quick:
        name, command = f"{name}_quick", f"{command} --quick"
    assets = host.pack("nodes.demo.assets")
    print(results.write(name, command, SEED, assets.ASSETS / assets.worlds()[0], numbers))
    return 0


def _many_turns(quick: bool, numbers: dict[str, dict]) -> dict[str, dict]:
    """What is added to an evaluation, on narrow networks, and diffusers beside it."""
    from . import adding, by_diffusers, tapping

    found, turns = {}, 8 if quick else 20
    for family, full in tapping.sizes(quick).items():
        milliseconds = numbers[f"{full}, plain evaluation"]["value"]
        found |= adding.measure(family, turns if family == "SD1.5" else turns // 2, (full, milliseconds))
    if not by_diffusers.installed():
        print(by_diffusers.MISSING)
        return found
    found |= by_diffusers.measure("narrow SD1.5", turns)
    return found if quick else found | by_diffusers.measure("SD1.5", 3)
