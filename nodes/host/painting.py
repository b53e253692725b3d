"""Paint pictures with a MODEL inside a node: what a KSampler and VAE Decode do."""

from __future__ import annotations

import comfy.sample
import torch

from .evaluate import noise_for


def paint(
    patcher, vae, positive: list, negative: list, shape: tuple[int, int, int], count: int, seed: int, **how
) -> torch.Tensor:
    """``count`` pictures (B, H, W, 3) from pure noise; ``how``: steps, cfg. Euler with the normal schedule."""
    blank = torch.zeros(count, *shape)
    samples = comfy.sample.sample(
        patcher, noise_for(blank, seed), how["steps"], how["cfg"], "euler", "normal", positive, negative, blank,
        disable_pbar=True, seed=seed,
    )  # fmt: skip
    return vae.decode(samples)
