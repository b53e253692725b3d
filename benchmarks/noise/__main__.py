"""How fast noise is paired: `python run.py bench noise [--quick | --lora | --lora-large]`.

Every ratio is of two contenders that take turns in one process; times are medians over the turns, of the processor on
one thread, so that other work does not count. What training waits for its noise is in `study noise lora`. `--lora` is a
step of Train LoRA beside plain PyTorch with PEFT, on the demo model, `--lora-large` at the shape of SD1.5. Contenders:
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
    kinds.add_argument("--lora-large", action="store_true", help="the same at SD1.5's shape: minutes")
    options = parser.parse_args(argv)
    kind = next((name for name in ("quick", "lora", "lora_large") if getattr(options, name)), "")
    special = {"lora": lambda: lora_step.measure(96), "lora_large": lambda: lora_step.measure_large(5)}
    numbers = special[kind]() if kind in special else assigning.measure(options.quick) | nearest.measure(options.quick)
    command = "python run.py bench noise" + (f" --{kind.replace('_', '-')}" if kind else "")
    name = "bench_noise" + (f"_{kind}" if kind else "")
    print(results.write(name, command, SEED, host.ROOT / "assets" / "avatars-v2", numbers))
    return 0
