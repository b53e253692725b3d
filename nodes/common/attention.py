"""One attention of a network under way, and where text and image stand in it.

``nodes/host/attention`` makes both; who is handed them knows nothing of ComfyUI.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

import torch

Positions = slice | torch.Tensor


@dataclass(frozen=True, kw_only=True)
class TokenLayout:
    """Which queries (N,) and keys (M,) of an attention are the image's and the text's, as bool.

    ``first_part``: the queries of the latent's first part, the video where it has sound too.
    ``prompt``: the keys of the encoded prompt's tokens, one for each in their order; others of the
    text are of padding that has read it, or of further encoders. None where they are not known.
    """

    image_queries: torch.Tensor
    first_part: torch.Tensor
    image_keys: torch.Tensor
    text_keys: torch.Tensor
    prompt: slice | None = None

    @cached_property
    def reads_text(self) -> bool:
        """Whether the image reads the text here."""
        return bool(self.image_queries.any() and self.text_keys.any())

    @cached_property
    def image(self) -> Positions:
        """The image's queries as an index."""
        return positions(self.image_queries)

    def first_tokens(self, count: int) -> Positions:
        """The first queries of the latent's first part as an index; behind them stands padding."""
        return positions(self.first_part & (self.first_part.cumsum(0) <= count))

    @cached_property
    def text(self) -> Positions:
        """The text's keys as an index."""
        return positions(self.text_keys)


def positions(chosen: torch.Tensor) -> Positions:
    """An index of what is chosen, bool (N,): a slice where it stands together."""
    with torch.inference_mode(False):  # a gradient's graph may keep the index
        numbers = chosen.clone().nonzero().flatten()
    if not len(numbers):
        return slice(0, 0)
    first = int(numbers[0])
    last = int(numbers[-1])
    return slice(first, last + 1) if last + 1 - first == len(numbers) else numbers


@dataclass(frozen=True, kw_only=True)
class AttentionCall:
    """One attention under way.

    ``block``: the dotted path of the network's block that it is in, "" outside of any;
    ``number``: its place among the attentions of
    that block, or of all that are outside, from 0. ``query`` (rows, heads, N, d),
    ``key`` and ``value`` (rows, heads or fewer, M, d): views of the tensors of the network.
    ``mask``: None, or bool or an addition to the logits that broadcasts to (rows, heads, N, M).
    ``scale``: of the logits. ``token_dimension``: of the output, 1 for (rows, N, heads * d), 2 for
    (rows, heads, N, d). ``evaluate`` returns the output of such a call as the network takes it;
    ``replace(call, value=changed).attend()`` is that with another value. ``layout``: where text and
    image stand; None where it is not known.
    """

    block: str
    number: int
    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    mask: torch.Tensor | None
    scale: float
    token_dimension: int
    evaluate: Callable[[AttentionCall], torch.Tensor]
    layout: TokenLayout | None = None

    @property
    def pools(self) -> bool:
        """Whether it makes one vector of the text for all layers (HunyuanDiT)."""
        return self.block == "" and self.query.shape[2] == 1

    @property
    def size(self) -> tuple[int, int]:
        """Numbers of queries and keys."""
        return self.query.shape[2], self.key.shape[2]

    def attend(self) -> torch.Tensor:
        """The output."""
        return self.evaluate(self)

    def tokens(self, output: torch.Tensor) -> torch.Tensor:
        """An output with its tokens in the second dimension, as a view."""
        return output.movedim(self.token_dimension, 1)


#: Gets an attention and returns its output; None is ``attend``'s.
AttentionReceiver = Callable[[AttentionCall], "torch.Tensor | None"]


def logits(call: AttentionCall, queries: Positions) -> torch.Tensor:
    """Of some queries of an attention: float32 (rows, heads, queries, M), with the mask."""
    query = call.query[:, :, queries].float()
    groups = query.shape[1] // call.key.shape[1]
    key = call.key.float().repeat_interleave(groups, dim=1)
    products = query @ key.mT * call.scale
    if call.mask is None:
        return products
    mask = call.mask if call.mask.shape[2] == 1 else call.mask[:, :, queries]
    if mask.dtype == torch.bool:
        return products.masked_fill(~mask, -torch.inf)
    return products + mask.float()


#: The list of blocks, the place in a block, and the numbers of queries and keys.
Kind = tuple[str, int, int, int]


def kind_of(call: AttentionCall) -> Kind:
    """Attentions of one kind, in blocks of one list, have the same layout."""
    return call.block.rpartition(".")[0], call.number, *call.size


@dataclass(frozen=True)
class NetworkLayout:
    """The layouts of a network's attentions, for inputs of one shape."""

    layouts: Mapping[Kind, TokenLayout]

    def of(self, call: AttentionCall) -> TokenLayout | None:
        """The layout of an attention; None of one that was not seen."""
        return self.layouts.get(kind_of(call))
