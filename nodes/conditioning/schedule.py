"""A schedule: which metadata is gated, how, against which reference, and for which prompt."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from . import gates, metadata

EMBEDDING, VALUE = "embedding", "value"
MODES = (EMBEDDING, VALUE)
BOTH, POSITIVE, NEGATIVE = "both", "positive", "negative"
APPLIES = (BOTH, POSITIVE, NEGATIVE)


@dataclass(frozen=True)
class Schedule:
    """The settings of Metadata Schedule. A reference size of 0 x 0 is the size of the picture itself."""

    curve: str
    exponent: float
    fields: str
    reference_width: int
    reference_height: int
    mode: str
    apply_to: str

    def __post_init__(self):
        if bool(self.reference_width) != bool(self.reference_height):
            raise ValueError(
                f"The reference size is {self.reference_width} x {self.reference_height}: "
                "give both sides, or 0 for both to take the picture's own size."
            )

    def weight(self, u: float) -> float:
        """gamma at a share u of noise."""
        return gates.gate(self.curve, self.exponent, u)

    def applies(self, prompt: str) -> bool:
        """Whether conditioning in the role "positive" or "negative" is gated; other roles count as positive."""
        role = NEGATIVE if prompt == NEGATIVE else POSITIVE
        return self.apply_to in (BOTH, role)

    def reference(self, canvas: tuple[int, int]) -> dict[str, float]:
        """What is told when the gate is closed, for a picture of ``canvas`` = (width, height) pixels."""
        return metadata.reference(self.reference_width or canvas[0], self.reference_height or canvas[1])

    def told(self, values: metadata.Values, canvas: tuple[int, int], weight: float,
             unsaid: Collection[str] = ()) -> dict[str, float]:  # fmt: skip
        """The metadata with its gated fields moved towards the reference.

        ``unsaid``: the target sides that nobody asked for. They are told as the original size, so they move with it.
        """
        return metadata.blended(values, self.reference(canvas), {*metadata.GROUPS[self.fields], *unsaid}, weight)
