"""The two halves of drawing the nearest noise in closed form: what decides, and what moves."""

from __future__ import annotations

import torch


def pair_moments(data: torch.Tensor, noise: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """See ``kernels.pair_moments``."""
    _check(data, noise)
    data, noise = data.float(), noise.float()
    return (data * noise).sum(dim=1), data.square().sum(dim=1), noise.square().sum(dim=1)


def blend(data: torch.Tensor, noise: torch.Tensor, along: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """See ``kernels.blend``."""
    _check(data, noise)
    return torch.addcmul(noise.float() * scale[:, None].float(), data.float(), along[:, None].float())


def _check(data: torch.Tensor, noise: torch.Tensor) -> None:
    if data.ndim != 2 or data.shape != noise.shape:
        raise ValueError(f"Data and noise must both be (B, D), not {tuple(data.shape)} and {tuple(noise.shape)}.")
