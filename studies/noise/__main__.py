"""What paired noise changes in training: `python run.py study noise [PART ...] [--quick]`.

Parts: ring (points in the plane), digits, classes (digits by class), batches (digits in small batches), world (small
denoisers of the demo world from scratch), lora (a LoRA on the demo model). Each writes studies/results/noise_PART.json.
Without a part all of them run.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from ..common import host, results

SEED = 0
PARTS = {
    "ring": ("small", "measure_ring"), "digits": ("small", "measure_digits"), "classes": ("small", "measure_classes"),
    "batches": ("small", "measure_batches"), "world": ("world", "measure"), "lora": ("lora", "measure"),
}  # fmt: skip


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
        module, function = PARTS[part]
        numbers = getattr(import_module(f".{module}", __package__), function)(options.quick)
        name = f"noise_{part}" + ("_quick" if options.quick else "")
        command = f"python run.py study noise {part}" + (" --quick" if options.quick else "")
        print(results.write(name, command, SEED, assets, numbers))
    return 0
