"""Fit the autoencoder: principal components of patches, then a small decoder trained to refine
them.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from ..common import host
from ..common.training import Plan, device, reset_parameters, starting_weights, train
from . import dataset

#: Latent channels, and the decoder's widths from an eighth to half of the resolution.
CHANNELS, WIDTHS = 24, (128, 96, 48)
PLAN = Plan(steps=900, learning_rate=1.5e-3, warmup=50, ema_decay=0.99, seed=11, matrix_rate=0.01)
BATCH = 16
#: Images that the components are fitted on, and that the decoder is trained on.
FITTED, IMAGES = 2_000, 8_000
#: A quarter of the latents get noise of up to this deviation: generated latents are not exact.
NOISE = 0.1


def prepared(images: np.ndarray) -> torch.Tensor:
    """uint8 (N, 128, 128, 3) to float32 (N, 3, 128, 128) in -1..1."""
    return torch.from_numpy(images).permute(0, 3, 1, 2).float() / 127.5 - 1


def build(images: np.ndarray | None = None) -> torch.nn.Module:
    """The autoencoder with fresh weights; with ``images`` its linear part is fitted to them."""
    torch.manual_seed(PLAN.seed)
    method = host.pack("nodes.demo.patch_autoencoder")
    network = method.PatchAutoencoder(CHANNELS, WIDTHS)
    reset_parameters(network)
    network.outer = ("project", "expand", "refine.10")
    for part in (network.project, network.expand):
        part.requires_grad_(False)
    if images is not None:
        network.set_basis(*method.fit_basis(prepared(images), CHANNELS))
    return network.to(device())


def detail_loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """L1 and squared error of pixels and neighbors' differences, weighted up to five times at fine
    detail.
    """
    smooth = F.avg_pool2d(target, 5, stride=1, padding=2, count_include_pad=False)
    detail = (target - smooth).abs().amax(1, keepdim=True)
    weight = 1 + 4 * F.max_pool2d(detail, 3, stride=1, padding=1).clamp(max=1)
    error = (output.float() - target) * weight
    edges = error.diff(dim=-1).abs().mean() + error.diff(dim=-2).abs().mean()
    return error.abs().mean() + 2 * error.square().mean() + 0.5 * edges


def make(folder: Path, copy: Path | None = None, start: str | None = None) -> torch.nn.Module:
    """Train, or go on training, with checkpoints in ``folder``, or else from the weights of the
    world ``start``.
    """
    host.prepare()
    first = starting_weights(start, "autoencoder") if start else None
    shard = dataset.load(folder / "train").first(IMAGES)
    network = build(shard.images[:FITTED])

    def loss(generator: torch.Generator, progress: float) -> torch.Tensor:
        picks = torch.randint(len(shard.images), (BATCH,), generator=generator)
        batch = prepared(shard.images[picks.numpy()]).to(device())
        with torch.no_grad(), torch.autocast(device().type, enabled=False):
            latents = network.encode(batch)
            linear = network.expand(latents)
        noise = (
            torch.randn(latents.shape, generator=generator)
            * torch.rand(BATCH, 1, 1, 1, generator=generator)
            * NOISE
        )
        noise *= torch.rand(BATCH, 1, 1, 1, generator=generator) < 0.25
        return detail_loss(linear + network.refine(latents + noise.to(device())).float(), batch)

    return train(network, loss, PLAN, folder / "autoencoder.pt", every=50, copy=copy, start=first)


@torch.inference_mode()
def encode(network: torch.nn.Module, images: np.ndarray, batch: int = 200) -> torch.Tensor:
    """Latents float16 (N, 24, 16, 16) of uint8 images."""
    parts = [
        network.encode(prepared(images[start : start + batch]).to(device())).half().cpu()
        for start in range(0, len(images), batch)
    ]
    return torch.cat(parts)


@torch.inference_mode()
def decode(network: torch.nn.Module, latents: torch.Tensor, batch: int = 50) -> np.ndarray:
    """uint8 images (N, 128, 128, 3) of latents."""
    parts = [
        network.decode(latents[start : start + batch].float().to(device()))
        for start in range(0, len(latents), batch)
    ]
    return (
        ((torch.cat(parts).cpu().clamp(-1, 1) + 1) * 127.5)
        .round()
        .byte()
        .permute(0, 2, 3, 1)
        .numpy()
    )
