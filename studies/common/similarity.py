"""How alike images, feature sets and noise predictions are."""

from __future__ import annotations

import numpy as np
import torch

from . import host


def ssim(a: torch.Tensor, b: torch.Tensor, window: int = 11) -> torch.Tensor:
    """Mean structural similarity of pairs (N, C, H, W) with values in 0..1: (N,)."""
    from kornia.metrics import ssim as ssim_map

    return ssim_map(a, b, window).mean((1, 2, 3))


def images_ssim(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """SSIM of pairs of uint8 images (N, H, W, 3)."""

    def prepared(images: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(images)).permute(0, 3, 1, 2).float() / 255

    return ssim(prepared(a), prepared(b)).numpy()


def cosine(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Cosine of the rows of two feature sets."""
    return (a * b).sum(-1) / np.linalg.norm(a, axis=-1) / np.linalg.norm(b, axis=-1)


def frechet(a: np.ndarray, b: np.ndarray) -> float:
    """Frechet distance between two feature sets (N, D) as Gaussians."""
    return host.pack("nodes.noise.scratch_training").frechet(a, b)


def memorization_score(difference: torch.Tensor) -> float:
    """Largest similarity between the first noise differences (seeds, C, H, W) of two seeds, as the
    pack's nodes score.

    Finding NeMo (arXiv 2406.02366), section 3.1; latents under 44 a side have the small-latent
    variant.
    """
    method = host.pack("nodes.neurons.memorization_score")
    scaled = method.noise_difference(difference, torch.zeros_like(difference))
    return method.PromptScore(method.pairwise_similarity(scaled)).value
