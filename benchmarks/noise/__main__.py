"""How fast noise is paired: `python run.py bench noise [--quick | --lora]`.

Every ratio is of two contenders that take turns in one process; times are medians over the turns, of the processor on
one thread, so that other work does not count. What training waits for its noise is in `study noise lora`. `--lora` is a
step of Train LoRA beside plain PyTorch with PEFT instead, on the demo model and at SD1.5's shape. Contenders:
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
    from . import assigning, lora_step, nearest

    parser = argparse.ArgumentParser(prog="run.py bench noise", description=__doc__.splitlines()[0])
    kinds = parser.add_mutually_exclusive_group()
    kinds.add_argument("--quick", action="store_true", help="fewer sizes and turns, in under two minutes")
    kinds.add_argument("--lora", action="store_true", help="a step of Train LoRA beside PEFT, and nothing else")
    options = parser.parse_args(argv)
    kind = "quick" if options.quick else "lora" if options.lora else ""
    if options.lora:
        numbers = {**lora_step.measure(24), **lora_step.measure_large(6)}
    else:
        numbers = {**assigning.measure(options.quick), **nearest.measure(options.quick)}
    command, name = (
        "python run.py bench noise" + (f" --{kind}" if kind else ""),
        "bench_noise" + (f"_{kind}" if kind else ""),
    )
    print(results.write(name, command, SEED, host.ROOT / "assets" / "avatars-v2", numbers))
    return 0
