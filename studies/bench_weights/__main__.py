"""Benchmarks of the weight space: `python run.py bench weights [--quick]`.

Building spaces, moving a slider, a step of an inversion against the bare network, and what an identity costs in a
population that is trained at once.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence

from ..common import host, results


def main(argv: Sequence[str]) -> int:
    """Run the benchmarks, or one contender."""
    from . import building, moving, stepping

    parser = argparse.ArgumentParser(prog="run.py bench weights", description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="100 members only, and fewer turns")
    parser.add_argument("--one", nargs=2, metavar=("CONTENDER", "N"), help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.one:
        print(json.dumps(building.build_with(options.one[0], int(options.one[1]))))
        return 0
    numbers = building.measure({100: 3} if options.quick else {100: 5, 1000: 2})
    numbers |= moving.measure(100, 300 if options.quick else 1000)
    numbers |= stepping.measure_inversion(8 if options.quick else 24)
    numbers |= stepping.measure_population((1, 4) if options.quick else (1, 4, 12, 32), 3 if options.quick else 6)
    name = "bench_weights_quick" if options.quick else "bench_weights"
    command = "python run.py bench weights" + (" --quick" if options.quick else "")
    print(results.write(name, command, 0, host.ROOT / "assets" / "avatars-v1", numbers))
    return 0
