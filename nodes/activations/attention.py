"""Attention probabilities from projected queries and keys: whole, or averaged over heads and layers as they come.

Whole maps grow with the square of the positions, so everything here is made one row and head at a time.
"""

from __future__ import annotations

import torch
from torch.nn import functional as F

from ...kernels import mean_attention


def attention_map(
    query: torch.Tensor, key: torch.Tensor, heads: int, dtype: torch.dtype, first: int | None = None
) -> torch.Tensor:
    """softmax(q k^T / sqrt(d)), (rows, heads, positions, keys), of (rows, positions or keys, heads * d).

    On the CPU in ``dtype``, made and copied one row and head at a time, so that the device holds one such slice. Of
    the keys only the ``first`` are kept, if that is given; the softmax is over all.
    """
    query, key = (tensor.unflatten(2, (heads, -1)).transpose(1, 2) for tensor in (query, key))
    result = torch.empty(*query.shape[:3], key.shape[2] if first is None else first, dtype=dtype)
    for row in range(query.shape[0]):
        for head in range(heads):
            result[row, head] = _probabilities(query[row, head], key[row, head])[:, :first]
    return result


def word_map(
    query: torch.Tensor, key: torch.Tensor, heads: int, size: tuple[int, int], first: int | None = None
) -> torch.Tensor:
    """The mean over heads of ``attention_map`` as pictures: float32 (rows, keys, height, width), on the same device."""
    tokens = None if first is None else range(first)
    return mean_attention(query, key, heads, tokens=tokens).transpose(1, 2).unflatten(2, size)


def _probabilities(query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    return (query.float() @ key.float().T * query.shape[-1] ** -0.5).softmax(-1)


class SideMeans:
    """The paper's "attn" feature (arXiv 2410.03558, official code): a mean over layers for each map size.

    ``result`` enlarges them by nearest neighbour to one size and joins them along channels, in order of first use.
    """

    def __init__(self):
        self._sums: dict[tuple[int, int], torch.Tensor] = {}
        self._counts: dict[tuple[int, int], int] = {}

    def add(self, maps: torch.Tensor) -> None:
        """Take one layer's ``word_map`` in."""
        size = tuple(maps.shape[-2:])
        self._sums[size] = self._sums[size] + maps if size in self._sums else maps
        self._counts[size] = self._counts.get(size, 0) + 1

    def result(self, size: tuple[int, int]) -> torch.Tensor:
        """Float32 (rows, keys of all sizes, height, width)."""
        means = [total / self._counts[side] for side, total in self._sums.items()]
        return torch.cat([F.interpolate(mean, size=size, mode="nearest") for mean in means], dim=1)


class LayerMean:
    """The mean over all layers as DAAM takes it (arXiv 2210.04885, section 3): each map enlarged bicubically first.

    What bicubic interpolation takes below 0 is 0. DAAM enlarges head by head; the mean over heads comes first here.
    """

    def __init__(self):
        self._sum, self._count = 0, 0

    def add(self, maps: torch.Tensor, size: tuple[int, int]) -> None:
        """Take one layer's ``word_map`` in, enlarged to ``size``."""
        if tuple(maps.shape[-2:]) != tuple(size):
            maps = F.interpolate(maps, size=size, mode="bicubic").clamp_min(0)
        self._sum, self._count = self._sum + maps, self._count + 1

    def result(self) -> torch.Tensor:
        """Float32 (rows, keys, height, width)."""
        return self._sum / self._count
