"""How fast noise is paired: `python run.py bench noise [--quick]`.

Every ratio is of two contenders that take turns in one process; times are medians over the turns, of the processor on
one thread, so that other work does not count. What training waits for its noise is in `study noise lora`. Contenders:
the papers' official forms as their code computes them (a table of differences in half precision, and SciPy; k noise
samples compared in half precision), torch.cdist with SciPy, and the one-liner linear_sum_assignment(-(x @ z.T)).
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from studies.common import host, results

SEED = 0


def main(argv: Sequence[str]) -> int:
    """Run the benchmarks and write studies/results/bench_noise.json."""
    from . import assigning, nearest

    parser = argparse.ArgumentParser(prog="run.py bench noise", description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer sizes and turns, in under two minutes")
    quick = parser.parse_args(argv).quick
    numbers = {**assigning.measure(quick), **nearest.measure(quick)}
    command = "python run.py bench noise" + (" --quick" if quick else "")
    name = "bench_noise" + ("_quick" if quick else "")
    print(results.write(name, command, SEED, host.ROOT / "assets" / "avatars-v2", numbers))
    return 0
