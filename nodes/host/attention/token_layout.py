"""Where text and image stand in the attentions of a network, found by evaluating it.

Tokens whose keys change with the text are the text's, those whose keys change with the latent the
image's; others are registers and padding. No network is known by its class. Once text and image
have read each other everything changes with both, so an attention is judged where one of its kind
comes first, and an attention of as many tokens stands for those that come later.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn

from ...common.attention import AttentionCall, Kind, NetworkLayout, TokenLayout, kind_of
from ...common.network_call import RowSubset, evaluating_again
from .reader import (
    OVERRIDE,
    AttentionOverride,
    entering_blocks,
    is_taken_by_name,
    take_by_name,
)

#: Options of a call that have nothing to do with where its tokens stand.
_PATCHES = ("patches", "patches_replace", "wrappers", OVERRIDE)
#: Texts of further encoders beside the encoded prompt: HunyuanDiT's T5, HunyuanImage's ByT5.
_FURTHER_TEXTS = ("encoder_hidden_states_t5", "txt_byt5")
_CHANGED = 1e-5  # of the largest number, above the rounding of a kernel
#: How many layouts of a network are kept: sizes, lengths of texts.
_KEPT = 64


class _EnoughError(Exception):
    """What comes later has been seen."""


class _Prints:
    """Two numbers for each token of the first attention of each kind, in the order of calls.

    A vector that an attention pools of the text acts on all tokens: other evaluations than the
    ``plain`` one take its vectors over, so that only the text's own tokens change with the text.
    """

    def __init__(
        self,
        until: int | None = None,
        enough: Callable[[Kind], bool] | None = None,
        *,
        plain: _Prints | None = None,
    ):
        self.queries: dict[Kind, torch.Tensor] = {}
        self.keys: dict[Kind, torch.Tensor] = {}
        self.pooled: dict[Kind, torch.Tensor] = {}
        self.calls = 0
        self._plain = plain
        self._until = until
        self._enough = enough

    def receive(self, call: AttentionCall) -> torch.Tensor:
        kind = kind_of(call)
        self.calls += 1
        if kind not in self.keys:
            self.queries[kind] = _printed(call.query)
            self.keys[kind] = _printed(call.key)
            if self._enough is not None and self._enough(kind):
                raise _EnoughError
        if self.calls == self._until:
            raise _EnoughError
        if not call.pools:
            return call.attend()
        kept = self if self._plain is None else self._plain
        if kind not in kept.pooled:
            kept.pooled[kind] = call.attend()
        return kept.pooled[kind]


def _printed(tensor: torch.Tensor) -> torch.Tensor:
    """(rows, heads, N, d) -> (N, 2 rows): projections to two directions."""
    tensor = tensor.detach().float().movedim(2, 0).flatten(2)  # (N, rows, heads * d)
    steps = torch.arange(tensor.shape[2], device=tensor.device)
    directions = torch.stack([(0.7 * steps + 0.3).cos(), (1.9 * steps).sin()], 1)
    return (tensor @ directions).flatten(1).cpu()


def _differs(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    if one.shape != other.shape:
        return torch.zeros(len(one), dtype=torch.bool)
    return (one - other).abs().amax(1) > _CHANGED * one.abs().max()


_known: WeakKeyDictionary[nn.Module, dict[tuple, NetworkLayout]] = WeakKeyDictionary()


def layout_of(
    network: nn.Module, args: tuple, kwargs: dict[str, Any], subset: RowSubset
) -> NetworkLayout:
    """The layout for a call of a network with these inputs, as ComfyUI hands them over.

    ``subset`` says which rows of the network's call they are. One row is evaluated with them, then
    as far as needed with another text and with another latent. Kept by the shapes of the inputs.
    Within a call of the network, of whose hooks none sees or changes it.
    """
    known = _known.setdefault(network, {})
    key = tuple(_shapes((args, {name: kwargs[name] for name in sorted(kwargs)})))
    if key not in known:
        if len(known) >= _KEPT:
            known.pop(next(iter(known)))
        probed = RowSubset(subset.numbers[:1], subset.of, probe=True)
        with torch.no_grad(), evaluating_again(probed):
            known[key] = _probed(network, *row_of(args, kwargs))
    return known[key]


def _shapes(value: Any) -> list:
    """Shapes without rows of all tensors in arguments; names of what else there is do not count."""
    if isinstance(value, torch.Tensor):
        return [tuple(value.shape[1:])]
    if isinstance(value, dict):
        kept = (entry for entry in value.items() if entry[0] not in ("transformer_options",))
        return [item for name, entry in kept for item in (name, *_shapes(entry))]
    if isinstance(value, tuple | list):
        return [item for entry in value for item in _shapes(entry)]
    return [value] if isinstance(value, int | bool | str) else []


def row_of(args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
    """The first row of a call's inputs."""
    return rows_of(args, kwargs, RowSubset([0], len(first_part(args[0]))))


