"""A basis in fewer bits: int8 with one scale for each 1,024 numbers of a row, or half precision."""

from __future__ import annotations

from enum import StrEnum

import torch

from ...kernels import BASIS_GROUP as GROUP


class Storage(StrEnum):
    """How a file keeps the basis of a space."""

    FLOAT32 = "float32"
    FLOAT16 = "float16"
    INT8 = "int8"

    @property
    def dtype(self) -> torch.dtype:
        return {"float32": torch.float32, "float16": torch.float16, "int8": torch.int8}[self]


def group_count(size: int) -> int:
    """How many scales a row of ``size`` numbers has."""
    return -(-size // GROUP)


def quantize(block: torch.Tensor, storage: str) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Columns (k, w) of a basis as they are stored, w a multiple of GROUP or the row's end, and
    their scales.
    """
    if storage != Storage.INT8:
        return block.to(Storage(storage).dtype), None
    count, width = block.shape
    full = torch.nn.functional.pad(block.float(), (0, group_count(width) * GROUP - width)).view(
        count, -1, GROUP
    )
    scale = full.abs().amax(dim=2) / 127
    numbers = (full / scale.clamp_min(1e-30)[..., None]).round().clamp(-127, 127).to(torch.int8)
    return numbers.view(count, -1)[:, :width].contiguous(), scale


def dequantize(block: torch.Tensor, scale: torch.Tensor | None) -> torch.Tensor:
    """Stored columns (k, w) in float32."""
    block = block.float()
    if scale is None:
        return block
    return block * scale.repeat_interleave(GROUP, dim=1)[:, : block.shape[1]]
