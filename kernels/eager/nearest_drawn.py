"""Gaussian candidates from a counter-based generator, and the nearest of them."""

from __future__ import annotations

import math

import torch

_MASK = 0xFFFFFFFF
_MULTIPLIERS = 0xD2511F53, 0xCD9E8D57
_KEY_STEPS = 0x9E3779B9, 0xBB67AE85
#: The least number that passes every test of BigCrush (Salmon et al. 2011, table 2); Philox's
#: default is 10.
ROUNDS = 7
#: Words of one part of the generator's state that exist at a time: what a CPU's cache holds, and
#: what fills a GPU.
WORDS = 1 << 16
WORDS_ON_GPU = 1 << 22


def nearest_drawn(
    data: torch.Tensor, seeds: torch.Tensor, k: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """See ``kernels.nearest_drawn``."""
    data, size = data.float(), data.shape[1]
    words = WORDS if data.device.type == "cpu" else WORDS_ON_GPU
    step = max(words // max(len(data) * -(-size // 4), 1), 1)
    best, least, index = _nearest(data, seeds, 0, min(step, k))
    for first in range(step, k, step):
        drawn, distance, number = _nearest(data, seeds, first, min(first + step, k))
        nearer = distance < least
        best = torch.where(nearer[:, None], drawn, best)
        least = torch.where(nearer, distance, least)
        index = torch.where(nearer, number, index)
    return best, index


def _nearest(
    data: torch.Tensor, seeds: torch.Tensor, first: int, last: int
) -> tuple[torch.Tensor, ...]:
    """Of candidates ``first`` to ``last`` - 1 the nearest, its squared distance less |data|^2, and
    its number.
    """
    drawn = candidates(seeds, first, last, data.shape[1])
    distances = (drawn * (drawn - 2 * data[:, None])).sum(dim=2)
    place = distances.argmin(dim=1, keepdim=True)
    nearest = drawn.take_along_dim(place[..., None], dim=1)[:, 0]
    return nearest, distances.take_along_dim(place, dim=1)[:, 0], place[:, 0] + first


def candidates(seeds: torch.Tensor, first: int, last: int, size: int) -> torch.Tensor:
    """Candidates of each seed: float32 (B, last - first, size). Numbers 4 i to 4 i + 3 of one come
    of (i, number).
    """
    groups = torch.arange(-(-size // 4), device=seeds.device)
    numbers = torch.arange(first, last, device=seeds.device)[:, None]
    zero = torch.zeros(1, dtype=torch.int64, device=seeds.device)
    keys = seeds[:, None, None] & _MASK, seeds[:, None, None] >> 32 & _MASK
    a, b, c, d = map(_uniform, philox((groups, numbers, zero, zero), keys, ROUNDS))
    normals = [part for radius, turns in ((a, b), (c, d)) for part in _box_muller(radius, turns)]
    return torch.stack(normals, dim=-1).flatten(2)[..., :size]


def philox(counter: tuple, keys: tuple, rounds: int) -> tuple[torch.Tensor, ...]:
    """Philox-4x32 on int64 tensors that hold unsigned 32-bit words and broadcast: four words, right
    modulo 2^32.
    """
    c0, c1, c2, c3 = counter
    k0, k1 = keys
    for _ in range(rounds):
        # Products wrap modulo 2^64. Their lower words need no mask before they are multiplied,
        # which comes after xor.
        first = c0 * _MULTIPLIERS[0]
        second = c2 * _MULTIPLIERS[1]
        c0 = ((second >> 32) ^ c1 ^ k0) & _MASK
        c1 = second
        c2 = ((first >> 32) ^ c3 ^ k1) & _MASK
        c3 = first
        k0 = (k0 + _KEY_STEPS[0]) & _MASK
        k1 = (k1 + _KEY_STEPS[1]) & _MASK
    return c0, c1, c2, c3


def _uniform(word: torch.Tensor) -> torch.Tensor:
    """The upper 24 bits of a word as float32 above 0 and up to 1."""
    return ((word >> 8 & 0xFFFFFF).float() + 0.5) * 2**-24


def _box_muller(radius: torch.Tensor, turns: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    length = torch.sqrt(-2 * torch.log(radius))
    angle = 2 * math.pi * turns
    return length * torch.cos(angle), length * torch.sin(angle)
