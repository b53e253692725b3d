"""Size metadata that a model is conditioned on beside its text: original size, crop, target size,
mirroring.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum

import torch

Values = Mapping[str, float]

_SIZE = ("height", "width")
_CROP = ("crop_h", "crop_w")
_TARGET = ("target_height", "target_width")


class FieldGroup(StrEnum):
    """Which fields a node acts on. The paper fades in low-level ones (size); crop and flip act from
    the start.
    """

    ORIGINAL_SIZE = "original_size"
    ORIGINAL_AND_TARGET_SIZE = "original_and_target_size"
    SIZES_AND_CROP = "sizes_and_crop"
    ALL = "all"

    @property
    def names(self) -> tuple[str, ...]:
        """The fields of the group, by ComfyUI's names."""
        groups = (_SIZE, _TARGET, _CROP, ("mirror",))
        return sum(groups[: list(FieldGroup).index(self) + 1], ())


_PHRASES = {
    **dict.fromkeys(_SIZE, "an original size"),
    **dict.fromkeys(_CROP, "a crop"),
    "mirror": "mirroring",
    **dict.fromkeys(_TARGET, "a target size"),
}


def neutral_metadata(width: float, height: float) -> dict[str, float]:
    """The metadata of a whole, unmirrored image of that size in pixels: the reference of a closed
    gate.
    """
    sizes = {"height": height, "width": width, "target_height": height, "target_width": width}
    return {**sizes, "crop_h": 0.0, "crop_w": 0.0, "mirror": 0.0}


def blend_metadata(
    values: Values, reference: Values, fields: Iterable[str], weight: float
) -> dict[str, float]:
    """gamma values + (1 - gamma) reference for the fields that the model has; all else stays, and
    gamma = 1 too.
    """
    moved = {
        name: reference[name] + weight * (values[name] - reference[name])
        for name in fields
        if name in values
    }
    return {**values, **moved} if weight < 1 else dict(values)


def guided_by_metadata(
    requested: torch.Tensor, reference: torch.Tensor, strength: float
) -> torch.Tensor:
    """The condition e(s, r) + β (e(s, c) - e(s, r)) that CFG is to amplify, of predictions of the
    same shape.

    `requested` e(s, c): the text with the metadata requested; `reference` e(s, r): with the
    reference metadata; `strength` β: 0 is the reference, 1 the request, more goes beyond it.
    """
    return reference + strength * (requested - reference)


def metadata_entries(
    original_width: int,
    original_height: int,
    crop_left: int = 0,
    crop_top: int = 0,
    target_width: int = 0,
    target_height: int = 0,
    mirror: bool = False,
) -> dict[str, float]:
    """The conditioning entries of a node's widgets, without those that are not set (0 and no
    mirroring).

    Raises ValueError for a size of which only one side is set.
    """
    for name, sides in (
        ("original", (original_width, original_height)),
        ("target", (target_width, target_height)),
    ):
        if bool(sides[0]) != bool(sides[1]):
            raise ValueError(
                f"The {name} size is {sides[0]} x {sides[1]}: set both sides, or 0 for both."
            )
    entries = {
        "height": original_height,
        "width": original_width,
        "crop_h": crop_top,
        "crop_w": crop_left,
        "target_height": target_height,
        "target_width": target_width,
        "mirror": int(mirror),
    }
    return {name: value for name, value in entries.items() if value}


def crop_remark(entries: Values) -> str:
    """A sentence where a crop begins beyond the original image, else nothing."""
    beyond = [
        name
        for name, crop, side in (("crop_left", "crop_w", "width"), ("crop_top", "crop_h", "height"))
        if side in entries and entries.get(crop, 0) >= entries[side]
    ]
    return (
        f"{' and '.join(beyond)} lies beyond the original image: check its size." if beyond else ""
    )


def check_fields(entries: Iterable[str], fields: Iterable[str], model: str) -> None:
    """Raise ValueError when an entry is set that the model has no input for."""
    unknown = [name for name in entries if name not in set(fields)]
    if unknown:
        phrases = list(dict.fromkeys(_PHRASES[name] for name in unknown))
        raise ValueError(
            f"{model} has no input for {' or '.join(phrases)}: leave that at 0 or off."
        )


def format_metadata(values: Values) -> str:
    """As text: "original 512 x 512, crop 0 left 0 top, target 1024 x 1024"; of a pair, an absent
    side is 0.
    """
    parts = []
    if "width" in values or "height" in values:
        parts.append(f"original {values.get('width', 0):.4g} x {values.get('height', 0):.4g}")
    if "crop_w" in values or "crop_h" in values:
        parts.append(f"crop {values.get('crop_w', 0):.4g} left {values.get('crop_h', 0):.4g} top")
    if "target_width" in values or "target_height" in values:
        parts.append(
            f"target {values.get('target_width', 0):.4g} x {values.get('target_height', 0):.4g}"
        )
    if "mirror" in values:
        parts.append(f"mirror {values['mirror']:.4g}")
    return ", ".join(parts)
