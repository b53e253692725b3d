"""How similar every position is to a chosen one."""

from __future__ import annotations

import torch
from torch.nn import functional as F


def of_mask(feature: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """The mean direction (1, C) of one row (C, H, W) inside a mask (height, width); ValueError for an empty one."""
    weights = F.interpolate(mask.float()[None, None], size=feature.shape[-2:], mode="area")[0, 0].clamp(0, 1)
    if weights.sum() <= 0:
        raise ValueError("The mask is empty: paint the part that everything is to be compared with.")
    directions = F.normalize(feature.float(), dim=0)
    return (directions * weights).sum((1, 2))[None] / weights.sum()


def similarity(feature: torch.Tensor, references: torch.Tensor) -> torch.Tensor:
    """Cosine similarity (rows, H, W) of a feature (rows, C, H, W) to references (P, C): to the best of several."""
    directions = F.normalize(feature.float(), dim=1)
    return torch.einsum("bchw,pc->bphw", directions, F.normalize(references.float(), dim=1)).amax(1)
