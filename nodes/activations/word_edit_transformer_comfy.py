"""Edits by words in the joint attention of SD3 and Flux, for exactly as long as one call of the network.

There text and image are one sequence, and the text changes from block to block. So each block also runs on further
rows: the image's tokens of the positive prompt beside another text, which is carried on from block to block. What the
image's tokens read there, minus what they read in the text to move away from, is added to their attention in the block
itself. With the prompt as the text to move away from, the block's own rows say what is read in it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any

import torch
from comfy.ldm.flux.model import Flux
from comfy.ldm.modules.diffusionmodules.mmdit import MMDiT
from torch import nn

from ..common.network_call import Call
from .activation_edit import mask_at
from .word_edit import EncodedEdit

_OVERRIDE = "optimized_attention_override"


def text_width(network: nn.Module) -> int | None:
    """Channels of the text that a network of SD3's or Flux' class reads; None for other networks."""
    embedder = {MMDiT: "context_embedder", Flux: "txt_in"}
    return next(
        (getattr(network, name).in_features for kind, name in embedder.items() if isinstance(network, kind)), None
    )


@contextmanager
def edited_call(call: Call, edits: list[EncodedEdit], mask: torch.Tensor | None) -> Iterator[None]:
    """One call of the network in which the rows of the positive prompt are edited.

    Without a mask the pooled text moves too: y' = y + sum_i s_i (y_Ti - y_Ai).
    """

    def begin(_network, args, kwargs):
        return args, _CallEdit(call, edits, mask, args[0], kwargs).changed()

    handle = call.network.register_forward_pre_hook(begin, with_kwargs=True)
    try:
        yield
    finally:
        handle.remove()


@dataclass
class _Text:
    """A text at the block under way: its tokens (rows, tokens, channels), and what the image's tokens read in it."""

    tokens: torch.Tensor | None
    read: torch.Tensor | None = field(default=None)


