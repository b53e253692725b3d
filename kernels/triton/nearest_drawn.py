"""The nearest of k noises that are drawn in registers: the data is read once, the winner is written once.

Each program draws its piece of every candidate and keeps one number of each; the winner is drawn a second time.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

BLOCK = 1024


def nearest_drawn(data: torch.Tensor, seeds: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """See ``kernels.nearest_drawn``."""
    rows, size = data.shape
    count = triton.cdiv(size, BLOCK)
    distances = torch.empty(rows, k, count, device=data.device)
    _distances[(rows * count,)](data, seeds, distances, size, count, k, data.stride(0), seeds.stride(0), BLOCK)
    index = distances.sum(dim=2).argmin(dim=1)
    result = torch.empty(rows, size, device=data.device)
    _draw[(rows * count,)](seeds, index, result, size, count, seeds.stride(0), BLOCK)
    return result, index


@triton.jit
def _distances(data, seeds, distances, size, count, k, data_stride, seed_stride, BLOCK: tl.constexpr):
    row = (tl.program_id(0) // count).to(tl.int64)
    piece = tl.program_id(0) % count
    place = piece * BLOCK + tl.arange(0, BLOCK)
    seed = tl.load(seeds + row * seed_stride)
    x = tl.load(data + row * data_stride + place, mask=place < size, other=0).to(tl.float32)
    for number in range(k):
        z = _normals(seed, number, piece, BLOCK)
        parts = tl.where(place < size, z * (z - 2 * x), 0.0)
        tl.store(distances + (row * k + number) * count + piece, tl.sum(parts, axis=0))


@triton.jit
def _draw(seeds, index, result, size, count, seed_stride, BLOCK: tl.constexpr):
    row = (tl.program_id(0) // count).to(tl.int64)
    piece = tl.program_id(0) % count
    place = piece * BLOCK + tl.arange(0, BLOCK)
    z = _normals(tl.load(seeds + row * seed_stride), tl.load(index + row).to(tl.int32), piece, BLOCK)
    tl.store(result + row * size + place, z, mask=place < size)


@triton.jit
def _normals(seed, number, piece, BLOCK: tl.constexpr):
    """Piece of candidate ``number``: Philox words of the counters (i, number, 0, 0), through Box-Muller."""
    group = (piece * (BLOCK // 4) + tl.arange(0, BLOCK // 4)).to(tl.uint32)
    zero = group * 0
    a, b, c, d = tl.philox(seed.to(tl.uint64), group, (zero + number).to(tl.uint32), zero, zero)
    first, second = _box_muller(a, b)
    third, fourth = _box_muller(c, d)
    return tl.interleave(tl.interleave(first, third), tl.interleave(second, fourth))


@triton.jit
def _box_muller(a, b):
    length = tl.sqrt(-2.0 * tl.log(_uniform(a)))
    angle = 6.283185307179586 * _uniform(b)
    return length * tl.cos(angle), length * tl.sin(angle)


@triton.jit
def _uniform(word):
    return ((word >> 8).to(tl.float32) + 0.5) * 5.9604644775390625e-08
