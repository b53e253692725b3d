"""What paired noise changes in training: `python run.py study noise [PART ...] [--quick]`.

Parts: ring (points in the plane), digits, classes (digits by class), batches (digits in small
batches), world (small denoisers of the demo world from scratch), lora (a LoRA on the demo model),
composition (layout from a guide's low frequencies), layouts (the same beside img2img and blends,
with masks and sketches as guides), scout (seeds ranked after a few steps), edits (words changed in
an image from its own noise, beside other published ways). Each writes
studies/results/noise_PART.json. Without a part all of them run.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..common import parts

SEED = 0
PARTS = {
    "ring": "small:measure_ring",
    "digits": "small:measure_digits",
    "classes": "small:measure_classes",
    "batches": "small:measure_batches",
    "world": "world:measure",
    "lora": "lora:measure",
    "composition": "composition:measure",
    "layouts": "layouts:measure",
    "scout": "scout:measure",
    "edits": "edits:measure",
}


def main(argv: Sequence[str]) -> int:
    """Run the named parts."""
    return parts.run(__package__, __doc__, PARTS, SEED, argv)
