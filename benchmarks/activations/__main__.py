"""What looking inside costs: `python run.py bench activations [PART ...] [--quick]`.

Taps against the plain evaluation, against the copies that they cannot do without, and against
forward hooks as people write them, on ComfyUI's network and on diffusers', of SD1.5's size and of
SDXL's with random weights (on a CPU SDXL's with 2 of 10 blocks in a deep transformer), and on
narrow ones for the small differences; matching positions against the matrix of all similarities;
what is added at the latents that people use; the memory of a tap; and, counted, what steering adds,
and what maps and edits by words add to transformers of today's widths. Parts: tapping, adding,
latents, matching, diffusers, memory, steering, transformers. Every ratio is of contenders
that take turns in one process; times are medians over the turns.
"""

from __future__ import annotations

from collections.abc import Sequence

from studies.common import host, parts

SEED = 0
PARTS = {
    "tapping": "tapping:measure",
    "adding": "adding:measure",
    "latents": "latents:measure",
    "matching": "matching:measure",
    "diffusers": "by_diffusers:measure",
    "memory": "memory:measure",
    "steering": "steering:measure",
    "transformers": "transformers:measure",
}


def main(argv: Sequence[str]) -> int:
    """Run the parts and write studies/results/bench_activations_PART.json."""
    host.prepare()
    return parts.run(__package__, __doc__, PARTS, SEED, argv, "bench")
