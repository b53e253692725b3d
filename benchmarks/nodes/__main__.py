"""What each node's own work costs beside the obvious way to do it: `run.py bench nodes [--quick |
--start] [NODE ...]`.

At SD1.5's shapes at 512 pixels and SDXL's at 1,024, on random numbers, in the processor's time of
one thread, node and rival in turns in one process. The network does not run: its operations and
bytes are counted on PyTorch's meta device, and divided by the speed of a large product of matrices
in the same process, the least time that an evaluation takes here. `python run.py study report` puts
the table into docs/performance.md. `--start` is what the pack adds to the start of ComfyUI's
server, and nothing else.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import numpy as np
import torch

from studies.common import host, results
from studies.common.turns import times

_SIDE = 2048  # of the product that measures the machine


def main(argv: Sequence[str]) -> int:
    """Measure the rows, or those of the nodes that are named, and write
    studies/results/bench_nodes.json.
    """
    from .rows import ROWS

    parser = argparse.ArgumentParser(prog="run.py bench nodes", description=__doc__.splitlines()[0])
    parser.add_argument("nodes", nargs="*", metavar="NODE", help="IDs without GBX_; writes nothing")
    parser.add_argument(
        "--quick", action="store_true", help="SD1.5's shapes alone, in fewer turns; writes nothing"
    )
    parser.add_argument(
        "--start", action="store_true", help="the start of a server with the pack and without"
    )
    options = parser.parse_args(argv)
    if options.start:
        from . import starting

        numbers, command = starting.measure(10), "python run.py bench nodes --start"
        print(
            results.write(
                "bench_nodes_start", command, 0, host.ROOT / "assets" / "avatars-v2", numbers
            )
        )
        return 0
    unknown = set(options.nodes) - {row.node for row in ROWS}
    if unknown:
        parser.error(f"there is no row of {', '.join(sorted(unknown))}")
    host.prepare()
    chosen = [row for row in ROWS if not options.nodes or row.node in options.nodes]
    with torch.inference_mode():
        numbers = measure(chosen, options.quick)
    if options.nodes or options.quick:
        for name, number in numbers.items():
            print(f"{name}: {number['value']:.4g} {number['unit']}")
        return 0
    print(
        results.write(
            "bench_nodes",
            "python run.py bench nodes",
            0,
            host.ROOT / "assets" / "avatars-v2",
            numbers,
        )
    )
    return 0


def measure(rows: list, quick: bool) -> dict[str, dict]:
    """Times, ratios and peaks of live bytes of every row at each size, and the counted networks."""
    from ..activations import steering
    from ..activations.memory import counted
    from .sizes import COUNTED, SIZES

    meta, numbers = host.pack("nodes.activations.meta_networks_comfy"), {}
    for size in SIZES[: 1 if quick else None]:
        network = meta.network("architecture", size.architecture).half()
        operations, traffic = steering.count(
            network, meta.ARCHITECTURES[size.architecture], size.latent, [], None
        )
        what = "one evaluation of two rows in half precision, counted"
        numbers[f"{size.name}, network: operations"] = results.number(
            operations / 1e12, 1, "TFLOP", what
        )
        numbers[f"{size.name}, network: bytes"] = results.number(traffic.bytes / 1e9, 1, "GB", what)
        for row in rows:
            made = row.make(size)
            in_this_thread = made.pop(COUNTED, None)
            made["speed"] = (torch.mm, *(torch.randn(_SIDE, _SIDE) for _ in range(2)))
            contenders = {
                name: lambda work=work, given=given: work(*given)
                for name, (work, *given) in made.items()
            }
            taken = times(contenders, 2 if quick else 3, alone=True)
            numbers |= _of_row(f"{row.node}, {size.name}", row, taken, operations)
            peak, _ = counted(in_this_thread[0] if in_this_thread else contenders["ours"])
            numbers[f"{row.node}, {size.name}: memory"] = results.number(
                peak / 2**20, 1, "MiB", "counted live tensors"
            )
            print(
                row.node,
                size.name,
                {name: round(float(np.median(each)), 2) for name, each in taken.items()},
                flush=True,
            )
    return numbers


def _of_row(where: str, row, taken: dict[str, np.ndarray], operations: int) -> dict[str, dict]:
    evaluation = taken["speed"] * operations / (2 * _SIDE**3)
    ours = taken["ours"] / row.times
    found = {
        "takes": (ours, "ms", row.work),
        "rival": (taken["rival"] / row.times, "ms", row.rival),
        "over rival": (taken["ours"] / taken["rival"], "ratio", f"{row.work}; {row.rival}"),
        "of an evaluation": (
            ours / evaluation,
            "ratio",
            "over the least time of the network's products here",
        ),
    }
    return {
        f"{where}: {name}": results.bootstrap(v, what, unit, np.median)
        for name, (v, unit, what) in found.items()
    }
