"""How fast noise is paired: `python run.py bench noise`, `--quick` or one of the parts below.

Every ratio is of two contenders that take turns in one process; times are medians over the turns,
of the processor on one thread, so that other work does not count. What training waits for its noise
is in `study noise lora`. `--lora` is a step of Train LoRA beside plain PyTorch with PEFT, on the
demo model, `--lora-large` at the shape of SD1.5, `--lora-memory` its memory on today's
transformers. Contenders: the papers' official forms as their
code computes them (a table of differences in half precision, and SciPy; k noise samples compared in
half precision), torch.cdist with SciPy, and the one-liner linear_sum_assignment(-(x @ z.T)).
"""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Sequence

from studies.common import host, results

SEED = 0
PARTS = {
    "": "__main__:pairing",
    "--lora": "lora_step:measure",
    "--lora-large": "lora_step:measure_large",
    "--lora-memory": "lora_memory:measure",
}


def main(argv: Sequence[str]) -> int:
    """Run the benchmarks and write studies/results/bench_noise.json."""
    parser = argparse.ArgumentParser(prog="run.py bench noise", description=__doc__.splitlines()[0])
    kinds = parser.add_mutually_exclusive_group()
    kinds.add_argument(
        "--quick", action="store_true", help="fewer sizes and turns, in under two minutes"
    )
    kinds.add_argument(
        "--lora", action="store_true", help="a step of Train LoRA beside PEFT, and nothing else"
    )
    kinds.add_argument(
        "--lora-large", action="store_true", help="the same at SD1.5's shape: minutes"
    )
    kinds.add_argument(
        "--lora-memory", action="store_true", help="memory of a step on Z-Image and Qwen-Image"
    )
    options = parser.parse_args(argv)
    names = ("quick", "lora", "lora_large", "lora_memory")
    kind = next((name for name in names if getattr(options, name)), "")
    option = f"--{kind.replace('_', '-')}" if kind else ""
    module, function = PARTS[option if option in PARTS else ""].split(":")
    measure = getattr(importlib.import_module(f".{module}", __package__), function)
    numbers = measure() if kind.startswith("lora") else measure(options.quick)
    command, name = (
        f"python run.py bench noise {option}".rstrip(),
        f"bench_noise_{kind}".rstrip("_"),
    )
    print(results.write(name, command, SEED, host.ROOT / "assets" / "avatars-v2", numbers))
    return 0


def pairing(quick: bool) -> dict[str, dict]:
    """The assignments and the nearest of k."""
    from . import assigning, nearest

    return assigning.measure(quick) | nearest.measure(quick)
