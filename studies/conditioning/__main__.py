"""What metadata, padding and size do to images: `python run.py study conditioning [PART ...]
[--quick]`.

Parts: gate (Metadata Schedule on the shipped model), sizes (original sizes above the trained one),
crop, trained (small models trained with the gate and without, and with replicated padding),
padding, resolution, higher (Higher Resolution at larger sizes), enlarging (beside plain enlargement
and two passes), variety (Seed Variety beside its rivals), student (the same on a student of four
steps that is distilled), collapsed (the same on one whose seeds have collapsed), tuned (after
fine-tuning at larger sizes). Each writes studies/results/conditioning_PART.json. Without a part all
of them run.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..common import parts

SEED = 0
PARTS = {
    part: f"{part}:measure"
    for part in (
        "gate",
        "sizes",
        "crop",
        "trained",
        "padding",
        "resolution",
        "higher",
        "enlarging",
        "variety",
        "student",
        "collapsed",
        "tuned",
    )
}


def main(argv: Sequence[str]) -> int:
    """Run the named parts."""
    return parts.run(__package__, __doc__, PARTS, SEED, argv)
