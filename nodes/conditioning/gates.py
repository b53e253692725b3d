"""How much of the size metadata a model is told at a noise level: the gate gamma(t) of arXiv 2411.03177.

u = t / T is the share of noise in training time: 0 for a clean picture, 1 for pure noise. The paper fades low-level
control in "gradually using a cosine schedule", so that it acts late in denoising. Which of the curves below is the
paper's, and which exponent, could not be established from the sources that were open to us: all of them are 1 at u = 0
and 0 at u = 1, and the exponent says how steep they are.
"""

from __future__ import annotations

import math
from collections.abc import Callable

COSINE, RAISED, WARPED, CONSTANT = "cosine", "raised cosine", "warped cosine", "constant"


def _cosine(u: float, exponent: float) -> float:
    return math.cos(math.pi * u / 2) ** exponent


def _raised(u: float, exponent: float) -> float:
    return ((1 + math.cos(math.pi * u)) / 2) ** exponent


def _warped(u: float, exponent: float) -> float:
    return (1 + math.cos(math.pi * u**exponent)) / 2


def _constant(u: float, exponent: float) -> float:
    return 1.0


CURVES: dict[str, Callable[[float, float], float]] = {
    COSINE: _cosine, RAISED: _raised, WARPED: _warped, CONSTANT: _constant,
}  # fmt: skip


def gate(curve: str, exponent: float, u: float) -> float:
    """gamma at u: in [0, 1], never rising with u, exactly 1 at u <= 0 and exactly 0 at u >= 1.

    ``cosine`` cos(πu/2)^exponent; ``raised cosine`` ((1 + cos πu) / 2)^exponent, which is the cosine with twice the
    exponent; ``warped cosine`` (1 + cos(π u^exponent)) / 2, where a larger exponent opens the gate earlier;
    ``constant`` 1. Exponent 0 is 1 everywhere, the paper's baseline. Raises ValueError for a negative exponent.
    """
    if exponent < 0:
        raise ValueError(f"The exponent of the gate is {exponent:g}: give 0 (always open) or more.")
    if exponent == 0 or curve == CONSTANT or u <= 0:
        return 1.0
    return 0.0 if u >= 1 else CURVES[curve](u, exponent)


def half_weight(curve: str, exponent: float) -> float | None:
    """The u at which gamma is one half, found by bisection; None where the gate is always open."""
    if gate(curve, exponent, 0.999999) == 1.0:
        return None
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if gate(curve, exponent, middle) > 0.5 else (low, middle)
    return (low + high) / 2
