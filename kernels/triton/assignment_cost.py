"""The products of all rows with all others, each sum over D cut into pieces and added up in a fixed order."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ..eager.assignment_cost import centred
from . import common

ROWS, COLUMNS, DEPTH = 64, 64, 64


def assignment_cost(data: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
    """See ``kernels.assignment_cost``."""
    (rows, size), columns = data.shape, len(noise)
    down, across = triton.cdiv(rows, ROWS), triton.cdiv(columns, COLUMNS)
    length, count = common.pieces(size, DEPTH, down * across, common.PROGRAMS)
    products = torch.empty(count, rows, columns, device=data.device)
    _products[(down * across, count)](
        data, noise, products, rows, columns, size, data.stride(0), noise.stride(0), length,
        common.wide(data, noise), ROWS, COLUMNS, DEPTH,
    )  # fmt: skip
    return centred(-products.sum(dim=0))


@triton.jit
def _products(data, noise, products, rows, columns, size, data_stride, noise_stride, length, WIDE: tl.constexpr,
              ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr):  # fmt: skip
    across = tl.cdiv(columns, COLUMNS)
    row = (tl.program_id(0) // across * ROWS + tl.arange(0, ROWS)).to(tl.int64)[:, None]
    column = (tl.program_id(0) % across * COLUMNS + tl.arange(0, COLUMNS)).to(tl.int64)[None, :]
    piece = tl.program_id(1).to(tl.int64)
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    for first in range(piece * length, tl.minimum((piece + 1) * length, size), DEPTH):
        place = first + tl.arange(0, DEPTH)
        x = tl.load(data + row * data_stride + place[None, :], mask=(row < rows) & (place < size)[None, :], other=0)
        z = tl.load(noise + column * noise_stride + place[:, None],
                    mask=(column < columns) & (place < size)[:, None], other=0)  # fmt: skip
        if WIDE:
            x, z = x.to(tl.float32), z.to(tl.float32)
        total = tl.dot(x, z, total, input_precision="tf32x3")
    target = products + (piece * rows + row) * columns + column
    tl.store(target, total, mask=(row < rows) & (column < columns))
