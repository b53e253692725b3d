"""Benchmarks of the weight space: `python run.py bench weights [--quick] [--KIND]`.

Building spaces, a step of an inversion against the bare network, and what an identity costs in a
population that is trained at once. `--large` is an inversion on SD1.5 in its real size instead:
minutes a step. `--many` is a space of 5,000 members instead, built by this pack alone, `--updates`
one on weight updates of SDXL LoRAs, `--guidance` a step of sampling with identity guidance,
`--edits` up to 100 edits at once at SDXL's shape, `--sliders` a slider at SD1.5's, `--desk` one of
the portrait desk in a real server, `--learned` a step of W2W Train Space, `--slider-step` one of
Train Slider.
"""

from __future__ import annotations

import argparse
import importlib
import json
from collections.abc import Sequence
from pathlib import Path

from studies.common import host, results
from studies.common.turns import threads

PARTS = {
    "": "__main__:building_and_stepping",
    "--large": "large:measure",
    "--many": "building:measure_many",
    "--updates": "updates:measure",
    "--guidance": "guiding:measure",
    "--edits": "editing:measure",
    "--sliders": "moving:measure",
    "--desk": "desk:measure",
    "--learned": "learning:measure",
    "--slider-step": "sliding:measure",
}
_WITH_QUICK = ("", "--sliders")


def main(argv: Sequence[str]) -> int:
    """Run the benchmarks, or one contender."""
    parser = argparse.ArgumentParser(
        prog="run.py bench weights", description=__doc__.splitlines()[0]
    )
    kinds = parser.add_mutually_exclusive_group()
    parser.add_argument(
        "--quick",
        action="store_true",
        help="100 members only, and fewer turns; with --sliders a small space, and writes nothing",
    )
    kinds.add_argument(
        "--large",
        action="store_true",
        help="an inversion on SD1.5 in its real size, and nothing else",
    )
    kinds.add_argument(
        "--many", action="store_true", help="a space of 5,000 members, and nothing else"
    )
    kinds.add_argument(
        "--updates", action="store_true", help="a space on weight updates, and nothing else"
    )
    kinds.add_argument(
        "--guidance",
        action="store_true",
        help="identity guidance against plain CFG, and nothing else",
    )
    kinds.add_argument(
        "--sliders", action="store_true", help="a slider's move at SD1.5's shape, and nothing else"
    )
    kinds.add_argument(
        "--edits",
        action="store_true",
        help="many edits at SDXL's shape, slider ranges; nothing else",
    )
    kinds.add_argument(
        "--desk",
        action="store_true",
        help="a slider of the portrait desk in a server; nothing else",
    )
    kinds.add_argument(
        "--learned", action="store_true", help="a step of W2W Train Space, and nothing else"
    )
    kinds.add_argument(
        "--slider-step", action="store_true", help="a step of Train Slider, and nothing else"
    )
    parser.add_argument(
        "--one", nargs=3, metavar=("CONTENDER", "N", "FILE"), help=argparse.SUPPRESS
    )
    options = parser.parse_args(argv)
    if options.one:
        from . import building

        print(
            json.dumps(
                building.build_with(options.one[0], int(options.one[1]), Path(options.one[2]))
            )
        )
        return 0
    kind = next(
        (kind for kind in PARTS if kind and getattr(options, kind[2:].replace("-", "_"))), ""
    )
    if options.quick and kind not in _WITH_QUICK:
        parser.error(f"{kind} has no quick mode")
    module, function = PARTS[kind].split(":")
    measure = getattr(importlib.import_module(f".{module}", __package__), function)
    numbers = measure(options.quick) if kind in _WITH_QUICK else measure()
    if kind and options.quick:
        for name, number in numbers.items():
            print(f"{name}: {number['value']:.4g} {number['unit']}")
        return 0
    option = kind or ("--quick" if options.quick else "")
    name, command = (
        f"bench_weights_{option[2:].replace('-', '_')}".rstrip("_"),
        f"python run.py bench weights {option}".rstrip(),
    )
    assets = [host.ROOT / "assets" / each for each in ("avatars-v2", "avatars-v2-w2w.safetensors")]
    with_space = option in ("", "--quick", "--guidance", "--desk")
    print(results.write(name, command, 0, assets if with_space else assets[:1], numbers))
    return 0


def building_and_stepping(quick: bool) -> dict[str, dict]:
    """Spaces of growing size, an inversion's step, and a population's."""
    from . import building, stepping

    numbers = building.measure({100: 3} if quick else {100: 5, 1000: 3})
    with threads(1):
        numbers |= stepping.measure_inversion(8 if quick else 24)
        return numbers | stepping.measure_population(
            (1, 4) if quick else (1, 4, 12, 32), 3 if quick else 6
        )
