"""Faces of different identities with the truth about them: key points, and a label for every
pixel.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from ..world.scenes import Metadata, keypoints, masks, random_scene, render

#: Labels from 1 on; 0 is the background.
PARTS = ("skin", "hair", "facial_hair", "clothing", "accessory")
TEXT = "portrait"  # as in the paper one text for all images, which says what kind they are


@dataclass(frozen=True)
class LabeledFaces:
    """``images`` float32 (N, 128, 128, 3), ``points`` float32 (N, 4, 2) x and y, ``labels`` int64
    (N, 128, 128).

    ``heights`` (N,): of the faces, in pixels.
    """

    images: torch.Tensor
    points: torch.Tensor
    heights: torch.Tensor
    labels: torch.Tensor

    def __getitem__(self, rows) -> LabeledFaces:
        return LabeledFaces(
            self.images[rows], self.points[rows], self.heights[rows], self.labels[rows]
        )


def drawn(count: int, seed: int) -> LabeledFaces:
    """Sharp, whole, unmirrored faces of random identity, place, size and ground."""
    rng = np.random.default_rng(seed)
    scenes = [random_scene(rng, Metadata()) for _ in range(count)]
    images = np.stack([render(scene) for scene in scenes])
    points = np.array([list(keypoints(scene).values()) for scene in scenes], np.float32)
    return LabeledFaces(
        torch.from_numpy(images).float() / 255,
        torch.from_numpy(points),
        torch.tensor([scene.height for scene in scenes]),
        torch.stack([_labels(masks(scene)) for scene in scenes]),
    )


def pairs(count: int) -> list[tuple[int, int]]:
    """Source and target: every image is a source twice, with partners one and seven places on."""
    return [(first, (first + step) % count) for step in (1, 7) for first in range(count)]


def _labels(parts: dict[str, np.ndarray]) -> torch.Tensor:
    """The part with the largest fraction of each pixel; 0 where the background has it."""
    stacked = torch.from_numpy(
        np.stack([parts["background"], *(parts[name] for name in PARTS)]).copy()
    )
    stacked[5] *= 1.01  # glasses lie over the skin that shows through them
    return stacked.argmax(0)
