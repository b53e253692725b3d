"""The products of all rows with all others on tensor cores, and their sum and double centering in
one more pass.

The sum over D is cut into pieces, so that a small batch fills the GPU. Each program stores its tile
of one piece with the sums of the tile's rows, columns and whole; the second kernel adds the pieces
in a fixed order and subtracts the means. Factors are rounded to bfloat16 in registers (float16
stays), sums are float32.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from . import common

SUM_ROWS = 32
SUM_COLUMNS = 64
SUMS = 1024
_PROGRAMS = 128  # one on each multiprocessor: a tile of 128 x 128 fills one


def launch(target: str, single: bool) -> dict:
    """Tile and warps; ``single``: whether a factor is float32. 64 KiB of shared memory suffice."""
    rows = 64 if target == common.RDNA else 128
    return {
        "ROWS": rows,
        "COLUMNS": 128,
        "DEPTH": 32 if single or target != common.NVIDIA else 64,
        "num_warps": 8,
    }


def assignment_cost(data: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
    """See ``kernels.assignment_cost``."""
    rows, size = data.shape
    columns = len(noise)
    tile = launch(common.target(data), torch.float32 in (data.dtype, noise.dtype))
    down = triton.cdiv(rows, tile["ROWS"])
    across = triton.cdiv(columns, tile["COLUMNS"])
    length, count = common.pieces(size, tile["DEPTH"], down * across, _PROGRAMS)
    products = torch.empty(count, rows, columns, device=data.device)
    row_sums = torch.empty(count * across, rows, device=data.device)
    column_sums = torch.empty(count * down, columns, device=data.device)
    tile_sums = torch.empty(count * down * across, device=data.device)
    half = data.dtype == noise.dtype == torch.float16
    _products[(down * across, count)](
        data,
        noise,
        products,
        row_sums,
        column_sums,
        tile_sums,
        rows,
        columns,
        size,
        data.stride(0),
        noise.stride(0),
        length,
        HALF=half,
        INTERPRETED=common.INTERPRETED,
        **tile,
    )
    cost = torch.empty(rows, columns, device=data.device)
    _centered[(triton.cdiv(rows, SUM_ROWS), triton.cdiv(columns, SUM_COLUMNS))](
        products,
        row_sums,
        column_sums,
        tile_sums,
        cost,
        rows,
        columns,
        count,
        count * across,
        count * down,
        len(tile_sums),
        SUM_ROWS,
        SUM_COLUMNS,
        SUMS,
    )
    return cost


@triton.jit
def _products(
    data,
    noise,
    products,
    row_sums,
    column_sums,
    tile_sums,
    rows,
    columns,
    size,
    data_stride,
    noise_stride,
    length,
    HALF: tl.constexpr,
    INTERPRETED: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
):
    across = tl.cdiv(columns, COLUMNS)
    row_tile = tl.program_id(0) // across
    column_tile = tl.program_id(0) % across
    row = row_tile * ROWS + tl.arange(0, ROWS)
    column = column_tile * COLUMNS + tl.arange(0, COLUMNS)
    piece = tl.program_id(1)
    first = piece * length
    last = tl.minimum((piece + 1) * length, size)
    x_rows = data + row.to(tl.int64)[:, None] * data_stride
    z_rows = noise + column.to(tl.int64)[:, None] * noise_stride
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    for start in range(first, last, DEPTH):
        place = start + tl.arange(0, DEPTH)[None, :]
        x = tl.load(x_rows + place, mask=(row < rows)[:, None] & (place < size), other=0)
        z = tl.load(z_rows + place, mask=(column < columns)[:, None] & (place < size), other=0)
        if INTERPRETED:  # it multiplies the bits of bfloat16 as if they were integers (Triton 3.7)
            x = x.to(tl.float32)
            z = z.to(tl.float32)
        elif not HALF:
            x = x.to(tl.bfloat16)
            z = z.to(tl.bfloat16)
        total = tl.dot(x, tl.trans(z), total)
    # Rows and columns beyond the end are 0 and add nothing to the sums.
    long_row = row.to(tl.int64)
    long_piece = piece.to(tl.int64)
    target = products + (long_piece * rows + long_row[:, None]) * columns + column[None, :]
    tl.store(target, total, mask=(row < rows)[:, None] & (column < columns)[None, :])
    tl.store(
        row_sums + (long_piece * across + column_tile) * rows + row,
        tl.sum(total, axis=1),
        mask=row < rows,
    )
    down = tl.cdiv(rows, ROWS)
    by_column = tl.sum(total, axis=0)
    tl.store(
        column_sums + (long_piece * down + row_tile) * columns + column,
        by_column,
        mask=column < columns,
    )
    tl.store(tile_sums + piece * down * across + tl.program_id(0), tl.sum(by_column, axis=0))


@triton.jit
def _centered(
    products,
    row_sums,
    column_sums,
    tile_sums,
    cost,
    rows,
    columns,
    pieces,
    row_pieces,
    column_pieces,
    tiles,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    SUMS: tl.constexpr,
):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    there = (row < rows)[:, None] & (column < columns)[None, :]
    place = row.to(tl.int64)[:, None] * columns + column[None, :]
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    here = products + place
    for _ in range(pieces):
        total += tl.load(here, mask=there, other=0)
        here += rows * columns
    by_row = tl.zeros([ROWS], tl.float32)
    here = row_sums + row
    for _ in range(row_pieces):
        by_row += tl.load(here, mask=row < rows, other=0)
        here += rows
    by_column = tl.zeros([COLUMNS], tl.float32)
    here = column_sums + column
    for _ in range(column_pieces):
        by_column += tl.load(here, mask=column < columns, other=0)
        here += columns
    whole = tl.zeros([SUMS], tl.float32)
    for start in range(0, tiles, SUMS):
        number = start + tl.arange(0, SUMS)
        whole += tl.load(tile_sums + number, mask=number < tiles, other=0)
    mean = tl.sum(whole, axis=0) / rows / columns
    centered = (by_row / columns)[:, None] + (by_column / rows)[None, :] - mean - total
    tl.store(cost + place, centered, mask=there)
