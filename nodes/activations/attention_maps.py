"""Attention probabilities from projected queries and keys: whole, or averaged over heads and layers.

Whole maps grow with the square of the positions, so they are computed one row and head at a time.
"""

from __future__ import annotations

import torch
from torch.nn import functional as F

from ...kernels import mean_attention
from .activations import CpuCopies


def attention_map(
    query: torch.Tensor,
    key: torch.Tensor,
    heads: int,
    dtype: torch.dtype,
    copies: CpuCopies,
    first: int | None = None,
) -> torch.Tensor:
    """softmax(q k^T / sqrt(d)), (rows, heads, positions, keys), of (rows, positions or keys, heads * d).

    On the CPU in ``dtype``, computed and copied one row and head at a time, so that the device holds one such slice.
    Of the keys only the ``first`` are kept, if that is set; the softmax is over all. Complete after ``copies.wait()``.
    """
    query, key = (tensor.unflatten(2, (heads, -1)).transpose(1, 2) for tensor in (query, key))
    result = copies.empty(query, (*query.shape[:3], key.shape[2] if first is None else first), dtype)
    for row in range(query.shape[0]):
        for head in range(heads):
            logits = query[row, head].float() @ key[row, head].float().T * query.shape[-1] ** -0.5
            copies.write(result[row, head], logits.softmax(-1)[:, :first])
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
