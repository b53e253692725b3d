"""The faces of the demo world: attributes drawn as SVG by python-avatars, rasterized by resvg.

A face is plain data, so the truth about an image (which pixels are beard, where the left eye is)
can be had by drawing it again with one part changed.
"""

from __future__ import annotations

import io
import re
from dataclasses import dataclass, fields, replace

import numpy as np
import python_avatars as pa
import resvg_py
from PIL import Image

SKIN = {
    "pale": "#FFE0C4",
    "light": "#EDB98A",
    "tanned": "#F58B3C",
    "brown": "#AE5D29",
    "black": "#59382A",
}
COLORS = {
    "black": "#2C1B18",
    "brown": "#724133",
    "blonde": "#D9B05B",
    "red": "#C93305",
    "pink": "#F58CA6",
    "gray": "#A9ABB5",
    "platinum": "#F4E9CE",
}
HAIR = {
    "bald": "NONE",
    "big": "BIG_HAIR",
    "bob": "BOB",
    "bun": "BUN",
    "short": "CAESAR",
    "curly": "CURLY",
    "dreads": "DREADS",
    "afro": "FRO",
    "long": "LONG_NOT_TOO_LONG",
    "undercut": "SHAVED_SIDES",
    "flat": "SHORT_FLAT",
    "straight": "STRAIGHT_1",
    "mohawk": "MOHAWK",
    "quiff": "QUIFF",
}
FACIAL_HAIR = {
    "none": "NONE",
    "light beard": "BEARD_LIGHT",
    "majestic beard": "BEARD_MAGESTIC",
    "moustache": "MOUSTACHE_MAGNUM",
}
ACCESSORY = {"none": "NONE", "round glasses": "ROUND", "sunglasses": "SUNGLASSES"}
CLOTHING = {
    "hoodie": "HOODIE",
    "overall": "OVERALL",
    "shirt": "SHIRT_CREW_NECK",
    "sweater": "COLLAR_SWEATER",
}
CLOTHING_COLORS = {
    "black": "#262E33",
    "blue": "#2F6FD0",
    "green": "#4FA35A",
    "yellow": "#F7CF3C",
    "pink": "#F06AA8",
    "red": "#D93A2B",
    "white": "#F4F4F4",
}
MOUTH = {
    "smiling": "SMILE",
    "serious": "SERIOUS",
    "sad": "SAD",
    "tongue": "TONGUE",
    "screaming": "SCREAM_OPEN",
}
EYES = {
    "open": "DEFAULT",
    "closed": "CLOSED",
    "squinting": "SQUINT",
    "surprised": "SURPRISED",
    "heart": "HEART",
    "dizzy": "X_DIZZY",
}

#: Attribute name -> its values, in the order in which networks number them.
ATTRIBUTES: dict[str, tuple[str, ...]] = {
    "skin": tuple(SKIN),
    "hair": tuple(HAIR),
    "hair_color": tuple(COLORS),
    "facial_hair": tuple(FACIAL_HAIR),
    "accessory": tuple(ACCESSORY),
    "clothing": tuple(CLOTHING),
    "clothing_color": tuple(CLOTHING_COLORS),
    "mouth": tuple(MOUTH),
    "eyes": tuple(EYES),
}
IDENTITY = ("skin", "hair", "hair_color", "facial_hair", "accessory")
PARTS = ("skin", "hair", "facial_hair", "clothing", "accessory")
#: Template positions (x, y) in the 264 x 280 drawing, before placing: mirrored with the face.
KEYPOINTS = {
    "left eye": (106.0, 112.0),
    "right eye": (160.0, 112.0),
    "nose": (132.5, 132.0),
    "mouth": (132.5, 153.0),
}
WIDTH, HEIGHT = 264, 280


@dataclass(frozen=True)
class Face:
    """One face: a value of every attribute of ``ATTRIBUTES``."""

    skin: str
    hair: str
    hair_color: str
    facial_hair: str
    accessory: str
    clothing: str
    clothing_color: str
    mouth: str
    eyes: str

    def indices(self) -> list[int]:
        """Class index of every attribute, in the order of ``ATTRIBUTES``."""
        return [values.index(getattr(self, name)) for name, values in ATTRIBUTES.items()]


