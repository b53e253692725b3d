"""The autoencoder of the demo world: principal components of patches, and a small decoder that
refines them.

The encoder is linear: it gives the coefficients of every 8 x 8 RGB patch in an orthonormal basis,
each divided by its standard deviation over the training images. The decoder multiplies back and
adds what a convolutional network predicts that the dropped components held, which also removes the
edges between patches.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

PATCH = 8


class Residual(nn.Module):
    """x + conv(silu(conv(silu(x)))). No normalization, so that tiles decode as the whole image
    does.
    """

    def __init__(self, channels: int, operations: Any):
        super().__init__()
        self.first = operations.Conv2d(channels, channels, 3, padding=1)
        self.second = operations.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.second(F.silu(self.first(F.silu(x))))


class PatchAutoencoder(nn.Module):
    """Images (N, 3, H, W) in -1..1 to latents (N, channels, H / 8, W / 8) of about unit variance,
    and back.

    ``widths``: channels of the decoder at an eighth, a quarter and half of the resolution.
    ``operations`` has the layer classes: torch.nn, or ComfyUI's.
    """

    def __init__(
        self, channels: int = 24, widths: tuple[int, int, int] = (96, 48, 32), operations: Any = nn
    ):
        super().__init__()
        eighth, quarter, half = widths
        self.project = operations.Conv2d(3, channels, PATCH, stride=PATCH)
        self.expand = operations.ConvTranspose2d(channels, 3, PATCH, stride=PATCH)
        self.refine = nn.Sequential(
            operations.Conv2d(channels, eighth, 3, padding=1),
            Residual(eighth, operations),
            Residual(eighth, operations),
            operations.Conv2d(eighth, 4 * quarter, 3, padding=1),
            nn.PixelShuffle(2),
            Residual(quarter, operations),
            operations.Conv2d(quarter, 4 * half, 3, padding=1),
            nn.PixelShuffle(2),
            Residual(half, operations),
            nn.SiLU(),
            operations.Conv2d(half, 4 * 3, 3, padding=1),
            nn.PixelShuffle(2),
        )

    @torch.no_grad()
    def set_basis(self, basis: torch.Tensor, std: torch.Tensor, color: torch.Tensor) -> None:
        """Take the orthonormal ``basis`` (channels, 3, 8, 8), their ``std`` (channels,) and the
        mean color (3,).

        The refinement starts at zero, so the decoder is the linear one until it is trained.
        """
        self.project.weight.copy_(basis / std[:, None, None, None])
        self.project.bias.copy_(-(self.project.weight.sum((2, 3)) @ color))
        self.expand.weight.copy_(basis * std[:, None, None, None])
        self.expand.bias.copy_(color)
        for parameter in self.refine[-2].parameters():
            nn.init.zeros_(parameter)

    def encode(self, images: torch.Tensor) -> torch.Tensor:
        return self.project(images)

    def decode(self, latents: torch.Tensor) -> torch.Tensor:
        return self.expand(latents) + self.refine(latents)


def fit_basis(
    images: torch.Tensor, channels: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Principal components of the patches of ``images`` (N, 3, H, W) in -1..1: basis, std and mean
    color as above.
    """
    color = images.double().mean((0, 2, 3))
    patches = (
        F.unfold(images - color.float()[:, None, None], PATCH, stride=PATCH)
        .transpose(1, 2)
        .flatten(0, 1)
        .double()
    )
    values, vectors = torch.linalg.eigh(patches.T @ patches / len(patches))
    basis = vectors.flip(1)[:, :channels].T
    std = values.flip(0)[:channels].sqrt()
    return basis.reshape(channels, 3, PATCH, PATCH).float(), std.float(), color.float()
