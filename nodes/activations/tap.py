"""Catch activations while a network is called, and copy only what is to be kept."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F

from .catalog import Entry
from .features import Row, stored

Pairs = list[tuple[str, Callable[[torch.Tensor], None]]]


@dataclass(frozen=True)
class Keep:
    """What a tap keeps: rows of which conditioning, averaged over squares of ``pool`` positions, in which precision."""

    conditional: bool = True
    unconditional: bool = False
    pool: int = 1
    dtype: torch.dtype = torch.float16

    def wants(self, conditional: bool) -> bool:
        return self.conditional if conditional else self.unconditional


class Tap:
    """The activations of one evaluation of a network, which may take several calls."""

    def __init__(self, entries: list[Entry], keep: Keep):
        self._entries, self._keep = entries, keep
        self._caught: dict[bool, dict[str, torch.Tensor]] = {}

    def receivers(self, network: nn.Module, parts: tuple[bool, ...]) -> tuple[Pairs, Pairs] | None:
        """Receivers of outputs and of first inputs for one call; None when the call holds no row that is wanted.

        ``parts``: for each equal share of the call's rows, whether it is conditional. Raises ValueError when a
        conditioning has several parts at once, for then an image has no one activation.
        """
        wanted = [part for part in parts if self._keep.wants(part)]
        if not wanted:
            return None
        if len(set(wanted)) < len(wanted) or set(wanted) & set(self._caught):
            raise ValueError(
                "The conditioning is made of several parts at this noise level (combined, or with areas), so an "
                "image has no one activation: use a single one."
            )
        self._caught |= {part: {} for part in wanted}
        return _Call(network, parts, self._entries, self._keep, self._caught).pairs()

    @property
    def empty(self) -> bool:
        """Whether no call held a row that is wanted: with CFG 1 there are no unconditional ones."""
        return not self._caught

    def result(self) -> tuple[dict[str, torch.Tensor], tuple[Row, ...]]:
        """What was caught, and its rows, conditional ones first. Raises ValueError when a module was never called."""
        order = sorted(self._caught, reverse=True)
        missing = [entry.id for entry in self._entries for part in order if entry.id not in self._caught[part]]
        if missing:
            raise ValueError(
                f"Nothing came from {missing[0]}: another node on the MODEL replaces or compiles that part of it. "
                "Take the MODEL from before that node."
            )
        tensors = {entry.id: torch.cat([self._caught[part][entry.id] for part in order]) for entry in self._entries}
        count = len(next(iter(tensors.values()))) // len(order)
        return tensors, tuple(Row(image, part) for part in order for image in range(count))


class _Call:
    """The receivers of one call: they cut rows, lay tokens out on their grid, pool, and copy."""

    def __init__(self, network: nn.Module, parts: tuple[bool, ...], entries: list[Entry], keep: Keep, caught: dict):
        self._network, self._parts, self._entries, self._keep, self._caught = network, parts, entries, keep, caught
        self._grids: dict[str, tuple[int, int]] = {}

    def pairs(self) -> tuple[Pairs, Pairs]:
        outputs: Pairs = []
        inputs: Pairs = [
            (path, self._note_grid(path)) for path in sorted({e.grid for e in self._entries if e.kind == "tokens"})
        ]
        for entry in self._entries:
            if entry.kind == "map":
                outputs += self._map_pairs(entry)
            elif entry.kind == "input":
                inputs.append((entry.module, self._catch(entry)))
            else:
                outputs.append((entry.module, self._catch(entry)))
        return outputs, inputs

    def _note_grid(self, path: str):
        def receive(tensor: torch.Tensor) -> None:
            self._grids[path] = tuple(tensor.shape[-2:])

        return receive

    def _catch(self, entry: Entry):
        def receive(tensor: torch.Tensor) -> None:
            for part, share in self._shares(tensor):
                feature = self._on_grid(share, entry) if entry.kind == "tokens" else share
                self._caught[part][entry.id] = stored(pooled(feature, self._keep.pool), self._keep.dtype)

        return receive

    def _map_pairs(self, entry: Entry) -> Pairs:
        heads, queries = self._network.get_submodule(entry.module).heads, []

        def keys_come(keys: torch.Tensor) -> None:
            query = queries.pop()
            for (part, q), (_, k) in zip(self._shares(query), self._shares(keys), strict=True):
                self._caught[part][entry.id] = attention_map(q, k, heads, self._keep.dtype)

        return [(f"{entry.module}.to_q", queries.append), (f"{entry.module}.to_k", keys_come)]

    def _shares(self, tensor: torch.Tensor) -> list[tuple[bool, torch.Tensor]]:
        pairs = zip(self._parts, tensor.chunk(len(self._parts)), strict=True)
        return [(part, share) for part, share in pairs if self._keep.wants(part)]

    def _on_grid(self, tokens: torch.Tensor, entry: Entry) -> torch.Tensor:
        height, width = self._grids[entry.grid]
        if tokens.shape[1] != height * width:
            raise ValueError(
                f"{entry.id} has {tokens.shape[1]} tokens for {height} x {width} positions: another node merges or "
                "tiles tokens (such as Token Merging or HyperTile). Take the MODEL from before it."
            )
        return tokens.transpose(1, 2).unflatten(2, (height, width))


def pooled(feature: torch.Tensor, factor: int) -> torch.Tensor:
    """A feature (rows, channels, height, width) averaged over squares, to a factor-th of its sides, at least 1."""
    if factor == 1:
        return feature
    height, width = feature.shape[-2:]
    return F.adaptive_avg_pool2d(feature, (max(height // factor, 1), max(width // factor, 1)))


def attention_map(query: torch.Tensor, key: torch.Tensor, heads: int, dtype: torch.dtype) -> torch.Tensor:
    """softmax(q k^T / sqrt(d)), (rows, heads, positions, keys), of (rows, positions or keys, heads * d).

    On the CPU in ``dtype``, made and copied one row and head at a time, so that the device holds one such slice.
    """
    query, key = (tensor.unflatten(2, (heads, -1)).transpose(1, 2) for tensor in (query, key))
    result = torch.empty(*query.shape[:3], key.shape[2], dtype=dtype)
    scale = query.shape[-1] ** -0.5
    for row in range(query.shape[0]):
        for head in range(heads):
            scores = query[row, head].float() @ key[row, head].float().T
            result[row, head] = (scores * scale).softmax(-1)
    return result
