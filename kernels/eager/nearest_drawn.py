"""Gaussian candidates from a counter-based generator, and the nearest of them; a candidate at a time in memory."""

from __future__ import annotations

import math

import torch

_MASK = 0xFFFFFFFF
_MULTIPLIERS = 0xD2511F53, 0xCD9E8D57
_KEY_STEPS = 0x9E3779B9, 0xBB67AE85
_ROUNDS = 10


def nearest_drawn(data: torch.Tensor, seeds: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """See ``kernels.nearest_drawn``."""
    data, size = data.float(), data.shape[1]
    best = candidate(seeds, 0, size)
    least = _distance(data, best)
    index = torch.zeros(len(data), dtype=torch.int64, device=data.device)
    for number in range(1, k):
        drawn = candidate(seeds, number, size)
        distance = _distance(data, drawn)
        nearer = distance < least
        best[nearer], least[nearer], index[nearer] = drawn[nearer], distance[nearer], number
    return best, index


def _distance(data: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
    """Squared distance less the term that all candidates share."""
    return (noise * (noise - 2 * data)).sum(dim=1)


def candidate(seeds: torch.Tensor, number: int, size: int) -> torch.Tensor:
    """Candidate ``number`` of each seed: float32 (B, size). Numbers 4 i to 4 i + 3 come of the counter (i, number)."""
    groups = torch.arange(-(-size // 4), device=seeds.device)
    keys = (seeds & _MASK)[:, None], (seeds >> 32 & _MASK)[:, None]
    words = philox((groups, torch.full_like(groups, number), torch.zeros_like(groups), torch.zeros_like(groups)), keys)
    radii, angles = ([_uniform(word) for word in words[part::2]] for part in (0, 1))
    normals = []
    for radius, angle in zip(radii, angles, strict=True):
        length = torch.sqrt(-2 * torch.log(radius))
        normals += [length * torch.cos(2 * math.pi * angle), length * torch.sin(2 * math.pi * angle)]
    return torch.stack(normals, dim=-1).flatten(1)[:, :size]


def philox(counter: tuple, keys: tuple) -> list[torch.Tensor]:
    """Philox-4x32-10 on int64 tensors that hold unsigned 32-bit words: four words out."""
    c0, c1, c2, c3 = counter
    k0, k1 = keys
    for _ in range(_ROUNDS):
        # The products wrap modulo 2^64; the mask makes the shifted sign bits unsigned again.
        first, second = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0, c1 = (second >> 32 & _MASK) ^ c1 ^ k0, second & _MASK
        c2, c3 = (first >> 32 & _MASK) ^ c3 ^ k1, first & _MASK
        k0, k1 = (k0 + _KEY_STEPS[0]) & _MASK, (k1 + _KEY_STEPS[1]) & _MASK
    return [c0, c1, c2, c3]


def _uniform(word: torch.Tensor) -> torch.Tensor:
    """The upper 24 bits of a word as float32 above 0 and up to 1."""
    return ((word >> 8).float() + 0.5) * 2**-24
