"""The two halves of drawing the nearest noise in closed form: what decides, and what moves."""

from __future__ import annotations

import torch


def pair_moments(data: torch.Tensor, noise: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """See ``kernels.pair_moments``."""
    data, noise = data.float(), noise.float()
    return (data * noise).sum(dim=1), data.square().sum(dim=1), noise.square().sum(dim=1)


def blend(data: torch.Tensor, noise: torch.Tensor, along: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """See ``kernels.blend``."""
    return torch.addcmul(noise.float() * scale[:, None].float(), data.float(), along[:, None].float())
