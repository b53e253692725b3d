"""Train the shipped decoder on latents as the denoiser makes them.

A decoder that has seen exact latents only shows every error of the denoiser. One that has also seen
latents which were noised and denoised again takes many of them back. The encoder stays as it is, so
latents do.
"""

from __future__ import annotations

from pathlib import Path

import torch

from ..common import host
from ..common.training import Plan, device, has_bfloat16, train
from . import autoencoder, dataset, denoiser
from .scenes import Metadata

PLAN = Plan(steps=3_600, learning_rate=1.5e-3, warmup=50, ema_decay=0.99, seed=12, matrix_rate=0.01)
#: Denoised latents and exact ones in each step.
DENOISED, EXACT = 8, 8
#: Latents denoised once, before training: how many, and from which sigma, in turn.
PAIRS, LEVELS = 4_000, (0.3, 0.6, 1.0, 1.7)
STEPS, CFG, BATCH, SEED = 20, 3.0, 32, 3


@torch.inference_mode()
def denoised(network: denoiser.Denoiser, data: denoiser.Data, picks: torch.Tensor) -> torch.Tensor:
    """Latents float16 (N, 24, 16, 16) of the training images ``picks``, noised and denoised again
    by Euler steps.
    """
    objective, generator, found = denoiser.Objective("v"), torch.Generator().manual_seed(SEED), []
    for start in range(0, len(picks), BATCH):
        part = picks[start : start + BATCH]
        clean, rows = data.fresh[part].float(), data.rows[part]
        with torch.autocast(device().type, torch.bfloat16, enabled=has_bfloat16()):
            context = network.encode_text(
                torch.cat([rows, data.empty.expand_as(rows)]).to(device())
            ).float()
            numbers = data.metadata[part].repeat(2, 1).to(device())
            level = LEVELS[start // BATCH % len(LEVELS)]
            sigmas = [sigma for sigma in objective.steps(STEPS) if sigma <= level]
            x = (clean + sigmas[0] * torch.randn(clean.shape, generator=generator)).to(device())
            x = denoiser.euler(network, objective, x, sigmas, context, numbers, CFG)
        found.append(x.half().cpu())
    return torch.cat(found)


def clear_images(metadata: torch.Tensor) -> torch.Tensor:
    """Numbers of the images (N, 6) that were drawn sharp and without a crop."""
    plain = torch.tensor(Metadata().numbers()[:4]).to(metadata)
    return (metadata[:, :4] == plain).all(dim=1).nonzero()[:, 0]


def make(folder: Path, copy: Path | None = None, start: str | None = None) -> torch.nn.Module:
    """Train, or go on training, with checkpoints in ``folder``; the denoised latents are kept there
    as well.
    """
    host.prepare()
    data, shard = denoiser.Data(folder), dataset.load(folder / "train")
    clear = clear_images(data.metadata)
    order = torch.randperm(len(clear), generator=torch.Generator().manual_seed(SEED))
    picks = clear[order[:PAIRS]]
    path = folder / "denoised.pt"
    if not path.exists():
        network = denoiser.build(data.words.vocabulary)
        state = torch.load(folder / "denoiser.pt", map_location=device(), weights_only=True)
        network.load_state_dict(state["average"])
        torch.save(denoised(network.eval(), data, picks), path)
    inexact, images = torch.load(path, weights_only=True), shard.images[picks.numpy()]

    def loss(generator: torch.Generator, progress: float) -> torch.Tensor:
        first = torch.randint(len(picks), (DENOISED,), generator=generator)
        second = torch.randint(autoencoder.IMAGES, (EXACT,), generator=generator)
        target = torch.cat(
            [
                autoencoder.prepared(images[first.numpy()]),
                autoencoder.prepared(shard.images[second.numpy()]),
            ]
        ).to(device())
        # Each by itself: under CPU autocast torch.cat takes no tensors of float16.
        exact = data.fresh[second].float()
        latents = torch.cat([inexact[first].float(), exact]).to(device())
        with torch.no_grad(), torch.autocast(device().type, enabled=False):
            linear = network.expand(latents)
        return autoencoder.detail_loss(linear + network.refine(latents).float(), target)

    network = autoencoder.build(shard.images[: autoencoder.FITTED])
    return train(network, loss, PLAN, folder / "decoder.pt", every=50, copy=copy)
