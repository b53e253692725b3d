"""Whether the shipped model obeys an asked crop: a picture cut further from the left shows its face further left."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ..common import results
from ..world.scenes import MAX_CROP, SIZE, Metadata, render
from . import pictures

#: Pixels cut from the left; the same half of the room above is cut each time, so that all pictures are cropped ones.
LEFT, TOP = (0, MAX_CROP // 2, MAX_CROP), MAX_CROP // 2
_OTHER = 24  # levels of 255 that a pixel must differ from the ground to be of the person


def measure(quick: bool) -> dict[str, dict]:
    """How far the face moves when only the asked crop changes, against renders of the same scenes."""
    generator, _ = pictures.load()
    asked = [replace(scene, pattern="plain") for scene in pictures.scenes(12 if quick else 48)]
    prompts = pictures.encoded(generator, pictures.texts(asked))
    made = [place(pictures.painted(generator, prompts, crop_w=left, crop_h=TOP)) for left in LEFT]
    real = [place(np.stack([render(replace(scene, metadata=Metadata(crop_top=TOP, crop_left=left)))
                            for scene in asked])) for left in LEFT]  # fmt: skip
    numbers = {}
    for index, left in enumerate(LEFT[1:], 1):
        for name, places in (("model", made), ("renders", real)):
            numbers[f"{name}, crop {left} against 0: shift"] = results.bootstrap(
                places[0] - places[index], "mean column of the person, pixels to the left, same noise and caption",
                "pixels")  # fmt: skip
    return numbers


def place(pictures: np.ndarray) -> np.ndarray:
    """The mean column (N,) of the pixels that differ from a plain ground, whose colour is that of the top corners."""
    corners = np.concatenate([pictures[:, :8, :8], pictures[:, :8, -8:]], 2).reshape(len(pictures), -1, 3)
    ground = np.median(corners, 1)[:, None, None].astype(np.float32)
    person = np.abs(pictures.astype(np.float32) - ground).max(-1) > _OTHER
    columns = person.sum(1)
    return (columns * np.arange(SIZE)).sum(1) / columns.sum(1).clip(1)
