"""Scenes: a face placed on a background, brought to 128 px as a photograph would be, with the truth
carried along.

The way to 128 px is what size conditioning describes: the size that the image had before (small
ones are blurred), how far the crop lies from the top left corner, and whether the image was
mirrored.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from PIL import Image

from .faces import HEIGHT, KEYPOINTS, PARTS, WIDTH, Face, draw, part_masks, random_face

SIZE = 128
MAX_CROP = 32
MIN_ORIGINAL = 32
PATTERNS = ("plain", "split", "striped", "dotted")
BACKGROUNDS = {
    "blue": (0.42, 0.62, 0.93),
    "green": (0.50, 0.80, 0.52),
    "yellow": (0.98, 0.88, 0.50),
    "gray": (0.74, 0.76, 0.80),
    "purple": (0.66, 0.52, 0.86),
}


@dataclass(frozen=True)
class Metadata:
    """Size conditioning: pixels of the original side, crop offsets in pixels of 128, mirrored or
    not.
    """

    original: int = SIZE
    crop_top: int = 0
    crop_left: int = 0
    mirror: bool = False

    def numbers(self) -> list[float]:
        """The five numbers of the model's vector: height, width, crop top, crop left, mirrored (0
        or ``SIZE``).
        """
        return [
            self.original,
            self.original,
            self.crop_top,
            self.crop_left,
            SIZE if self.mirror else 0,
        ]


@dataclass(frozen=True)
class Scene:
    """A face, its place and its ground. ``height`` in pixels of the scene, ``left`` and ``top`` in
    0..1 of the room.
    """

    face: Face
    background: str
    pattern: str
    height: int
    left: float
    top: float
    metadata: Metadata


def random_metadata(rng: np.random.Generator) -> Metadata:
    """A quarter of the images are blurred, a quarter cropped, half mirrored, independently.

    Only mirroring turns a face round: the drawings part their hair on one side and a split ground
    is darker on the left, so whether an image was mirrored can be seen in it.
    """
    original = SIZE if rng.random() < 0.75 else int(rng.integers(MIN_ORIGINAL, SIZE + 1))
    crop = (
        (0, 0) if rng.random() < 0.75 else tuple(int(v) for v in rng.integers(0, MAX_CROP + 1, 2))
    )
    return Metadata(original, *crop, bool(rng.random() < 0.5))


def random_scene(
    rng: np.random.Generator, metadata: Metadata | None = None, smallest: float = 0.75
) -> Scene:
    """A random face at a random place; the face fills ``smallest`` to all of the image's height."""
    return Scene(
        random_face(rng),
        str(rng.choice(tuple(BACKGROUNDS))),
        str(rng.choice(PATTERNS)),
        int(rng.integers(round(smallest * SIZE), SIZE + 1)),
        float(rng.random()),
        float(rng.random()),
        metadata or random_metadata(rng),
    )


#: Side of the canvas from which an image is cropped.
CANVAS = SIZE + MAX_CROP


