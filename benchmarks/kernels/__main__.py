"""The operations of kernels/ against what people write: `python run.py bench kernels [--quick]
[--cpu] [--static]`.

On the CPU: eager PyTorch against the naive form, on one thread, into bench_kernels.json (with
--only ROWS again those that begin so). With a CUDA device: kernels, eager, torch.compile of eager
and the naive form over the floor from the bandwidth and the matrix rate that the same run measures,
into kernels_<GPU>.csv, .json and .png, and three lines to paste. With --static, which needs no GPU:
what compilers say of every kernel, into kernels_static.json and the table of kernels/README.md.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence

import torch

from studies.common import host, results

SEED = 0


def main(argv: Sequence[str]) -> int:
    """Run the benchmark and write its results."""
    parser = argparse.ArgumentParser(
        prog="run.py bench kernels", description=__doc__.splitlines()[0]
    )
    parser.add_argument(
        "--quick", action="store_true", help="fewer sizes and turns, in under two minutes"
    )
    parser.add_argument(
        "--cpu", action="store_true", help="measure the CPU although there is a GPU"
    )
    parser.add_argument(
        "--only", default="", metavar="ROWS", help="on the CPU, measure again those that begin so"
    )
    parser.add_argument(
        "--static", action="store_true", help="compile every kernel for every target, without a GPU"
    )
    options = parser.parse_args(argv)
    if options.static:
        from . import static

        return static.main()
    if torch.cuda.is_available() and not options.cpu:
        from . import on_gpu

        print(*on_gpu.measure(options.quick), sep="\n")
        return 0
    from . import on_cpu

    suffix = "_quick" if options.quick else ""
    command = "python run.py bench kernels --cpu" + (" --quick" if options.quick else "")
    path = results.RESULTS / f"bench_kernels{suffix}.json"
    others = json.loads(path.read_text("utf-8"))["numbers"] if options.only else {}
    for numbers in on_cpu.measure(
        options.quick, options.only
    ):  # what is measured stays, whatever ends the run
        results.write(
            path.stem, command, SEED, host.ROOT / "assets" / "avatars-v2", others | numbers
        )
    print(path)
    return 0