def random_face(rng: np.random.Generator) -> Face:
    """A face with independent attributes; half of the faces have no facial_hair, half no
    accessory.
    """
    chosen = {field.name: str(rng.choice(ATTRIBUTES[field.name])) for field in fields(Face)}
    for name in ("facial_hair", "accessory"):
        chosen[name] = "none" if rng.random() < 0.5 else str(rng.choice(ATTRIBUTES[name][1:]))
    return Face(**chosen)


#: Hair that the drawing gives no color of its own: none at all, or always the same one.
COLORLESS_HAIR = ("bald", "undercut")


def visible(face: Face) -> dict[str, bool]:
    """Which attributes can be seen: sunglasses hide the eyes, colorless hair without a beard shows
    no hair color.
    """
    shown = dict.fromkeys(ATTRIBUTES, True)
    shown["eyes"] = face.accessory != "sunglasses"
    shown["hair_color"] = face.hair not in COLORLESS_HAIR or face.facial_hair != "none"
    return shown


def svg(face: Face, **colors: str) -> str:
    """SVG of a face on a transparent ground; ``colors`` overrides skin, hair, facial_hair or
    clothing (hex).
    """
    hair_color = COLORS[face.hair_color]
    avatar = pa.Avatar(
        style=pa.AvatarStyle.TRANSPARENT,
        skin_color=colors.get("skin", SKIN[face.skin]),
        top=getattr(pa.HairType, HAIR[face.hair]),
        hair_color=colors.get("hair", hair_color),
        facial_hair=getattr(pa.FacialHairType, FACIAL_HAIR[face.facial_hair]),
        facial_hair_color=colors.get("facial_hair", hair_color),
        accessory=getattr(pa.AccessoryType, ACCESSORY[face.accessory]),
        clothing=getattr(pa.ClothingType, CLOTHING[face.clothing]),
        clothing_color=colors.get("clothing", CLOTHING_COLORS[face.clothing_color]),
        mouth=getattr(pa.MouthType, MOUTH[face.mouth]),
        eyes=getattr(pa.EyeType, EYES[face.eyes]),
        eyebrows=pa.EyebrowType.DEFAULT,
        nose=pa.NoseType.DEFAULT,
    )
    # resvg needs no text; a title element costs a font look-up.
    return re.sub(r"<(title|desc)[^>]*>.*?</\1>", "", avatar.render(), flags=re.S)


def draw(face: Face, height: int, **colors: str) -> np.ndarray:
    """Rasterize a face ``height`` pixels high: float32 (height, width, 4), premultiplied RGBA in
    0..1.
    """
    png = resvg_py.svg_to_bytes(
        svg_string=svg(face, **colors), height=height, skip_system_fonts=True
    )
    pixels = np.asarray(Image.open(io.BytesIO(bytes(png))).convert("RGBA"), dtype=np.float32) / 255
    pixels[..., :3] *= pixels[..., 3:]
    return pixels


def part_masks(face: Face, height: int) -> dict[str, np.ndarray]:
    """Visible pixels of each part of ``PARTS``: float32 (height, width) in 0..1.

    A pixel belongs to a part as far as its color follows that part's color (black against white);
    an accessory, and hair whose color is fixed, are where the drawing differs from the one without
    them.
    """

    names = ("skin", "hair", "facial_hair", "clothing")
    black = dict.fromkeys(names, "#000000")
    dark = draw(face, height, **black)
    # Compositing is linear in each part's color, so three parts go into the three channels of one
    # drawing.
    primary = (
        draw(
            face, height, **black | {"skin": "#FF0000", "hair": "#00FF00", "facial_hair": "#0000FF"}
        )
        - dark
    )
    clothing = draw(face, height, **black | {"clothing": "#FFFFFF"}) - dark
    follows = [*np.abs(primary[..., :3]).transpose(2, 0, 1), np.abs(clothing[..., :3]).max(-1)]
    masks = dict(zip(PARTS, follows, strict=False))
    if face.hair == "undercut":
        masks["hair"] = _changes(face, replace(face, hair="bald"), height)
        masks["skin"] *= 1 - masks["hair"]
    masks["accessory"] = _changes(face, replace(face, accessory="none"), height)
    return masks


def _changes(face: Face, other: Face, height: int) -> np.ndarray:
    """1 where two drawings differ visibly, else 0."""
    difference = np.abs(draw(face, height) - draw(other, height)).max(-1)
    return (difference > 0.02).astype(np.float32)
