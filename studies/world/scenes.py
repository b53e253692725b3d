"""Scenes: a face placed on a background, brought to 128 px as a photograph would be, with the truth carried along.

The way to 128 px is what a model with size conditioning is told: the size the picture had before (small ones are
blurred), how far the crop lies from the top left corner, and whether the picture was mirrored.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from PIL import Image

from .faces import HEIGHT, KEYPOINTS, PARTS, WIDTH, Face, draw, part_masks, random_face

SIZE = 128
MAX_CROP = 32
MIN_ORIGINAL = 32
PATTERNS = ("plain", "split", "striped", "dotted")
BACKGROUNDS = {"blue": (0.42, 0.62, 0.93), "green": (0.50, 0.80, 0.52), "yellow": (0.98, 0.88, 0.50),
               "gray": (0.74, 0.76, 0.80), "purple": (0.66, 0.52, 0.86)}


@dataclass(frozen=True)
class Metadata:
    """What a size-conditioned model is told: pixels of the original side, crop offsets in pixels of 128, mirror 0/1."""

    original: int = SIZE
    crop_top: int = 0
    crop_left: int = 0
    mirror: bool = False

    def numbers(self) -> list[float]:
        """The five numbers of the model's vector: height, width, crop top, crop left, mirrored (0 or ``SIZE``)."""
        return [self.original, self.original, self.crop_top, self.crop_left, SIZE if self.mirror else 0]


@dataclass(frozen=True)
class Scene:
    """A face, its place and its ground. ``height`` in pixels of the scene, ``left`` and ``top`` in 0..1 of the room."""

    face: Face
    background: str
    pattern: str
    height: int
    left: float
    top: float
    metadata: Metadata


def random_metadata(rng: np.random.Generator) -> Metadata:
    """Half of the pictures are sharp, half uncropped, half mirrored, independently.

    Only mirroring turns a face round: the drawings part their hair on one side and a split ground is darker on the
    left, so whether a picture was mirrored can be seen in it."""
    original = SIZE if rng.random() < 0.5 else int(rng.integers(MIN_ORIGINAL, SIZE + 1))
    crop = (0, 0) if rng.random() < 0.5 else tuple(int(v) for v in rng.integers(0, MAX_CROP + 1, 2))
    return Metadata(original, *crop, bool(rng.random() < 0.5))


def random_scene(rng: np.random.Generator, metadata: Metadata | None = None, smallest: float = 0.6) -> Scene:
    """A random face at a random place; the face fills ``smallest`` to all of the picture's height."""
    return Scene(random_face(rng), str(rng.choice(tuple(BACKGROUNDS))), str(rng.choice(PATTERNS)),
                 int(rng.integers(round(smallest * SIZE), SIZE + 1)), float(rng.random()), float(rng.random()),
                 metadata or random_metadata(rng))


def ground(scene: Scene, side: int) -> np.ndarray:
    """The background alone: float32 (side, side, 3)."""
    y, x = np.mgrid[:side, :side]
    pattern = {
        "plain": np.zeros((side, side), bool),
        "split": x > side * 0.5,
        "striped": (x // 10) % 2 == 1,
        "dotted": ((x % 16 - 8) ** 2 + (y % 16 - 8) ** 2) < 14,
    }[scene.pattern]
    color = np.asarray(BACKGROUNDS[scene.background], np.float32)
    return np.where(pattern[..., None], color * 0.55 + 0.45, color).astype(np.float32)


def _layout(scene: Scene) -> tuple[int, int, int]:
    """Side of the scene before cropping, and the face's left and top in it.

    The shoulders touch the lower edge or lie below it.
    """
    side = SIZE + MAX_CROP if scene.metadata.crop_top or scene.metadata.crop_left else SIZE
    width = math.ceil(scene.height * WIDTH / HEIGHT)
    left = int(scene.left * (side - width))
    top = side - scene.height + round(scene.top * 0.1 * scene.height)
    return side, left, top


def _place(layer: np.ndarray, side: int, left: int, top: int) -> np.ndarray:
    """Put a layer on an empty square; what hangs over an edge is cut."""
    canvas = np.zeros((side, side, *layer.shape[2:]), np.float32)
    layer = layer[:side - top, :side - left]
    canvas[top:top + layer.shape[0], left:left + layer.shape[1]] = layer
    return canvas


def _finish(picture: np.ndarray, scene: Scene, blur: bool) -> np.ndarray:
    """Crop, shrink to the original size and back (blur), mirror."""
    meta = scene.metadata
    picture = picture[meta.crop_top:meta.crop_top + SIZE, meta.crop_left:meta.crop_left + SIZE]
    if blur and meta.original < SIZE:
        small = _resize(picture, meta.original, Image.Resampling.BOX)
        picture = _resize(small, SIZE, Image.Resampling.BILINEAR)
    return picture[:, ::-1] if meta.mirror else picture


def _resize(picture: np.ndarray, side: int, filter: Image.Resampling) -> np.ndarray:
    image = Image.fromarray((picture * 255).round().clip(0, 255).astype(np.uint8))
    return np.asarray(image.resize((side, side), filter), np.float32) / 255


def render(scene: Scene) -> np.ndarray:
    """The picture: uint8 (128, 128, 3)."""
    side, left, top = _layout(scene)
    face = draw(scene.face, scene.height)
    face = _place(face, side, left, top)
    picture = face[..., :3] + (1 - face[..., 3:]) * ground(scene, side)
    return (_finish(picture, scene, blur=True) * 255).round().clip(0, 255).astype(np.uint8)


def masks(scene: Scene) -> dict[str, np.ndarray]:
    """True visible pixels of every part of ``PARTS``, and of the background: float32 (128, 128) in 0..1."""
    side, left, top = _layout(scene)

    def carry(layer: np.ndarray) -> np.ndarray:
        return _finish(_place(layer, side, left, top), scene, blur=False)

    parts = part_masks(scene.face, scene.height)
    result = {name: carry(parts[name]) for name in PARTS}
    result["background"] = 1 - carry(draw(scene.face, scene.height)[..., 3])
    return result


def keypoints(scene: Scene) -> dict[str, tuple[float, float]]:
    """Pixel positions (x, y) of eyes, nose and mouth in the finished picture; outside 0..128 when cropped away.

    "left" and "right" are the face's own sides as drawn, so mirroring exchanges their place, not their names.
    """
    _, left, top = _layout(scene)
    scale, points = scene.height / HEIGHT, {}
    for name, (x, y) in KEYPOINTS.items():
        x = x * scale + left - scene.metadata.crop_left
        y = y * scale + top - scene.metadata.crop_top
        points[name] = (SIZE - x if scene.metadata.mirror else x, y)
    return points
