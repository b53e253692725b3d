"""The demo world: make it from its seeds, and measure each stage of it alone.

`python run.py study world train [STEP ...]` makes it: every step goes on where it was stopped.
`python run.py study world [PART ...] [--quick]` measures. The folder .cache/world holds images and
checkpoints.
"""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Sequence
from pathlib import Path

from ..common import host, parts

FOLDER = host.ROOT / ".cache" / "world"
STEPS = ("data", "judge", "autoencoder", "denoiser", "decoder", "release", "population", "planted")
PARTS = {
    name: f"measure:measure_{name}"
    for name in ("judge", "autoencoder", "captions", "names", "metadata")
}
PARTS |= {
    "objectives": "objectives:measure",
    "population": "population:measure",
    "gates": "measure:measure_gates",
}


def train(argv: Sequence[str]) -> int:
    """Run the named steps of making the world."""
    parser = argparse.ArgumentParser(
        prog="run.py study world train", description="Make the demo world from its seeds."
    )
    parser.add_argument("steps", nargs="*", metavar="STEP", help=", ".join(STEPS))
    parser.add_argument(
        "--copy", type=Path, help="a folder that gets a copy of every checkpoint, and gives it back"
    )
    parser.add_argument(
        "--start",
        help=(
            "a shipped world, or a folder, whose weights training begins with where there is no "
            "checkpoint"
        ),
    )
    parser.add_argument(
        "--to", type=Path, help="the folder that release writes; assets/avatars-v2 if absent"
    )
    options = parser.parse_args(argv)
    if options.start and Path(options.start).is_dir():
        options.start = str(Path(options.start).resolve())
    unknown = [step for step in options.steps if step not in STEPS]
    if unknown:
        parser.error(f"there is no step {unknown[0]}: choose from {', '.join(STEPS)}")
    for step in options.steps or STEPS:
        module = importlib.import_module(f".{'dataset' if step == 'data' else step}", __package__)
        if step == "data":
            module.build(FOLDER / "train", 24_000, seed=1)
            module.build(FOLDER / "truth", 5_000, seed=4, kind="truth")
            module.build(FOLDER / "held_out_sharp", 2_000, seed=3, kind="sharp")
        elif step == "release":
            module.run(FOLDER, *([options.to] if options.to else []))
        else:
            module.make(FOLDER, options.copy, options.start)
    return 0


def main(argv: Sequence[str]) -> int:
    """Make the world ("train"), or measure the named parts of it."""
    if argv[:1] == ["train"]:
        return train(argv[1:])
    chosen = [name for name in argv if name != "measure"]
    return parts.run(__package__, __doc__, PARTS, 1_000_000, chosen)
