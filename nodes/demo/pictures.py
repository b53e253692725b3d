"""Pictures of the demo world with their truth: rendered, not generated."""

from __future__ import annotations

import torch

from . import assets
from .architecture import SIZE

PARTS = ("face", "skin", "hair", "facial hair", "clothing", "accessory", "background")


def load(world: str, first: int, count: int, part: str) -> tuple[torch.Tensor, torch.Tensor, list[str]]:
    """Rendered pictures ``first`` to ``first + count - 1``, counted round.

    Returns pictures float32 (B, 128, 128, 3) in 0..1, the true mask (B, 128, 128) of a part of ``PARTS`` ("face" is
    everything but the background) and the captions.
    """
    strip, truth = assets.picture(world, "pictures"), assets.picture(world, "masks")
    tiles = strip.unfold(1, SIZE, SIZE).permute(1, 0, 3, 2)
    parts = truth.unfold(0, SIZE, SIZE).unfold(1, SIZE, SIZE).transpose(0, 1)
    picks = [(first + offset) % len(tiles) for offset in range(count)]
    masks = parts[picks]
    mask = 1 - masks[:, PARTS.index("background") - 1] if part == "face" else masks[:, PARTS.index(part) - 1]
    captions = assets.captions(world)
    return tiles[picks].contiguous(), mask.contiguous(), [captions[pick] for pick in picks]
