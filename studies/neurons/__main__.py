"""What NeMo's claims come to on the demo model: `python run.py study neurons [PART ...] [--quick]`.

Parts: detection (does the score tell memorised names from captions), masks (what masks and the other ways out do to
pictures), audit (does an optimised embedding bring the picture back). Each writes studies/results/neurons_PART.json.
Without a part all of them run.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..common import parts

SEED = 1
PARTS = {part: f"{part}:measure" for part in ("detection", "masks", "audit")}


def main(argv: Sequence[str]) -> int:
    """Run the named parts."""
    return parts.run(__package__, __doc__, PARTS, SEED, argv)
