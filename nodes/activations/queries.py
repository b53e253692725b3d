"""Queries and keys of attentions, put together from what modules hand out while the network runs."""

from __future__ import annotations

from collections.abc import Callable

import torch

from .entries import Attention, JointAttention

#: Gets queries (rows, tokens, heads * d), keys (rows, tokens of all, heads * d), and how many of the keys, which come
#: first, are the text's; None when all are what the attention is to.
Use = Callable[[torch.Tensor, torch.Tensor, "int | None"], None]
Pairs = list[tuple[str, Callable]]


def pairs_of(attention: Attention | JointAttention, use: Use, picture: Callable[[], int | None]) -> Pairs:
    """Receivers of the outputs of modules that hand ``use`` an attention's queries and keys once both are there.

    ``picture`` tells then how many of the last tokens of a sequence are the picture's; None is all of them.
    """
    if isinstance(attention, JointAttention):
        return _Joint(attention, use, picture).pairs()
    return _Plain(attention, use).pairs()


def cut(tensor: torch.Tensor, begin: int, width: int | None) -> torch.Tensor:
    """Channels of a fused projection; without a width all."""
    return tensor if width is None else tensor[..., begin : begin + width]


def turned(tensor: torch.Tensor, matrices: torch.Tensor) -> torch.Tensor:
    """Neighbouring pairs of channels turned by rotary matrices: (rows, heads, tokens, d), (1, 1, tokens, d / 2, 2, 2).

    RoFormer (arXiv 2104.09864), equation 34; products in the type of the matrices.
    """
    pairs = tensor.to(matrices.dtype).unflatten(-1, (-1, 1, 2))
    return (matrices * pairs).sum(-1).flatten(-2).to(tensor.dtype)


class _Plain:
    """Outputs of two projections, queries first, or one that holds both."""

    def __init__(self, attention: Attention, use: Use):
        self._attention, self._use, self._queries = attention, use, []

    def pairs(self) -> Pairs:
        return [(self._attention.query, self._queries.append), (self._attention.key, self._keys_come)]

    def _keys_come(self, keys: torch.Tensor) -> None:
        attention = self._attention
        query = cut(self._queries.pop(), attention.query_begin, attention.width)
        keys = cut(keys, attention.key_begin, attention.width)
        if len(keys) != len(query):  # PixArt joins the texts of a batch into one sequence
            keys = keys.reshape(len(query), -1, keys.shape[-1])
        self._use(query, keys, None)


class _Joint:
    """Outputs of the norms of text and picture, which come in any order."""

    def __init__(self, attention: JointAttention, use: Use, picture: Callable[[], int | None]):
        self._attention, self._use, self._picture = attention, use, picture
        self._found: dict[str, torch.Tensor] = {}
        self._matrices: torch.Tensor | None = None

    def pairs(self) -> Pairs:
        attention = self._attention
        wanted = {"query": (attention.query, 0), "key": (attention.key, 1), "text": (attention.text, 1)}
        pairs: Pairs = [(module, self._receiver(name, item)) for name, (module, item) in wanted.items() if module]
        self._parts = len(pairs)
        return [*pairs, (attention.turn, self._turn)] if attention.turn else pairs

    def _receiver(self, name: str, item: int):
        def receive(output: torch.Tensor | tuple[torch.Tensor, ...]) -> None:
            part = output[item] if isinstance(output, tuple) else output
            self._found[name] = part if self._attention.heads_first else part.transpose(1, 2)
            if len(self._found) == self._parts:
                self._complete(**self._found)
                self._found = {}

        return receive

    def _turn(self, matrices: torch.Tensor) -> None:
        self._matrices = matrices[:1]

    def _complete(self, query: torch.Tensor, key: torch.Tensor, text: torch.Tensor | None = None) -> None:
        """Queries of the picture and keys of text and picture, turned, with the heads side by side."""
        key = key if text is None else torch.cat([text, key], dim=2)
        picture = self._picture() or query.shape[2]
        query = query[:, :, query.shape[2] - picture :]
        if self._matrices is not None:
            query, key = turned(query, self._matrices[:, :, -query.shape[2] :]), turned(key, self._matrices)
        query, key = (one.transpose(1, 2).flatten(2) for one in (query, key))
        self._use(query, key, key.shape[1] - picture or None)
