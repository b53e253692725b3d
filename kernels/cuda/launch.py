"""Operations by CUDA C++ kernels, for machines without Triton."""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable
from typing import Any

import torch

from .. import BASIS_GROUP
from ..eager.nearest_drawn import ROUNDS
from . import nvrtc

NUMBERS = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2, torch.int8: 3}
_PROGRAMS = 512  # keep the largest of today's GPUs busy


def nearest_drawn(
    data: torch.Tensor, seeds: torch.Tensor, k: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """See ``kernels.nearest_drawn``."""
    rows, size = data.shape
    pieces = -(-size // 1024)
    each = -(-k // max(min(_PROGRAMS // (rows * pieces), k), 1))
    seeds = seeds.contiguous()
    distances = torch.empty(rows, k, pieces, device=data.device)
    kernel = kernels("nearest_drawn", NUMBER=NUMBERS[data.dtype], ROUNDS=ROUNDS)
    kernel["distances"](
        (rows * pieces, -(-k // each), 1),
        (256, 1, 1),
        [data, seeds, distances, size, pieces, k, each, data.stride(0)],
    )
    index = distances.sum(dim=2).argmin(dim=1)
    result = torch.empty(rows, size, device=data.device)
    kernel["draw"]((rows * pieces, 1, 1), (256, 1, 1), [seeds, index, result, size, pieces])
    return result, index


def flat_weights(
    coefficients: torch.Tensor,
    basis: torch.Tensor,
    mean: torch.Tensor,
    deviation: torch.Tensor,
    basis_scale: torch.Tensor | None = None,
) -> torch.Tensor:
    """See ``kernels.flat_weights``."""
    rows, size = basis.shape
    columns = 128 * 16 // basis.element_size()
    blocks = -(-size // columns)
    length = -(-rows // max(min(_PROGRAMS // blocks, rows), 1))
    pieces = -(-rows // length)
    scale = basis_scale.float().contiguous() if basis_scale is not None else coefficients
    sums = torch.empty(pieces, size, device=basis.device)
    aligned = all(value * basis.element_size() % 16 == 0 for value in (size, basis.stride(0)))
    kernel = kernels(
        "flat_weights",
        NUMBER=NUMBERS[basis.dtype],
        GROUP=BASIS_GROUP,
        ALIGNED=int(aligned and basis.data_ptr() % 16 == 0),
    )
    kernel["combine"](
        (blocks, pieces, 1),
        (128, 1, 1),
        [
            coefficients.float().contiguous(),
            basis,
            scale,
            sums,
            rows,
            size,
            basis.stride(0),
            scale.stride(0),
            length,
        ],
    )
    return torch.addcmul(mean.float(), deviation.float(), sums.sum(dim=0))


def low_rank_apply(
    weight: torch.Tensor, up: torch.Tensor, down: torch.Tensor, strength: float
) -> torch.Tensor:
    """See ``kernels.low_rank_apply``."""
    up, down = (
        factor.to(weight.device, torch.float32).flatten(1).contiguous() for factor in (up, down)
    )
    rank, columns = down.shape
    rows = len(up)
    result = torch.empty_like(weight)
    aligned = columns % 4 == 0 and weight.data_ptr() % (4 * weight.element_size()) == 0
    kernel = kernels("low_rank_apply", NUMBER=NUMBERS[weight.dtype], ALIGNED=int(aligned))
    bits = struct.unpack("<i", struct.pack("<f", strength))[
        0
    ]  # PyTorch passes every float as a double
    kernel["apply"](
        (-(-rows // 32) * -(-columns // 128), 1, 1),
        (256, 1, 1),
        [weight, up, down, result, bits, rows, columns, rank],
    )
    return result


#: The functions of each source.
FUNCTIONS = {
    "nearest_drawn": ["distances", "draw"],
    "flat_weights": ["combine"],
    "low_rank_apply": ["apply"],
}


def kernels(name: str, **constants: int) -> dict[str, Callable]:
    """The functions of ``<name>.cu`` on the current device."""
    return _loaded(name, torch.cuda.current_device(), tuple(constants.items()))


@functools.cache
def _loaded(name: str, device: int, constants: tuple) -> Any:
    from torch.cuda import _utils

    library = _utils._get_nvrtc_library()
    capability = "{}{}".format(*torch.cuda.get_device_capability(device))
    return _utils._cuda_load_module(
        nvrtc.compiled(library, name, capability, dict(constants)), FUNCTIONS[name]
    )