def ground(scene: Scene) -> np.ndarray:
    """The background alone: float32 (CANVAS, CANVAS, 3)."""
    y, x = np.mgrid[:CANVAS, :CANVAS]
    pattern = {
        "plain": np.zeros((CANVAS, CANVAS), bool),
        "split": x > SIZE * 0.5,
        "striped": (x // 10) % 2 == 1,
        "dotted": ((x % 16 - 8) ** 2 + (y % 16 - 8) ** 2) < 14,
    }[scene.pattern]
    color = np.asarray(BACKGROUNDS[scene.background], np.float32)
    return np.where(pattern[..., None], color * 0.55 + 0.45, color).astype(np.float32)


def _corner(scene: Scene) -> tuple[int, int]:
    """Left and top of the face on the canvas. Shoulders touch the lower edge of the uncropped image
    or lie below it.

    A crop offset moves the window, so it moves the face up and left by as many pixels.
    """
    left = int(scene.left * (SIZE - math.ceil(scene.height * WIDTH / HEIGHT)))
    return left, SIZE - scene.height + round(scene.top * 0.1 * scene.height)


def _place(layer: np.ndarray, left: int, top: int) -> np.ndarray:
    """Put a layer on an empty canvas; its lowest row goes on to the canvas's edge, and what hangs
    over is cut.
    """
    canvas = np.zeros((CANVAS, CANVAS, *layer.shape[2:]), np.float32)
    layer = layer[: CANVAS - top, : CANVAS - left]
    canvas[top : top + layer.shape[0], left : left + layer.shape[1]] = layer
    canvas[top + layer.shape[0] :, left : left + layer.shape[1]] = layer[-1:]
    return canvas


def _finish(image: np.ndarray, scene: Scene, blur: bool) -> np.ndarray:
    """Crop, shrink to the original size and back (blur), mirror."""
    meta = scene.metadata
    image = image[meta.crop_top : meta.crop_top + SIZE, meta.crop_left : meta.crop_left + SIZE]
    if blur and meta.original < SIZE:
        small = _resize(image, meta.original, Image.Resampling.BOX)
        image = _resize(small, SIZE, Image.Resampling.BILINEAR)
    return image[:, ::-1] if meta.mirror else image


def _resize(image: np.ndarray, side: int, filter: Image.Resampling) -> np.ndarray:
    image = Image.fromarray((image * 255).round().clip(0, 255).astype(np.uint8))
    return np.asarray(image.resize((side, side), filter), np.float32) / 255


def render(scene: Scene) -> np.ndarray:
    """The image: uint8 (128, 128, 3)."""
    face = _place(draw(scene.face, scene.height), *_corner(scene))
    image = face[..., :3] + (1 - face[..., 3:]) * ground(scene)
    return (_finish(image, scene, blur=True) * 255).round().clip(0, 255).astype(np.uint8)


def masks(scene: Scene) -> dict[str, np.ndarray]:
    """True visible pixels of every part of ``PARTS``, and of the background: float32 (128, 128) in
    0..1.
    """

    def carry(layer: np.ndarray) -> np.ndarray:
        return _finish(_place(layer, *_corner(scene)), scene, blur=False)

    parts = part_masks(scene.face, scene.height)
    result = {name: carry(parts[name]) for name in PARTS}
    result["background"] = 1 - carry(draw(scene.face, scene.height)[..., 3])
    return result


def keypoints(scene: Scene) -> dict[str, tuple[float, float]]:
    """Pixel positions (x, y) of eyes, nose and mouth in the finished image; outside 0..128 when
    cropped away.

    "left" and "right" are the face's own sides as drawn, so mirroring exchanges their place, not
    their names.
    """
    left, top = _corner(scene)
    scale, points = scene.height / HEIGHT, {}
    for name, (x, y) in KEYPOINTS.items():
        x = x * scale + left - scene.metadata.crop_left
        y = y * scale + top - scene.metadata.crop_top
        points[name] = (SIZE - x if scene.metadata.mirror else x, y)
    return points


@dataclass(frozen=True)
class Member:
    """A face of a group: its height in pixels, and its left and top on the canvas."""

    face: Face
    height: int
    left: int
    top: int


def random_group(rng: np.random.Generator, count: int) -> list[Member]:
    """``count`` faces of 40 to 75 pixels beside or above one another; lower ones hide higher
    ones.
    """
    members: list[Member] = []
    while len(members) < count:
        height = int(rng.integers(40, 76 if count < 3 else 61))
        left, top = (
            int(rng.integers(-6, SIZE - height + 6)),
            int(rng.integers(0, SIZE - height + 8)),
        )
        apart = [
            max(abs(left - other.left), abs(top - other.top)) > 0.42 * (height + other.height)
            for other in members
        ]
        if all(apart):
            members.append(Member(random_face(rng), height, left, top))
        elif rng.random() < 0.02:
            members.clear()
    return sorted(members, key=lambda member: member.top)


def render_group(members: list[Member], scene: Scene) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Several faces, or none, on the ground of ``scene``, with its blur and mirroring but
    uncropped.

    Returns the image uint8 (128, 128, 3) and the visible pixels of each part as ``masks`` does.
    """
    image = ground(scene)
    truth = {name: np.zeros((CANVAS, CANVAS), np.float32) for name in PARTS}
    shown = np.zeros((CANVAS, CANVAS), np.float32)
    for member in members:
        layers = {"": draw(member.face, member.height), **part_masks(member.face, member.height)}
        cut = max(-member.left, 0)
        placed = {
            name: _place(layer[:, cut:], max(member.left, 0), member.top)
            for name, layer in layers.items()
        }
        cover = placed.pop("")
        image = cover[..., :3] + (1 - cover[..., 3:]) * image
        truth = {name: placed[name] + (1 - cover[..., 3]) * truth[name] for name in PARTS}
        shown = cover[..., 3] + (1 - cover[..., 3]) * shown
    scene = replace(scene, metadata=replace(scene.metadata, crop_top=0, crop_left=0))
    result = {
        name: _finish(mask, scene, blur=False)
        for name, mask in (truth | {"background": 1 - shown}).items()
    }
    return (_finish(image, scene, blur=True) * 255).round().clip(0, 255).astype(np.uint8), result
