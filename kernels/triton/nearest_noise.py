"""Both halves of the closed form of the nearest noise: three sums in one reading, and a blend in one more."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from . import common

BLOCK = 1024


def pair_moments(data: torch.Tensor, noise: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """See ``kernels.pair_moments``."""
    rows, size = data.shape
    length, count = common.pieces(size, BLOCK, rows, common.PROGRAMS)
    sums = torch.empty(3, rows, count, device=data.device)
    _moments[(rows * count,)](data, noise, sums, rows, size, count, data.stride(0), noise.stride(0), length, BLOCK)
    return sums.sum(dim=2).unbind()


def blend(data: torch.Tensor, noise: torch.Tensor, along: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """See ``kernels.blend``."""
    rows, size = data.shape
    result = torch.empty(rows, size, device=data.device)
    count = triton.cdiv(size, BLOCK)
    _blend[(rows * count,)](data, noise, along, scale, result, size, count, data.stride(0), noise.stride(0),
                            along.stride(0), scale.stride(0), BLOCK)  # fmt: skip
    return result


@triton.jit
def _moments(data, noise, sums, rows, size, count, data_stride, noise_stride, length, BLOCK: tl.constexpr):
    row = (tl.program_id(0) // count).to(tl.int64)
    piece = tl.program_id(0) % count
    products = tl.zeros([BLOCK], tl.float32)
    data_squares = tl.zeros([BLOCK], tl.float32)
    noise_squares = tl.zeros([BLOCK], tl.float32)
    for first in range(piece * length, tl.minimum((piece + 1) * length, size), BLOCK):
        place = first + tl.arange(0, BLOCK)
        x = tl.load(data + row * data_stride + place, mask=place < size, other=0).to(tl.float32)
        z = tl.load(noise + row * noise_stride + place, mask=place < size, other=0).to(tl.float32)
        products += x * z
        data_squares += x * x
        noise_squares += z * z
    target = sums + row * count + piece
    tl.store(target, tl.sum(products, axis=0))
    tl.store(target + rows * count, tl.sum(data_squares, axis=0))
    tl.store(target + 2 * rows * count, tl.sum(noise_squares, axis=0))


@triton.jit
def _blend(data, noise, along, scale, result, size, count, data_stride, noise_stride, along_stride, scale_stride,
           BLOCK: tl.constexpr):  # fmt: skip
    row = (tl.program_id(0) // count).to(tl.int64)
    place = tl.program_id(0) % count * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(data + row * data_stride + place, mask=place < size, other=0).to(tl.float32)
    z = tl.load(noise + row * noise_stride + place, mask=place < size, other=0).to(tl.float32)
    a = tl.load(along + row * along_stride).to(tl.float32)
    s = tl.load(scale + row * scale_stride).to(tl.float32)
    tl.store(result + row * size + place, z * s + x * a, mask=place < size)
