"""What activations of the demo model are worth: `python run.py study activations [--quick]`.

Every activation is scored twice with truth from the renders: correspondence of key points between
faces of different identity (training-free, PCK@0.1 of the face's height) and few-shot segmentation
of parts (mean IoU of the paper's pixel classifier). Then the claims of arXiv 2410.03558 are
requested as questions. Writes studies/results/activations.json, a table of all scores beside it,
and plots into this folder.
"""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..common import host, results

FOLDER = Path(__file__).resolve().parent
SEED = 20_241
PARTS = {part: f"{part}:main" for part in ("steering", "joining", "patching", "words", "silent")}
PARTS["sparse"] = "sparse_features:main"


@dataclass(frozen=True)
class Size:
    """How much is measured."""

    faces: int  # of the correspondence part, each in two pairs
    levels: tuple[int, ...]  # the paper's t
    trained: int  # images with masks
    tested: int
    splits: int  # trainings of each compared set
    draws: int  # of the noise, for the noise fraction


FULL = Size(faces=60, levels=(10, 50, 150, 300, 500), trained=12, tested=24, splits=5, draws=4)
QUICK = Size(faces=12, levels=(50, 300), trained=6, tested=12, splits=2, draws=2)


def main(argv: Sequence[str]) -> int:
    """Measure, write, and print where."""
    if argv and argv[0] in PARTS:
        module, function = PARTS[argv[0]].split(":")
        return getattr(importlib.import_module(f".{module}", __package__), function)(argv[1:])
    parser = argparse.ArgumentParser(
        prog="run.py study activations", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--quick", action="store_true", help="measure less, in under five minutes")
    options = parser.parse_args(argv)
    from . import claims, measure, plots

    host.prepare()
    assets = host.pack("nodes.demo.assets")
    world = assets.worlds()[0]
    found = measure.run(world, QUICK if options.quick else FULL, SEED)
    name, command = "activations", "python run.py study activations"
    if options.quick:
        name, command = f"{name}_quick", f"{command} --quick"
    measure.write_table(found, results.RESULTS / f"{name}.csv")
    if not options.quick:
        plots.draw(found, FOLDER)
    print(results.write(name, command, SEED, assets.ASSETS / world, claims.numbers(found)))
    return 0
