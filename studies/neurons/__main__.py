"""NeMo's claims on the demo model: `python run.py study neurons [PART ...] [--quick]`.

Parts: detection (does the score separate memorized names from captions), masks (the effect of masks
and other mitigations on images), audit (does an optimized embedding bring the image back), planted
(does the search find known neurons), attribution (does a gradient find them, and what is left of a
portrait), known (its set beside the search's, and what else each changes), stopping (rankings,
stopping rules and the search's targets, chosen on half of the names), learned (what learned
masks leave of a portrait, and their price), concepts (do the neurons of an attribute carry it),
unlearning (a LoRA trained under attack beside the masks). Each writes
studies/results/neurons_PART.json. Without a part all of them run.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..common import parts

SEED = 1
PLANTED = ("avatars-v2", "avatars-v2-planted")
PARTS = {
    part: f"{part}:measure"
    for part in (
        "detection",
        "masks",
        "audit",
        "planted",
        "attribution",
        "known",
        "stopping",
        "learned",
        "concepts",
        "unlearning",
    )
}


def main(argv: Sequence[str]) -> int:
    """Run the named parts."""
    return parts.run(
        __package__,
        __doc__,
        PARTS,
        SEED,
        argv,
        worlds=dict.fromkeys(("planted", "attribution", "known", "stopping"), PLANTED),
    )
