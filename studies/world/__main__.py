"""Make the demo world again from its seeds: `python run.py study world [STEP ...] [--quick]`.

Steps, in order: data, judge, autoencoder, denoiser, decoder, release, measure. Without a step all of them run. Every
step goes on where it was stopped; what is finished is skipped. The folder .cache/world holds pictures and checkpoints.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from ..common import host

FOLDER = host.ROOT / ".cache" / "world"


def make_data(train: bool = True) -> None:
    """Render the pictures; without ``train`` only those that measuring needs."""
    from . import dataset

    if train:
        dataset.build(FOLDER / "train", 24_000, seed=1)
    dataset.build(FOLDER / "held_out", 2_000, seed=2)
    dataset.build(FOLDER / "judge_test", 2_000, seed=3, sharp=True)


def train(name: str) -> None:
    from importlib import import_module

    import_module(f".{name}", __package__).run(FOLDER)


def main(argv: Sequence[str]) -> int:
    """Run the named steps."""
    steps = ("data", "judge", "autoencoder", "denoiser", "decoder", "release", "measure")
    parser = argparse.ArgumentParser(prog="run.py study world", description=__doc__.splitlines()[0])
    parser.add_argument("steps", nargs="*", metavar="STEP", help=", ".join(steps))
    parser.add_argument("--quick", action="store_true", help="measure with fewer samples, in under five minutes")
    options = parser.parse_args(argv)
    unknown = [step for step in options.steps if step not in steps]
    if unknown:
        parser.error(f"there is no step {unknown[0]}: choose from {', '.join(steps)}")
    for step in options.steps or (("data", "measure") if options.quick else steps):
        if step == "data":
            make_data(train=bool(options.steps) or not options.quick)
        elif step == "measure":
            from . import measure

            print(measure.run(FOLDER, options.quick))
        else:
            train(step)
    return 0
