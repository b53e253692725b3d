"""What a model is told about a picture beside its text: original size, crop, target size, mirroring."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

Values = Mapping[str, float]

SIZE, CROP, TARGET = ("height", "width"), ("crop_h", "crop_w"), ("target_height", "target_width")
MIRROR = ("mirror",)

#: Which fields an input of the nodes stands for. The paper fades in low-level ones (size) and leaves crop and
#: flip on from the start.
GROUPS: dict[str, tuple[str, ...]] = {
    "original size": SIZE,
    "original and target size": SIZE + TARGET,
    "sizes and crop": SIZE + TARGET + CROP,
    "all": SIZE + TARGET + CROP + MIRROR,
}
_NAMES = {**dict.fromkeys(SIZE, "an original size"), **dict.fromkeys(CROP, "a crop"), "mirror": "mirroring",
          **dict.fromkeys(TARGET, "a target size")}  # fmt: skip


def reference(width: float, height: float) -> dict[str, float]:
    """The metadata of a whole, unmirrored picture of that size in pixels: what a closed gate tells instead."""
    return {
        "height": height, "width": width, "target_height": height, "target_width": width,
        "crop_h": 0.0, "crop_w": 0.0, "mirror": 0.0,
    }  # fmt: skip


def blended(told: Values, towards: Values, fields: Iterable[str], weight: float) -> dict[str, float]:
    """gamma told + (1 - gamma) reference for the fields that the model has; all else stays, and gamma = 1 too."""
    moved = {name: towards[name] + weight * (told[name] - towards[name]) for name in fields if name in told}
    return {**told, **moved} if weight < 1 else dict(told)


def asked(width: int, height: int, crop_left: int, crop_top: int, target_width: int, target_height: int,
          mirror: bool) -> dict[str, float]:  # fmt: skip
    """The conditioning entries for what a node was asked, without those left at "not said" (0 and no mirroring).

    Raises ValueError for a size of which only one side is given.
    """
    for name, sides in (("original", (width, height)), ("target", (target_width, target_height))):
        if bool(sides[0]) != bool(sides[1]):
            raise ValueError(f"The {name} size is {sides[0]} x {sides[1]}: give both sides, or 0 for both.")
    given = {"height": height, "width": width, "crop_h": crop_top, "crop_w": crop_left,
             "target_height": target_height, "target_width": target_width, "mirror": int(mirror)}  # fmt: skip
    return {name: value for name, value in given.items() if value}


def check_known(given: Iterable[str], fields: Iterable[str], model: str) -> None:
    """Raise ValueError when something is asked for that the model has no input for."""
    unknown = [name for name in given if name not in set(fields)]
    if unknown:
        names = list(dict.fromkeys(_NAMES[name] for name in unknown))
        raise ValueError(f"{model} has no input for {' or '.join(names)}: leave that at 0 or off.")


def described(values: Values) -> str:
    """Values in words: "original 512 x 512, crop 0 left 0 top, target 1024 x 1024"; of a pair, an absent side is 0."""
    parts = []
    if "width" in values or "height" in values:
        parts.append(f"original {values.get('width', 0):.4g} x {values.get('height', 0):.4g}")
    if "crop_w" in values or "crop_h" in values:
        parts.append(f"crop {values.get('crop_w', 0):.4g} left {values.get('crop_h', 0):.4g} top")
    if "target_width" in values or "target_height" in values:
        parts.append(f"target {values.get('target_width', 0):.4g} x {values.get('target_height', 0):.4g}")
    if "mirror" in values:
        parts.append(f"mirror {values['mirror']:.4g}")
    return ", ".join(parts)
