"""Inputs that several nodes of the family share, as the keywords of ComfyUI's input classes."""

from __future__ import annotations

import torch

from . import levels, selection
from .features import FRAMES, Activations

CATEGORY = "glassbox/activations"
PAPER = "Not All Diffusion Model Activations Have Been Evaluated as Discriminative Features (arXiv 2410.03558)"
PRECISIONS = {"half": torch.float16, "full": torch.float32}

PRESET = {
    "id": "preset",
    "options": list(selection.PRESETS),
    "default": selection.BEST,
    "tooltip": "Which activations. 'best for this model' is the paper's set for SD1.5/SD2.1 and SDXL and ours by "
    "analogy elsewhere; the sets named Ours and Legacy are the paper's; 'attention to words' is for Token Heat Map; "
    "'the list below' reads the next input.",
}
IDS = {
    "id": "ids",
    "default": "",
    "multiline": True,
    "tooltip": "For 'the list below': IDs or wildcards apart by commas or lines, such as up-level1-*-cross-q. "
    "Activation Catalog lists all. IDs that end in -map are attention probabilities: large, so name only the "
    "ones you need.",
}
NOISE_LEVEL = {
    "id": "noise_level",
    "options": list(levels.UNITS),
    "tooltip": "How level is meant: the paper's t (0 to 999), ComfyUI's percent of a run (0 is noise, 1 is clean), or "
    "sigma.",
}
LEVEL = {
    "id": "level",
    "default": 50.0,
    "min": 0.0,
    "max": 100000.0,
    "step": 0.01,
    "tooltip": "Amount of noise. The paper's recipe is t 50.",
}
POOL = {
    "id": "pool",
    "default": 1,
    "min": 1,
    "max": 64,
    "tooltip": "Average squares of this many positions a side before the copy: 2 needs a quarter of the memory.",
}
PRECISION = {
    "id": "precision",
    "options": list(PRECISIONS),
    "tooltip": "half: float16, as in the paper's code. full: float32, twice the memory, for measurements.",
}


def picture_of(image: torch.Tensor, activations: Activations, row: int) -> torch.Tensor:
    """The picture (H, W, 3) that a row is of, from the batch (B, H, W, C) that was tapped.

    Of a decoded video, which has more pictures than its latent has frames, the one at the same share of its length.
    Raises ValueError when the batch does not have it.
    """
    places, number = _places(len(image), activations), activations.rows[row].image
    if number >= len(places):
        raise ValueError(
            f"The activations are of {number + 1} pictures or more and the image batch has {len(image)}: connect "
            "the pictures that were tapped."
        )
    return image[places[number], ..., :3]


def pictures_of(image: torch.Tensor, activations: Activations) -> torch.Tensor:
    """The pictures (rows, H, W, 3) of all rows; raises ValueError as ``picture_of`` does."""
    return torch.stack([picture_of(image, activations, row) for row in range(len(activations.rows))])


def _places(count: int, activations: Activations) -> list[int]:
    """Which of ``count`` pictures belongs to each image of the activations."""
    frames = activations.settings.get(FRAMES, 1)
    videos = -(-(max(row.image for row in activations.rows) + 1) // frames)
    length, rest = divmod(count, videos)
    if frames == 1 or rest or length < frames:
        return list(range(count))
    chosen = [round(frame * (length - 1) / (frames - 1)) for frame in range(frames)]
    return [video * length + place for video in range(videos) for place in chosen]
