"""What NeMo's claims come to on the demo model: `python run.py study neurons [PART ...] [--quick]`.

Parts: detection (does the score tell memorised names from captions), masks (what masks and the other ways out do to
pictures), audit (does an optimised embedding bring the picture back). Each writes studies/results/neurons_PART.json.
Without a part all of them run.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from ..common import host, results

SEED = 1
PARTS = ("detection", "masks", "audit")


def main(argv: Sequence[str]) -> int:
    """Run the named parts."""
    from importlib import import_module

    parser = argparse.ArgumentParser(prog="run.py study neurons", description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--quick", action="store_true", help="fewer names and seeds, in under five minutes")
    options = parser.parse_args(argv)
    unknown = [part for part in options.parts if part not in PARTS]
    if unknown:
        parser.error(f"there is no part {unknown[0]}: choose from {', '.join(PARTS)}")
    assets = host.ROOT / "assets" / "avatars-v1"
    for part in options.parts or PARTS:
        numbers = import_module(f".{part}", __package__).measure(options.quick)
        name = f"neurons_{part}" + ("_quick" if options.quick else "")
        command = f"python run.py study neurons {part}" + (" --quick" if options.quick else "")
        print(results.write(name, command, SEED, assets, numbers))
    return 0
