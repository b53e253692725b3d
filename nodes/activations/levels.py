"""The paper's t, and what the network is told for it."""

from __future__ import annotations

PAPER_T, PERCENT, SIGMA = "t of the paper", "percent of the run", "sigma"
UNITS = (PAPER_T, PERCENT, SIGMA)
#: SD1.5's text width; SD2.1 has the same activations and another one.
_SD15_CONTEXT = 768
LAST = 999


def timestep_for(t: float, architecture: str | None, context_width: int | None) -> float:
    """The timestep that the official code evaluates for the paper's ``t``.

    It takes each model's own scheduler: SD1.5's PNDM ends up one step later (t = 50 is timestep 51), SDXL's Euler does
    not. For other models, of which the paper says nothing, t is the timestep.
    """
    if architecture == "sd15" and context_width == _SD15_CONTEXT:
        t += 1
    return min(t, LAST)
