"""The operations of kernels/ against what people write: `python run.py bench kernels [--quick] [--cpu] [--static]`.

On the CPU: eager PyTorch against the naive form, on one thread, into bench_kernels.json. With a CUDA device: kernels,
eager, torch.compile of eager and the naive form over the floor from the bandwidth and the matrix rate that the same run
measures, into kernels_<GPU>.csv, .json and .png, and three lines to paste. With --static, which needs no GPU: what
compilers say of every kernel, into kernels_static.json and the table of kernels/README.md.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import torch

from studies.common import host, results

SEED = 0


def main(argv: Sequence[str]) -> int:
    """Run the benchmark and write its results."""
    parser = argparse.ArgumentParser(prog="run.py bench kernels", description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer sizes and turns, in under two minutes")
    parser.add_argument("--cpu", action="store_true", help="measure the CPU although there is a GPU")
    parser.add_argument("--static", action="store_true", help="compile every kernel for every target, without a GPU")
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
    for numbers in on_cpu.measure(options.quick):  # what is measured stays, whatever ends the run
        path = results.write(f"bench_kernels{suffix}", command, SEED, host.ROOT / "assets" / "avatars-v1", numbers)
    print(path)
    return 0