class _CallEdit:
    """The blocks of one call, and the texts that are carried through them."""

    def __init__(self, call: Call, edits: list[EncodedEdit], mask, latent: torch.Tensor, kwargs: dict):
        self._call, self._kwargs = call, kwargs
        self._network: Any = call.network
        self._edits, self._mask, self._latent = edits, mask, latent
        self._numbered: bool | None = None
        positive = [part for part in call.parts if part.positive]
        rows = [torch.arange(call.rows)[part.rows] for part, _ in call.split(latent) if part.positive]
        self._rows = torch.cat(rows).to(latent.device)
        self._areas = [(part.area, len(own)) for part, own in zip(positive, rows, strict=True)]
        context = kwargs["context"][self._rows]
        self._texts = [(self._text(one.toward, context), self._text(one.away, context)) for one in edits]

    def changed(self) -> dict:
        """The arguments by name with which the network is called."""
        options = dict(self._kwargs.get("transformer_options") or {})
        replaced = dict(options.get("patches_replace", {}))
        blocks = dict(replaced.get("dit", {}))
        if any(isinstance(one, _Block) for one in blocks.values()):
            raise ValueError("Two Edit by Words nodes follow each other: enter both edits in one of them.")
        network = self._network
        for kind, count in (
            (("double_block", len(network.joint_blocks)),)
            if isinstance(network, MMDiT)
            else (("double_block", len(network.double_blocks)), ("single_block", len(network.single_blocks)))
        ):
            for number in range(count):
                key = (kind, number)
                blocks[key] = _Block(self, blocks.get(key))
        options["patches_replace"] = replaced | {"dit": blocks}
        return self._kwargs | {"transformer_options": options, **self._pooled()}

    def _pooled(self) -> dict:
        own = self._kwargs.get("y")
        if own is None or self._mask is not None:
            return {}
        moved = own.clone()
        for one in self._edits:
            if one.pooled is not None:
                toward, away = (pooled.to(own) for pooled in one.pooled)
                moved[self._rows, : toward.shape[1]] += one.strength * (toward - away)
        return {"y": moved}

    def _text(self, text: torch.Tensor, own: torch.Tensor) -> _Text | None:
        """A text as the first block is given it; None for the prompt itself, which is in the block's own rows."""
        text = text.to(own)
        if text.shape[1:] == own.shape[1:] and bool((text == own).all()):
            return None
        text = text.expand(len(self._rows), -1, -1) if len(text) == 1 else text[torch.arange(len(own)) % len(text)]
        network = self._network
        if isinstance(network, Flux):
            return _Text(network.txt_in(text))
        if network.context_processor is not None:
            text = network.context_processor(text)
        text = network.context_embedder(text)
        if network.register_length:
            text = torch.cat((network.register.to(text).expand(len(text), -1, -1), text), 1)
        return _Text(text)

    def run(self, args: dict, block: Callable[[dict], dict]) -> dict:
        """A block with its arguments: on each text's rows, then on the call's own, whose attention is changed."""
        self._call.require(len(args["img"]))
        if args.get("attn_mask") is not None:
            raise ValueError("Edit by Words and an attention mask (as of Redux) do not go together: leave one out.")
        joined = "txt" not in args  # Flux' single blocks: the text stands before the image's tokens in one tensor
        image = args["img"]
        own = self._kwargs["context"].shape[1] if joined else args["txt"].shape[1]
        own += getattr(self._network, "register_length", 0) if joined else 0
        for text in {id(one): one for pair in self._texts for one in pair if one is not None}.values():
            assert text.tokens is not None
            length = text.tokens.shape[1]
            rows = image[self._rows, own:] if joined else image[self._rows]
            given = {"img": torch.cat((text.tokens, rows), 1)} if joined else {"img": rows, "txt": text.tokens}
            further = {"vec": _rows_of(args["vec"], self._rows, len(image))}
            if args.get("pe") is not None:
                further["pe"] = self._positions(args["pe"], own, length)
            further["transformer_options"] = self._options(args, _Reading(text, length, rows.shape[1]))
            out = block({**args, **given, **further})
            text.tokens = out["img"][:, :length] if joined else out["txt"]
        change = _Changing(self, own, image.shape[1] - (own if joined else 0))
        return block({**args, "transformer_options": self._options(args, change)})

    def _positions(self, positions: torch.Tensor, own: int, length: int) -> torch.Tensor:
        """Rotary positions of the image's tokens behind a text of another length."""
        rows = positions if len(positions) == 1 else positions[self._rows]
        if length == own:
            return rows
        first = rows[:, :, :1]
        if self._numbered is None:  # looked up once a call, which waits for the device
            self._numbered = not bool((rows[:, :, :own] == first).all())
        if self._numbered:
            raise ValueError("This model numbers the tokens of its text: use words of the same number of tokens.")
        return torch.cat((first.expand(-1, -1, length, *rows.shape[3:]), rows[:, :, own:]), 2)

    @staticmethod
    def _options(args: dict, attention: _Attention) -> dict:
        options = args.get("transformer_options") or {}
        attention.other = options.get(_OVERRIDE)
        return {**options, _OVERRIDE: attention}

    def added(self, read: torch.Tensor) -> torch.Tensor:
        """What is added to what the image's tokens of all rows read, (rows, tokens, channels)."""
        own, result = read[self._rows], torch.zeros_like(read)
        added = torch.zeros_like(own)
        for edit, pair in zip(self._edits, self._texts, strict=True):
            toward, away = (own if one is None else one.read for one in pair)
            if toward is not None and away is not None:  # another node has left the block out
                added = added + edit.strength * (toward - away)
        result[self._rows] = added if self._mask is None else added * self._placed(added)
        return result

    def _placed(self, added: torch.Tensor) -> torch.Tensor:
        """The mask at the image's tokens: (rows, N, 1)."""
        patch = self._network.patch_size
        size = tuple(-(-side // patch) for side in self._latent.shape[-2:])
        if added.shape[1] != size[0] * size[1]:
            raise ValueError("Reference images or merged tokens stand beside the image: leave the mask out.")
        feature = added.transpose(1, 2).unflatten(2, size)
        parts = feature.split([count for _, count in self._areas])
        placed = [mask_at(self._mask, part, 1, area) for part, (area, _) in zip(parts, self._areas, strict=True)]
        return torch.cat(placed).to(added).flatten(2).transpose(1, 2)


class _Block:
    """Replaces a block for one call; another node's replacement of it is called as if this one were not there."""

    def __init__(self, edit: _CallEdit, other: Callable | None):
        self._edit, self._other = edit, other

    def __call__(self, args: dict, extra: dict) -> dict:
        if self._other is None:
            return self._edit.run(args, extra["original_block"])
        other = self._other
        return self._edit.run(args, lambda given: other(given, extra))


class _Attention:
    """Stands for the first attention of a block, which is the joint one, and leaves others (SD3.5) alone."""

    other: Callable | None = None
    done = False

    def __call__(self, attend: Callable, *args, **kwargs) -> torch.Tensor:
        found = attend(*args, **kwargs) if self.other is None else self.other(attend, *args, **kwargs)
        if self.done:
            return found
        self.done = True
        return self.first(found)

    def first(self, attended: torch.Tensor) -> torch.Tensor:
        """What becomes of the attention's output (rows, tokens, channels)."""
        raise NotImplementedError


class _Reading(_Attention):
    """Keeps what the image's tokens read beside a text."""

    def __init__(self, text: _Text, begin: int, count: int):
        self._text, self._begin, self._count = text, begin, count

    def first(self, attended: torch.Tensor) -> torch.Tensor:
        self._text.read = attended[:, self._begin : self._begin + self._count]
        return attended


class _Changing(_Attention):
    """Adds the edits to what the image's tokens read."""

    def __init__(self, edit: _CallEdit, begin: int, count: int):
        self._edit, self._begin, self._count = edit, begin, count

    def first(self, attended: torch.Tensor) -> torch.Tensor:
        image = slice(self._begin, self._begin + self._count)
        changed = attended.clone()
        changed[:, image] += self._edit.added(attended[:, image])
        return changed


def _rows_of(value, rows: torch.Tensor, count: int):
    """Some rows of modulation vectors, which Flux.2 hands to its blocks as tuples of shift, scale and gate."""
    if isinstance(value, torch.Tensor):
        return value[rows] if len(value) == count else value
    if isinstance(value, tuple | list):
        return type(value)(_rows_of(one, rows, count) for one in value)
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{one.name: _rows_of(getattr(value, one.name), rows, count) for one in fields(value)})
    return value
