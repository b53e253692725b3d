"""What paired noise changes in training: `python run.py study noise [PART ...] [--quick]`.

Parts: small (points in the plane and digits, seconds a run), world (small denoisers of the demo world from scratch),
lora (a LoRA on the demo model). Each writes studies/results/noise_PART.json. Without a part all of them run.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from ..common import host, results

SEED = 0
PARTS = ("small", "world", "lora")


def main(argv: Sequence[str]) -> int:
    """Run the named parts."""
    from importlib import import_module

    parser = argparse.ArgumentParser(prog="run.py study noise", description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--quick", action="store_true", help="one seed and fewer settings, in under five minutes")
    options = parser.parse_args(argv)
    unknown = [part for part in options.parts if part not in PARTS]
    if unknown:
        parser.error(f"there is no part {unknown[0]}: choose from {', '.join(PARTS)}")
    assets = host.ROOT / "assets" / "avatars-v1"
    for part in options.parts or PARTS:
        numbers = import_module(f".{part}", __package__).measure(options.quick)
        name = f"noise_{part}" + ("_quick" if options.quick else "")
        command = f"python run.py study noise {part}" + (" --quick" if options.quick else "")
        print(results.write(name, command, SEED, assets, numbers))
    return 0
