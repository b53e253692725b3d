"""Cost of searches, masks and statistics: `python run.py bench neurons [PART ...] [--quick]`.

Contenders for a search: the official code's schedule of calls (two predictions per evaluation, one
pass per selection step) and NeMo Localize (exact), in one process, both in full. SD1.5's
architecture has random weights, narrow with several prompts, and in its full width with one.
Latents are small, so that a search ends within minutes on a CPU; ratios are what carries over.
Parts toys, latent64 and long compare the search with evaluating every set whole with all seeds.
"""

from __future__ import annotations

from collections.abc import Sequence

from studies.common import host, parts

SEED = 1
PARTS = {
    "narrow": "searching:narrow",
    "demo": "searching:demo",
    "width": "searching:full_width",
    "toys": "early_rejection:toys",
    "latent64": "early_rejection:latent64",
    "long": "early_rejection:long",
    "mask": "sampling:mask",
    "statistics": "sampling:statistics",
    "gradient": "gradients:measure",
}


def main(argv: Sequence[str]) -> int:
    """Run the parts and write studies/results/bench_neurons_PART.json."""
    host.prepare()
    return parts.run(__package__, __doc__, PARTS, SEED, argv, "bench")
