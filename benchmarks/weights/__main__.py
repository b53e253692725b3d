"""Benchmarks of the weight space: `python run.py bench weights [--quick | --KIND]`.

Building spaces, a step of an inversion against the bare network, and what an identity costs in a population that is
trained at once. `--large` is an inversion on SD1.5 in its real size instead: minutes a step. `--many` is a space of
5,000 members instead, built by this pack alone, `--updates` one on weight updates of SDXL LoRAs, `--guidance` a step of
sampling with identity guidance, `--edits` up to 100 edits at once at SDXL's shape, `--sliders` a slider at SD1.5's,
`--desk` one of the portrait desk in a real server.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from studies.common import host, results
from studies.common.turns import threads


def main(argv: Sequence[str]) -> int:
    """Run the benchmarks, or one contender."""
    from . import building, desk, editing, guiding, large, moving, stepping, updates

    parser = argparse.ArgumentParser(prog="run.py bench weights", description=__doc__.splitlines()[0])
    kinds = parser.add_mutually_exclusive_group()
    kinds.add_argument("--quick", action="store_true", help="100 members only, and fewer turns")
    kinds.add_argument("--large", action="store_true", help="an inversion on SD1.5 in its real size, and nothing else")
    kinds.add_argument("--many", action="store_true", help="a space of 5,000 members, and nothing else")
    kinds.add_argument("--updates", action="store_true", help="a space on weight updates, and nothing else")
    kinds.add_argument("--guidance", action="store_true", help="identity guidance against plain CFG, and nothing else")
    kinds.add_argument("--sliders", action="store_true", help="a slider's move at SD1.5's shape, and nothing else")
    kinds.add_argument("--edits", action="store_true", help="many edits at SDXL's shape, slider ranges; nothing else")
    kinds.add_argument("--desk", action="store_true", help="a slider of the portrait desk in a server; nothing else")
    parser.add_argument("--one", nargs=3, metavar=("CONTENDER", "N", "FILE"), help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.one:
        print(json.dumps(building.build_with(options.one[0], int(options.one[1]), Path(options.one[2]))))
        return 0
    names = ("quick", "large", "many", "updates", "guidance", "edits", "sliders", "desk")
    kind = next((name for name in names if getattr(options, name)), "")
    special = {"large": lambda: large.measure(3, 1000), "many": lambda: building.measure_many(5000)}
    special |= {"updates": updates.measure, "guidance": guiding.measure, "edits": editing.measure}
    special |= {"sliders": lambda: moving.measure(50, 1000), "desk": lambda: desk.measure(12)}
    numbers = special[kind]() if kind in special else _all(options.quick, building, stepping)
    name, command = "bench_weights" + (f"_{kind}" if kind else ""), "python run.py bench weights"
    command += f" --{kind}" if kind else ""
    print(results.write(name, command, 0, host.ROOT / "assets" / "avatars-v2", numbers))
    return 0


def _all(quick: bool, building, stepping) -> dict[str, dict]:
    numbers = building.measure({100: 3} if quick else {100: 5, 1000: 3})
    with threads(1):
        numbers |= stepping.measure_inversion(8 if quick else 24)
        return numbers | stepping.measure_population((1, 4) if quick else (1, 4, 12, 32), 3 if quick else 6)
