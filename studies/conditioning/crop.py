"""Whether the shipped model obeys an requested crop: an image cut further from the left shows its
face further left.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ..common import results
from ..world.scenes import MAX_CROP, SIZE, Metadata, render
from . import sampled_images

#: Pixels cut from the left; the same half of the room above is cut each time, so that all images
#: are cropped ones.
LEFT, TOP = (0, MAX_CROP // 2, MAX_CROP), MAX_CROP // 2
_OTHER = 24  # levels of 255 that a pixel must differ from the ground to be of the person


def measure(quick: bool) -> dict[str, dict]:
    """How far the face moves when only the requested crop changes, against renders of the same
    scenes.
    """
    generator, _ = sampled_images.load()
    requested = [
        replace(scene, pattern="plain") for scene in sampled_images.scenes(12 if quick else 48)
    ]
    prompts = sampled_images.encoded(generator, sampled_images.texts(requested))
    made = [
        place(sampled_images.generated(generator, prompts, crop_w=left, crop_h=TOP))
        for left in LEFT
    ]
    real = [
        place(
            np.stack(
                [
                    render(replace(scene, metadata=Metadata(crop_top=TOP, crop_left=left)))
                    for scene in requested
                ]
            )
        )
        for left in LEFT
    ]
    numbers = {}
    for index, left in enumerate(LEFT[1:], 1):
        for name, places in (("model", made), ("renders", real)):
            numbers[f"{name}, crop {left} against 0: shift"] = results.bootstrap(
                places[0] - places[index],
                "mean column of the person, pixels to the left, same noise and caption",
                "pixels",
            )
    return numbers


def place(images: np.ndarray) -> np.ndarray:
    """The mean column (N,) of the pixels that differ from a plain ground, whose color is that of
    the top corners.
    """
    corners = np.concatenate([images[:, :8, :8], images[:, :8, -8:]], 2).reshape(len(images), -1, 3)
    ground = np.median(corners, 1)[:, None, None].astype(np.float32)
    person = np.abs(images.astype(np.float32) - ground).max(-1) > _OTHER
    columns = person.sum(1)
    return (columns * np.arange(SIZE)).sum(1) / columns.sum(1).clip(1)
