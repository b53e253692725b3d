"""A gate on size metadata over the timesteps: the control conditioning gamma(t) of arXiv
2411.03177.

u = t / T is the noise fraction in training time: 0 for a clean image, 1 for pure noise. Low-level
control fades in with a cosine schedule, so that it acts late in denoising. All curves are 1 at u =
0 and 0 at u = 1; the exponent sets how steep they are. Where each formula comes from:
docs/conditioning.md, "Provenance".
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum

from .size_metadata import FieldGroup, Values, blend_metadata, neutral_metadata


class GateCurve(StrEnum):
    """The shape of gamma over the noise fraction."""

    COSINE = "cosine"
    RAISED_COSINE = "raised_cosine"
    WARPED_COSINE = "warped_cosine"
    CONSTANT = "constant"


class GateMode(StrEnum):
    """What the gate moves: the network's embedding of the metadata, or the numbers themselves."""

    EMBEDDING = "embedding"
    VALUE = "value"


class PromptRole(StrEnum):
    """Whose metadata is gated."""

    BOTH = "both"
    POSITIVE = "positive"
    NEGATIVE = "negative"


def gate(curve: str, exponent: float, u: float) -> float:
    """gamma at u: in [0, 1], never rising with u, exactly 1 at u <= 0 and exactly 0 at u >= 1.

    `cosine` cos(πu/2)^exponent; `raised_cosine` ((1 + cos πu) / 2)^exponent, which is the cosine
    with twice the exponent; `warped_cosine` (1 + cos(π u^exponent)) / 2, where a larger exponent
    opens the gate earlier; `constant` 1. Exponent 0 is 1 everywhere, the paper's baseline. Raises
    ValueError for a negative exponent.
    """
    curve = GateCurve(curve)
    if exponent < 0:
        raise ValueError(f"The exponent of the gate is {exponent:g}: set 0 (always open) or more.")
    if exponent == 0 or curve == GateCurve.CONSTANT or u <= 0:
        return 1.0
    if u >= 1:
        return 0.0
    match curve:
        case GateCurve.COSINE:
            return math.cos(math.pi * u / 2) ** exponent
        case GateCurve.RAISED_COSINE:
            return ((1 + math.cos(math.pi * u)) / 2) ** exponent
    return (1 + math.cos(math.pi * u**exponent)) / 2


def half_weight(curve: str, exponent: float) -> float | None:
    """The u at which gamma is one half, found by bisection; None where the gate is always open."""
    if gate(curve, exponent, 0.999999) == 1.0:
        return None
    low = 0.0
    high = 1.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if gate(curve, exponent, middle) > 0.5 else (low, middle)
    return (low + high) / 2


def choice_weight(closed: Sequence[bool], gammas: Sequence[float]) -> float:
    """The weight of a choice in the embedding: 1 - gamma of one gate, products of these for
    several.

    With that of no closed gate the weights add up to 1: however many gates are shut, the reference
    alone remains.
    """
    return math.prod(
        1 - gamma if shut else gamma for shut, gamma in zip(closed, gammas, strict=True)
    )


@dataclass(frozen=True, kw_only=True)
class GateSchedule:
    """The settings of Metadata Schedule. A reference size of 0 x 0 is the size of the image
    itself.
    """

    curve: GateCurve
    exponent: float
    fields: FieldGroup
    reference_width: int
    reference_height: int
    mode: GateMode
    apply_to: PromptRole

    def __post_init__(self) -> None:
        kinds = {"curve": GateCurve, "fields": FieldGroup, "mode": GateMode, "apply_to": PromptRole}
        for name, kind in kinds.items():
            object.__setattr__(self, name, kind(getattr(self, name)))
        if bool(self.reference_width) != bool(self.reference_height):
            raise ValueError(
                f"The reference size is {self.reference_width} x {self.reference_height}: set both "
                "sides, or 0 for both to use the size of the image."
            )

    def weight(self, u: float) -> float:
        """gamma at a noise fraction u."""
        return gate(self.curve, self.exponent, u)

    def applies(self, role: str, explicit: Collection[str]) -> bool:
        """Whether conditioning in the role "positive" or "negative" is gated; other roles count as
        positive.

        A negative prompt that sets none of the gated fields (those in `explicit` are set) stays as
        stock.
        """
        if role == PromptRole.NEGATIVE and not set(self.fields.names) & set(explicit):
            return False
        role = PromptRole.NEGATIVE if role == PromptRole.NEGATIVE else PromptRole.POSITIVE
        return self.apply_to in (PromptRole.BOTH, role)

    def gated(
        self, values: Values, canvas: tuple[int, int], weight: float, implicit: Collection[str] = ()
    ) -> dict[str, float]:
        """The metadata with its gated fields moved towards the reference, for an image of `canvas`
        pixels.

        `implicit`: target sides that the conditioning does not set. ComfyUI sets them to the
        original size, so they move with it.
        """
        reference = neutral_metadata(
            self.reference_width or canvas[0], self.reference_height or canvas[1]
        )
        return blend_metadata(values, reference, {*self.fields.names, *implicit}, weight)
