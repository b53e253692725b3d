"""Attention probabilities from queries and keys: whole, or averaged over heads and layers.

Whole maps grow with the square of the positions, so they are computed so many rows and heads at a
time as fit.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch.nn import functional as F

from ...kernels import mean_attention
from ..common.attention import AttentionCall
from .activations import CpuCopies

#: Bytes of probabilities in float32 that exist at a time, or those of one row and head: what suits
#: the caches of a CPU, and on a GPU few large operations.
_CPU_BLOCK = 1 << 20
_GPU_BLOCK = 1 << 26

_UNPLACED = (
    "It is not known which of the tokens in this MODEL's attention are those of the prompt, so "
    "that it has no maps of words."
)


@dataclass(frozen=True, kw_only=True)
class QueriesAndKeys:
    """What an attention's map is computed from.

    ``query`` (rows, heads, frames * positions, d) of the image; ``key`` (rows, heads or a fraction
    of them, keys, d), all keys that the image reads; ``mask``: None, or added to the logits, which
    it broadcasts to. Maps hold ``count`` keys from ``begin`` on.
    """

    query: torch.Tensor
    key: torch.Tensor
    begin: int
    count: int
    mask: torch.Tensor | None = None
    scale: float | None = None

    @classmethod
    def of_projections(cls, query: torch.Tensor, key: torch.Tensor, heads: int) -> QueriesAndKeys:
        """Of outputs (rows, tokens, heads * d) of projections, with all keys."""
        query, key = (tensor.unflatten(2, (heads, -1)).transpose(1, 2) for tensor in (query, key))
        return cls(query=query, key=key, begin=0, count=key.shape[2])

    @classmethod
    def of_image(cls, call: AttentionCall, tokens: int, *, with_text: bool) -> QueriesAndKeys:
        """Of an attention that the image's ``tokens`` have with the text, or else with themselves.

        Maps with the text hold the tokens of the encoded prompt. Raises ValueError where these are
        not known.
        """
        layout = call.layout
        assert layout is not None
        begin = 0
        count = call.size[1]
        if with_text:
            if layout.prompt is None:
                raise ValueError(_UNPLACED)
            begin = layout.prompt.start
            count = layout.prompt.stop - begin
        image = layout.first_tokens(tokens)
        mask = call.mask
        if mask is not None:
            mask = mask if mask.shape[2] == 1 else mask[:, :, image]
            mask = _added(mask, call.query)
        return cls(
            query=call.query[:, :, image],
            key=call.key,
            mask=mask,
            scale=call.scale,
            begin=begin,
            count=count,
        )

    def rows(self, selected: slice | torch.Tensor) -> QueriesAndKeys:
        """Of some rows."""
        mask = self.mask
        return replace(
            self,
            query=self.query[selected],
            key=self.key[selected],
            mask=mask if mask is None or len(mask) == 1 else mask[selected],
        )


def _added(mask: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """A mask as numbers that are added to logits."""
    if mask.dtype != torch.bool:
        return mask
    return torch.zeros(mask.shape, dtype=like.dtype, device=mask.device).masked_fill_(
        ~mask, -torch.inf
    )


def attention_map(
    attention: QueriesAndKeys, dtype: torch.dtype, copies: CpuCopies, frames: int = 1
) -> torch.Tensor:
    """softmax(scale q k^T + mask), (rows * frames, heads, positions, count).

    On the CPU in ``dtype``, computed and copied in blocks of rows and heads, so that the device
    holds one block. The softmax is over all keys. Complete after ``copies.wait()``.
    """
    query = attention.query
    rows, heads, tokens, channels = query.shape
    shared, keys = attention.key.shape[1:3]
    positions = tokens // frames
    result = copies.empty(query, (rows * frames, heads, positions, attention.count), dtype)
    slices = result.flatten(0, 1)
    block = _CPU_BLOCK if query.device.type == "cpu" else _GPU_BLOCK
    size = max(block // (4 * positions * keys), 1)
    query = query.unflatten(2, (frames, positions)).transpose(1, 2).flatten(0, 2)
    key = attention.key.flatten(0, 1)
    scale = channels**-0.5 if attention.scale is None else attention.scale
    end = attention.begin + attention.count
    for begin in range(0, len(query), size):
        part = slice(begin, begin + size)
        number = torch.arange(begin, min(begin + size, len(query)), device=query.device)
        head = number % heads
        row = number // (frames * heads)
        several = frames > 1 or shared < heads
        of_head = key[row * shared + head // (heads // shared)] if several else key[part]
        logits = query[part].float() @ of_head.float().mT * scale
        if attention.mask is not None:
            logits += _mask_of(
                attention.mask, row, head=head, frame=number // heads % frames, frames=frames
            )
        copies.write(slices[part], logits.softmax(-1)[..., attention.begin : end])
    return result


def _mask_of(
    mask: torch.Tensor, row: torch.Tensor, *, head: torch.Tensor, frame: torch.Tensor, frames: int
) -> torch.Tensor:
    """A mask at rows, heads and frames (n,): (n, positions or 1, keys)."""
    row = row if len(mask) > 1 else torch.zeros_like(row)
    head = head if mask.shape[1] > 1 else torch.zeros_like(head)
    if mask.shape[2] == 1:
        return mask[row, head].float()
    return mask.unflatten(2, (frames, -1))[row, head, frame].float()


def head_mean_map(
    attention: QueriesAndKeys, size: tuple[int, int], frames: int = 1
) -> torch.Tensor:
    """The mean over heads of ``attention_map``: float32 (rows * frames, count, height, width), on
    the same device.
    """
    mean = mean_attention(
        attention.query,
        attention.key,
        mask=attention.mask,
        scale=attention.scale,
        begin=attention.begin,
        count=attention.count,
    )
    return mean.unflatten(1, (frames, -1)).flatten(0, 1).transpose(1, 2).unflatten(2, size)


def attention_from(
    attention: torch.Tensor, size: tuple[int, int], points: torch.Tensor
) -> torch.Tensor:
    """Where the positions under points attend: float32 (heads, H, W), the mean over points.

    ``attention``: a self-attention map (heads, H * W, H * W) with positions of ``size`` (H, W);
    ``points`` (P, 2): x and y as fractions of width and height.
    """
    height, width = size
    columns = (points[:, 0] * width).long().clamp(0, width - 1)
    rows = (points[:, 1] * height).long().clamp(0, height - 1)
    return attention[:, rows * width + columns].float().mean(1).unflatten(1, size)


class AttentionFeature:
    """The paper's "attn" feature (arXiv 2410.03558, official code): a mean over layers for each map
    size.

    ``result`` enlarges them by nearest neighbor to one size and joins them along channels, in order
    of first use.
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
        return torch.cat(
            [F.interpolate(mean, size=self._size, mode="nearest") for mean in means], dim=1
        )


class LayerMean:
    """The mean over all layers, each map enlarged bicubically first, negative values set to 0."""

    def __init__(self, size: tuple[int, int]):
        self._size = size
        self._sum = torch.zeros(())
        self._count = 0

    def add(self, maps: torch.Tensor) -> None:
        """Add one layer's ``head_mean_map``."""
        if tuple(maps.shape[-2:]) != tuple(self._size):
            maps = F.interpolate(maps, size=self._size, mode="bicubic").clamp_min(0)
        self._sum = self._sum + maps
        self._count = self._count + 1

    def result(self) -> torch.Tensor:
        """Float32 (rows, keys, height, width)."""
        return self._sum / self._count
