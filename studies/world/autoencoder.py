"""Train the autoencoder: 128 px pictures to a 16 x 16 latent of 8 channels and back."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F

from ..common import host
from ..common.training import Plan, device, reset_parameters, train
from . import dataset

PLAN = Plan(steps=2200, learning_rate=3e-3, ema_decay=0.995, seed=11)
CROP, CROPS, WHOLES = 64, 16, 5
WHOLE_FROM = 0.85


def build() -> torch.nn.Module:
    """ComfyUI's AutoencoderKL in the demo model's size, with fresh weights."""
    host.prepare()
    from comfy.ldm.models.autoencoder import AutoencoderKL

    torch.manual_seed(PLAN.seed)
    architecture = host.pack("nodes.demo.architecture")
    network = architecture.widen_groups(AutoencoderKL(**architecture.AUTOENCODER))
    reset_parameters(network)
    for name, module in network.named_modules():  # start without the residual branches: learns several times faster
        if name.endswith((".conv2", ".proj_out")):
            torch.nn.init.zeros_(module.weight)
    return network.to(device())


def picture_batch(pictures: torch.Tensor, count: int, crop: int, generator: torch.Generator) -> torch.Tensor:
    """Random crops on the 8-pixel grid, half of them mirrored: float32 (count, 3, crop, crop) in -1..1."""
    picks = torch.randint(len(pictures), (count,), generator=generator)
    corners = torch.randint((pictures.shape[1] - crop) // 8 + 1, (count, 2), generator=generator) * 8
    mirrored = torch.rand(count, generator=generator) < 0.5
    crops = [pictures[pick, top:top + crop, left:left + crop] for pick, (top, left) in
             zip(picks.tolist(), corners.tolist(), strict=True)]
    batch = torch.stack(crops).permute(0, 3, 1, 2).float() / 127.5 - 1
    return torch.where(mirrored[:, None, None, None], batch.flip(-1), batch).to(device())


def reconstruction_loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Smooth L1 on pixels, and on their differences to the right and lower neighbour, which keeps drawn edges sharp."""
    error = output.float() - target

    def smooth(value: torch.Tensor) -> torch.Tensor:
        return F.smooth_l1_loss(value, torch.zeros_like(value), beta=0.2)

    return smooth(error) + 0.5 * (smooth(error.diff(dim=-1)) + smooth(error.diff(dim=-2)))


def run(folder: Path) -> torch.nn.Module:
    """Train, or go on training, with checkpoints in ``folder``."""
    network = build()
    pictures = torch.from_numpy(dataset.load(folder / "train").pictures)

    def loss(generator: torch.Generator, progress: float) -> torch.Tensor:
        whole = progress > WHOLE_FROM
        batch = picture_batch(pictures, WHOLES if whole else CROPS, 128 if whole else CROP, generator)
        mean, log_variance = network.quant_conv(network.encoder(batch)).float().chunk(2, dim=1)
        log_variance = log_variance.clamp(-30, 20)
        noise = torch.randn(mean.shape, generator=generator).to(mean.device)
        divergence = 0.5 * (mean.square() + log_variance.exp() - 1 - log_variance).mean()
        decoded = network.decoder(network.post_quant_conv(mean + noise * (0.5 * log_variance).exp()))
        return reconstruction_loss(decoded, batch) + 5e-5 * divergence

    return train(network, loss, PLAN, folder / "autoencoder.pt")
