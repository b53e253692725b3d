"""What metadata, padding and size do to pictures: `python run.py study conditioning [PART ...] [--quick]`.

Parts: gate (Metadata Schedule on the shipped model), trained (small models trained with the gate and without), padding,
resolution. Each writes studies/results/conditioning_PART.json. Without a part all of them run.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from ..common import host, results

SEED = 0
PARTS = ("gate", "trained", "padding", "resolution")


def main(argv: Sequence[str]) -> int:
    """Run the named parts."""
    from importlib import import_module

    parser = argparse.ArgumentParser(prog="run.py study conditioning", description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--quick", action="store_true", help="fewer pictures and settings, in under five minutes")
    options = parser.parse_args(argv)
    unknown = [part for part in options.parts if part not in PARTS]
    if unknown:
        parser.error(f"there is no part {unknown[0]}: choose from {', '.join(PARTS)}")
    for part in options.parts or PARTS:
        numbers = import_module(f".{part}", __package__).measure(options.quick)
        suffix = ("_quick", " --quick") if options.quick else ("", "")
        command = f"python run.py study conditioning {part}{suffix[1]}"
        print(results.write(f"conditioning_{part}{suffix[0]}", command, SEED, host.ROOT / "assets" / "avatars-v1",
                            numbers))  # fmt: skip
    return 0
