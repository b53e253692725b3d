"""Catch activations while a network is called, and copy only what is to be kept."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F

from .attention import LayerMean, SideMeans, attention_map, word_map
from .entries import Entry
from .features import Row, stored
from .queries import Pairs, cut, pairs_of

#: Gets one share of rows: whether it is conditional, queries, keys, and how many of the keys are the text's.
Share = Callable[[bool, torch.Tensor, torch.Tensor, "int | None"], None]


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
        self._call: _Call | None = None

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
        self._call = _Call(network, parts, self._entries, self._keep, self._caught)
        return self._call.pairs()

    @property
    def frames(self) -> int:
        """How many frames the latents of the last call had, each of which is a row; 1 for pictures."""
        return self._call.frames if self._call else 1

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
        tensors = {entry.id: _joined([self._caught[part][entry.id] for part in order]) for entry in self._entries}
        count = len(next(iter(tensors.values()))) // len(order)
        return tensors, tuple(Row(image, part) for part in order for image in range(count))


class _Call:
    """The receivers of one call: they cut rows, lay tokens out on their grid, pool, and copy."""

    def __init__(self, network: nn.Module, parts: tuple[bool, ...], entries: list[Entry], keep: Keep, caught: dict):
        self._network, self._parts, self._entries, self._keep, self._caught = network, parts, entries, keep, caught
        self._grids: dict[str, tuple[int, int]] = {}
        self._lengths: dict[str, int] = {}
        self.frames = 1

    def pairs(self) -> tuple[Pairs, Pairs]:
        everything = [one for entry in self._entries for one in (entry, *entry.members)]
        inputs: Pairs = [("", self._note_grid("")), *self._noted(everything)]
        outputs: Pairs = [
            (path, self._note_length(path)) for path in sorted({entry.last_as for entry in everything} - {""})
        ]
        for entry in self._entries:
            if entry.kind == "map":
                outputs += self._attention_pairs(entry, self._catch_map(entry))
            elif entry.members:
                outputs += self._average_pairs(entry)
            elif entry.kind == "input" or entry.of_input:
                inputs.append((entry.module, self._catch(entry)))
            else:
                outputs.append((entry.module, self._catch(entry)))
        return outputs, inputs

    def _noted(self, entries: list[Entry]) -> Pairs:
        return [(path, self._note_grid(path)) for path in sorted({entry.grid for entry in entries} - {""})]

    def _note_grid(self, path: str):
        def receive(tensor: torch.Tensor) -> None:
            self._grids[path] = tuple(tensor.shape[-2:])
            if not path and tensor.ndim == 5:
                self.frames = tensor.shape[2]

        return receive

    def _note_length(self, path: str):
        def receive(tokens: torch.Tensor) -> None:
            self._lengths[path] = tokens.shape[1]

        return receive

    def _catch(self, entry: Entry):
        def receive(tensor: torch.Tensor | tuple[torch.Tensor, ...]) -> None:
            tensor = tensor[entry.item] if isinstance(tensor, tuple) else tensor
            for part, share in self._shares(tensor):
                feature = self._on_grid(share, entry) if entry.kind == "tokens" else share
                self._caught[part][entry.id] = stored(pooled(feature, self._keep.pool), self._keep.dtype)

        return receive

    def _catch_map(self, entry: Entry):
        def receive(part: bool, query: torch.Tensor, key: torch.Tensor, text: int | None) -> None:
            self._caught[part][entry.id] = attention_map(query, key, entry.attention.heads, self._keep.dtype, text)

        return receive

    def _average_pairs(self, entry: Entry) -> Pairs:
        """Receivers that average the maps of the entry's members; after the last one the average is copied."""
        means = {part: LayerMean() if entry.kind == "mean" else SideMeans() for part in self._parts}
        outputs: Pairs = []
        for member in entry.members:
            outputs += self._attention_pairs(member, self._average(entry, member, means))
        return outputs

    def _average(self, entry: Entry, member: Entry, means: dict):
        def receive(part: bool, query: torch.Tensor, key: torch.Tensor, text: int | None) -> None:
            size, mean = self._size(entry), means[part]
            maps = word_map(query, key, member.attention.heads, self._size(member), text)
            mean.add(maps, size) if entry.kind == "mean" else mean.add(maps)
            if member == entry.members[-1]:
                result = mean.result() if entry.kind == "mean" else mean.result(size)
                self._caught[part][entry.id] = stored(pooled(result, self._keep.pool), self._keep.dtype)

        return receive

    def _attention_pairs(self, entry: Entry, use: Share) -> Pairs:
        """Receivers of an attention's queries and keys; ``use`` gets both for each share of rows that is wanted."""

        def both(query: torch.Tensor, keys: torch.Tensor, text: int | None) -> None:
            if text is not None:
                query = query[:, : self._positions(entry)]
            for (part, q), (_, k) in zip(self._shares(query), self._shares(keys), strict=True):
                use(part, self._framed(q), k.repeat_interleave(self.frames, dim=0), text)

        return pairs_of(entry.attention, both, lambda: self._lengths.get(entry.last_as))

    def _shares(self, tensor: torch.Tensor) -> list[tuple[bool, torch.Tensor]]:
        pairs = zip(self._parts, tensor.chunk(len(self._parts)), strict=True)
        return [(part, share) for part, share in pairs if self._keep.wants(part)]

    def _size(self, entry: Entry) -> tuple[int, int]:
        """Height and width that an entry's tokens or maps are laid out on."""
        sides = self._grids[entry.grid]
        return sides if entry.grid else tuple(-(-side // entry.scale) for side in sides)

    def _positions(self, entry: Entry) -> int:
        height, width = self._size(entry)
        return self.frames * height * width

    def _framed(self, tokens: torch.Tensor) -> torch.Tensor:
        """Tokens (rows, frames * positions, C) with each frame as a row."""
        return tokens.unflatten(1, (self.frames, -1)).flatten(0, 1)

    def _on_grid(self, tokens: torch.Tensor, entry: Entry) -> torch.Tensor:
        (height, width), found = self._size(entry), tokens.shape[1]
        if entry.last_as:
            tokens = tokens[:, -self._lengths[entry.last_as] :]
        if not entry.grid:  # of a transformer: behind the picture's tokens may be those of others
            tokens = tokens[:, : self._positions(entry)]
        if tokens.shape[1] != self._positions(entry):
            raise ValueError(
                f"{entry.id} has {found} tokens for {height} x {width} positions: another node merges or "
                "tiles tokens (such as Token Merging or HyperTile). Take the MODEL from before it."
            )
        tokens = self._framed(cut(tokens, entry.begin, entry.channels))
        return tokens.transpose(1, 2).unflatten(2, (height, width))


def _joined(shares: list[torch.Tensor]) -> torch.Tensor:
    return torch.cat(shares) if len(shares) > 1 else shares[0]


def pooled(feature: torch.Tensor, factor: int) -> torch.Tensor:
    """A feature (rows, channels, height, width) averaged over squares, to a factor-th of its sides, at least 1."""
    if factor == 1:
        return feature
    height, width = feature.shape[-2:]
    return F.adaptive_avg_pool2d(feature, (max(height // factor, 1), max(width // factor, 1)))
