"""Attention probabilities from projected queries and keys: whole, or averaged over heads and layers.

Whole maps grow with the square of the positions, so they are computed so many rows and heads at a time as fit.
"""

from __future__ import annotations

import torch
from torch.nn import functional as F

from ...kernels import mean_attention
from .activations import CpuCopies

#: Bytes of probabilities in float32 that exist at a time, or those of one row and head: what suits the caches of a CPU,
#: and on a GPU few large operations.
_CPU_BLOCK, _GPU_BLOCK = 1 << 20, 1 << 26


def attention_map(
    query: torch.Tensor,
    key: torch.Tensor,
    heads: int,
    dtype: torch.dtype,
    copies: CpuCopies,
    first: int | None = None,
) -> torch.Tensor:
    """softmax(q k^T / sqrt(d)), (rows, heads, positions, keys), of (rows, positions or keys, heads * d).

    On the CPU in ``dtype``, computed and copied in blocks of rows and heads, so that the device holds one block.
    Of the keys only the ``first`` are kept, if that is set; the softmax is over all. Complete after ``copies.wait()``.
    """
    query, key = (tensor.unflatten(2, (heads, -1)).transpose(1, 2) for tensor in (query, key))
    kept = key.shape[2] if first is None else first
    result = copies.empty(query, (*query.shape[:3], kept), dtype)
    block = _CPU_BLOCK if query.device.type == "cpu" else _GPU_BLOCK
    slices, count = result.flatten(0, 1), max(block // (4 * query.shape[2] * key.shape[2]), 1)
    query, key = query.flatten(0, 1), key.flatten(0, 1)
    for begin in range(0, len(query), count):
        part = slice(begin, begin + count)
        logits = query[part].float() @ key[part].float().mT * query.shape[-1] ** -0.5
        copies.write(slices[part], logits.softmax(-1)[..., :kept])
    return result


def head_mean_map(
    query: torch.Tensor, key: torch.Tensor, heads: int, size: tuple[int, int], first: int | None = None
) -> torch.Tensor:
    """The mean over heads of ``attention_map``: float32 (rows, keys, height, width), on the same device."""
    return mean_attention(query, key, heads, first).transpose(1, 2).unflatten(2, size)


def attention_from(attention: torch.Tensor, size: tuple[int, int], points: torch.Tensor) -> torch.Tensor:
    """Where the positions under points attend: float32 (heads, H, W), the mean over points.

    ``attention``: a self-attention map (heads, H * W, H * W) with positions of ``size`` (H, W); ``points`` (P, 2): x
    and y as fractions of width and height.
    """
    height, width = size
    columns = (points[:, 0] * width).long().clamp(0, width - 1)
    rows = (points[:, 1] * height).long().clamp(0, height - 1)
    return attention[:, rows * width + columns].float().mean(1).unflatten(1, size)


class AttentionFeature:
    """The paper's "attn" feature (arXiv 2410.03558, official code): a mean over layers for each map size.

    ``result`` enlarges them by nearest neighbor to one size and joins them along channels, in order of first use.
    """

    def __init__(self, size: tuple[int, int]):
        self._size = size
        self._sums: dict[tuple[int, int], torch.Tensor] = {}
        self._counts: dict[tuple[int, int], int] = {}

    def add(self, maps: torch.Tensor) -> None:
        """Add one layer's ``head_mean_map``."""
        size = (maps.shape[-2], maps.shape[-1])
        self._sums[size] = self._sums[size] + maps if size in self._sums else maps
        self._counts[size] = self._counts.get(size, 0) + 1

    def result(self) -> torch.Tensor:
        """Float32 (rows, keys of all sizes, height, width)."""
        means = [total / self._counts[size] for size, total in self._sums.items()]
        return torch.cat([F.interpolate(mean, size=self._size, mode="nearest") for mean in means], dim=1)


class LayerMean:
    """The mean over all layers, each map enlarged bicubically first, negative values set to 0."""

    def __init__(self, size: tuple[int, int]):
        self._size, self._sum, self._count = size, torch.zeros(()), 0

    def add(self, maps: torch.Tensor) -> None:
        """Add one layer's ``head_mean_map``."""
        if tuple(maps.shape[-2:]) != tuple(self._size):
            maps = F.interpolate(maps, size=self._size, mode="bicubic").clamp_min(0)
        self._sum, self._count = self._sum + maps, self._count + 1

    def result(self) -> torch.Tensor:
        """Float32 (rows, keys, height, width)."""
        return self._sum / self._count