def rows_of(args: tuple, kwargs: dict[str, Any], subset: RowSubset) -> tuple[tuple, dict]:
    """Some rows of a call's inputs; what has another number of rows belongs to all of them."""
    options = kwargs.get("transformer_options") or {}
    selected = {
        name: _selected(value, subset)
        for name, value in kwargs.items()
        if name != "transformer_options"
    }
    groups = options.get("cond_or_uncond")
    changed = dict(options)
    if groups and subset.of % len(groups) == 0:
        images = subset.of // len(groups)
        places = dict.fromkeys(row // images for row in subset.numbers)
        for name in ("cond_or_uncond", "uuids"):
            if options.get(name):
                changed[name] = [options[name][place] for place in places]
    return _selected(args, subset), {**selected, "transformer_options": changed}


def first_part(latent: Any) -> torch.Tensor:
    """The first part of a network's latent, which is a list where there are several."""
    return latent if isinstance(latent, torch.Tensor) else latent[0]


def _selected(value: Any, subset: RowSubset) -> Any:
    if isinstance(value, torch.Tensor):
        return subset.select(value) if value.ndim and len(value) == subset.of else value
    if isinstance(value, dict):
        return {name: _selected(entry, subset) for name, entry in value.items()}
    if isinstance(value, tuple | list):
        return type(value)(_selected(entry, subset) for entry in value)
    return value


def _probed(network: nn.Module, args: tuple, kwargs: dict[str, Any]) -> NetworkLayout:
    plain = _Prints()
    _evaluate(network, args, kwargs, plain)
    if not plain.calls and not is_taken_by_name(network):
        take_by_name(network)
        _evaluate(network, args, kwargs, plain)
    text = _Prints(enough=lambda kind: _is_rest_known(plain, text, kind), plain=plain)
    _evaluate(network, args, _with_another_text(kwargs), text)
    parts = []
    latent = args[0]
    for number in range(1 if isinstance(latent, torch.Tensor) else len(latent)):
        part = _Prints(until=text.calls, plain=plain)
        _evaluate(network, (_with_another_part(latent, number), *args[1:]), kwargs, part)
        parts.append(part)
    layouts: dict[Kind, TokenLayout] = {}
    tokens = _tokens_of(kwargs)
    ends = _Ends(network, args, kwargs, plain=plain, until=text.calls)
    for kind in plain.keys:
        layout = None
        if kind in text.keys and all(kind in part.keys for part in parts):
            layout = _compared(kind, plain, text, parts)
        if layout is not None and layout.reads_text:
            layout = replace(layout, prompt=_prompt_keys(layout, tokens, kind, ends))
        if layout is None:
            similar = (one for other, one in layouts.items() if other[2:] == kind[2:])
            layout = next((one for one in similar if one.reads_text), None)
        if layout is not None:
            layouts[kind] = layout
    return NetworkLayout(layouts)


def _compared(
    kind: Kind, plain: _Prints, text: _Prints, parts: list[_Prints]
) -> TokenLayout | None:
    """None where text and image have read each other before."""
    text_keys = _differs(plain.keys[kind], text.keys[kind])
    text_queries = _differs(plain.queries[kind], text.queries[kind])
    of_parts = [_differs(plain.queries[kind], part.queries[kind]) for part in parts]
    image_queries = torch.stack(of_parts).any(0)
    image_keys = torch.stack([_differs(plain.keys[kind], part.keys[kind]) for part in parts]).any(0)
    if (text_keys & image_keys).any() or (text_queries & image_queries).any():
        return None
    return TokenLayout(
        image_queries=image_queries,
        first_part=of_parts[0],
        image_keys=image_keys,
        text_keys=text_keys,
    )


def _tokens_of(kwargs: dict[str, Any]) -> int:
    """How many tokens the encoded prompt has; 0 without one."""
    context = kwargs.get("context")
    return 0 if context is None else context.shape[-2]


class _Ends:
    """Attentions with another first, and with another last token of the encoded prompt; evaluated
    once, when needed.
    """

    def __init__(
        self,
        network: nn.Module,
        args: tuple,
        kwargs: dict[str, Any],
        plain: _Prints,
        until: int,
    ):
        self._network = network
        self._args = args
        self._kwargs = kwargs
        self._plain = plain
        self._until = until
        self._prints: list[_Prints] = []

    def most_changed(self, kind: Kind) -> list[int | None] | None:
        """The keys that change most with the first and with the last token; None for a token that
        is padding, which the network replaces by its own (HunyuanDiT).
        """
        if not self._prints:
            for place in (0, -1):
                prints = _Prints(until=self._until, plain=self._plain)
                kwargs = _with_another_token(self._kwargs, place)
                _evaluate(self._network, self._args, kwargs, prints)
                self._prints.append(prints)
        if any(kind not in prints.keys for prints in self._prints):
            return None
        before = self._plain.keys[kind]
        changes = [(prints.keys[kind] - before).abs().amax(1) for prints in self._prints]
        return [int(change.argmax()) if change.any() else None for change in changes]


def _prompt_keys(layout: TokenLayout, tokens: int, kind: Kind, ends: _Ends) -> slice | None:
    """The keys of the tokens of the encoded prompt.

    They stand together and in order. Where the text has other keys beside them, the first and the
    last token show by their own keys, on which they act most.
    """
    text = layout.text
    if isinstance(text, slice) and text.stop - text.start == tokens:
        return text
    first, last = ends.most_changed(kind) or (None, None)
    if first is None:
        return None
    stop = first + tokens
    fits = stop <= len(layout.text_keys) if last is None else last == stop - 1
    return slice(first, stop) if fits else None


def _with_another_token(kwargs: dict[str, Any], place: int) -> dict[str, Any]:
    """The inputs with another first or last token of the encoded prompt."""
    context = kwargs["context"].clone()
    context[..., place, :] = _disturbed(context[..., place, :])
    return {**kwargs, "context": context}


def _is_rest_known(plain: _Prints, text: _Prints, kind: Kind) -> bool:
    """Whether the kinds that come later have as many tokens as one that joins text and others."""
    joint = set()
    for seen in text.keys:
        changed = _differs(plain.keys[seen], text.keys[seen]) if seen in plain.keys else None
        if changed is not None and changed.any() and not changed.all():
            joint.add(seen[2:])
    later = [other for other in plain.keys if other not in text.keys]
    return all(other[2:] in joint for other in later)


def _evaluate(network: nn.Module, args: tuple, kwargs: dict[str, Any], prints: _Prints) -> None:
    """Evaluate a network on one row, as far as is needed."""
    options = kwargs.get("transformer_options") or {}
    override = AttentionOverride(prints.receive)
    kept = {name: value for name, value in options.items() if name not in _PATCHES}
    with entering_blocks(network, lambda: override), suppress(_EnoughError):
        network.forward(*args, **{**kwargs, "transformer_options": {**kept, OVERRIDE: override}})


def _with_another_text(kwargs: dict[str, Any]) -> dict[str, Any]:
    """The inputs with another text, wherever it rides beside the context."""
    context = kwargs.get("context")
    if context is None:
        return kwargs
    tokens = context.shape[-2]
    return {
        name: _disturbed(value) if _is_text(name, value, tokens) else value
        for name, value in kwargs.items()
    }


def _is_text(name: str, value: Any, tokens: int) -> bool:
    return (
        isinstance(value, torch.Tensor)
        and value.is_floating_point()
        and value.ndim >= 3
        and (name in _FURTHER_TEXTS or value.shape[-2] == tokens)
    )


def _with_another_part(latent: Any, number: int) -> Any:
    if isinstance(latent, torch.Tensor):
        return _disturbed(latent)
    return [_disturbed(part) if place == number else part for place, part in enumerate(latent)]


def _disturbed(tensor: torch.Tensor) -> torch.Tensor:
    """Every element changed, by an amount that differs from channel to channel and place to
    place.
    """
    steps = torch.arange(tensor.numel(), device=tensor.device).view_as(tensor)
    return tensor + ((0.37 * steps).cos() + 0.1).to(tensor) * (tensor.abs().mean() + 0.1)
