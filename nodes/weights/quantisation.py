"""A basis in fewer bits: int8 with one scale for each 1,024 numbers of a row, or half precision."""

from __future__ import annotations

import torch

from ...kernels import BASIS_GROUP as GROUP

FULL, HALF, INT8 = STORAGES = ("float32", "float16", "int8")
DTYPES = {FULL: torch.float32, HALF: torch.float16, INT8: torch.int8}


def groups(size: int) -> int:
    """How many scales a row of ``size`` numbers has."""
    return -(-size // GROUP)


def packed(block: torch.Tensor, storage: str) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Columns (k, w) of a basis as they are stored, w a multiple of GROUP or the row's end, and their scales."""
    if storage != INT8:
        return block.to(DTYPES[storage]), None
    count, width = block.shape
    full = torch.nn.functional.pad(block.float(), (0, groups(width) * GROUP - width)).view(count, -1, GROUP)
    scale = full.abs().amax(dim=2) / 127
    numbers = (full / scale.clamp_min(1e-30)[..., None]).round().clamp(-127, 127).to(torch.int8)
    return numbers.view(count, -1)[:, :width].contiguous(), scale


def opened(block: torch.Tensor, scale: torch.Tensor | None) -> torch.Tensor:
    """Stored columns (k, w) in float32."""
    block = block.float()
    if scale is None:
        return block
    return block * scale.repeat_interleave(GROUP, dim=1)[:, : block.shape[1]]
