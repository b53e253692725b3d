"""Train the decoder on with the latents fixed: sharper eyes and mouths, at no change for the denoiser."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F

from ..common.training import Plan, device, train
from . import autoencoder, dataset, denoiser

PLAN = Plan(steps=900, learning_rate=1.5e-3, ema_decay=0.99, seed=13)
WINDOW, WINDOWS, WHOLES, WHOLE_FROM = 8, 16, 4, 0.85


class Decoder(torch.nn.Module):
    """The two parts of the autoencoder that lead from a latent to a picture."""

    def __init__(self, network: torch.nn.Module):
        super().__init__()
        self.post_quant_conv, self.decoder = network.post_quant_conv, network.decoder

    def forward(self, latents: torch.Tensor) -> torch.Tensor:
        return self.decoder(self.post_quant_conv(latents))


def detail_loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """L1 on pixels and on neighbours' differences, weighted up to five times where the picture has fine detail."""
    smooth = F.avg_pool2d(target, 5, stride=1, padding=2, count_include_pad=False)
    detail = (target - smooth).abs().amax(1, keepdim=True)
    weight = 1 + 4 * F.max_pool2d(detail, 3, stride=1, padding=1).clamp(max=1)
    error = (output.float() - target) * weight
    return error.abs().mean() + 0.5 * (error.diff(dim=-1).abs().mean() + error.diff(dim=-2).abs().mean())


def build(folder: Path) -> Decoder:
    """The decoder as the autoencoder's training left it."""
    network = autoencoder.build()
    state = torch.load(folder / "autoencoder.pt", map_location=device(), weights_only=True)
    network.load_state_dict(state["average"])
    return Decoder(network)


def run(folder: Path) -> Decoder:
    """Train, or go on training, with checkpoints in ``folder``."""
    network = build(folder)
    state = torch.load(folder / "latents.pt", weights_only=True)
    scale, shift = state["std"][:, None, None], state["mean"][:, None, None]
    latents = state["fresh"]
    pictures = torch.from_numpy(dataset.load(folder / "train").first(denoiser.PICTURES).pictures)

    def loss(generator: torch.Generator, progress: float) -> torch.Tensor:
        side, count = (16, WHOLES) if progress > WHOLE_FROM else (WINDOW, WINDOWS)
        picks = torch.randint(len(latents), (count,), generator=generator).tolist()
        corners = torch.randint(16 - side + 1, (count, 2), generator=generator).tolist()
        chosen = list(zip(picks, corners, strict=True))
        inputs = torch.stack([latents[pick, :, top:top + side, left:left + side].float()
                              for pick, (top, left) in chosen])
        targets = torch.stack([pictures[pick, 8 * top:8 * (top + side), 8 * left:8 * (left + side)]
                               for pick, (top, left) in chosen])
        targets = targets.permute(0, 3, 1, 2).float() / 127.5 - 1
        return detail_loss(network((inputs * scale + shift).to(device())), targets.to(device()))

    return train(network, loss, PLAN, folder / "decoder.pt")
