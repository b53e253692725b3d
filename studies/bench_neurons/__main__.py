"""How fast neurons are found and masked: `python run.py bench neurons [--quick] [--random-only]`.

Contenders for a search: the official code's schedule of calls (two predictions an evaluation, one pass a selection
step), exact mode and fast mode, in one process. SD1.5's architecture has random weights: narrower than the real one,
where all three run in full, and as wide, where the official schedule's calls are counted. Latents are small, so that a
search ends within minutes on a CPU; ratios are what carries over.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from ..common import host, results

SEED = 1


def main(argv: Sequence[str]) -> int:
    """Run the benchmarks and write studies/results/bench_neurons.json."""
    from . import sampling, searching

    parser = argparse.ArgumentParser(prog="run.py bench neurons", description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one small network and fewer turns, in under five minutes")
    parser.add_argument("--random-only", action="store_true", help="leave the demo model out")
    options = parser.parse_args(argv)
    host.prepare()
    numbers = {
        **searching.measure(options.quick, not options.random_only),
        **sampling.measure(options.quick, not options.random_only),
    }
    flags = [f"--{name}" for name in ("quick", "random-only") if getattr(options, name.replace("-", "_"))]
    command = " ".join(["python run.py bench neurons", *flags])
    name = "bench_neurons" + ("_quick" if options.quick else "")
    print(results.write(name, command, SEED, host.ROOT / "assets" / "avatars-v1", numbers))
    return 0
