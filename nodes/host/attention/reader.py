"""Every attention of a network with its queries, keys and values, as ComfyUI hands them over.

ComfyUI gives each attention, after norms and rotary positions, to the function that
``transformer_options["optimized_attention_override"]`` holds. The override here calls another
node's that was there before, so both act. Some networks hand no options to their attentions
(PixArt, HunyuanDiT, ERNIE-Image); theirs are taken by the name that the network's modules call.
"""

from __future__ import annotations

import copy
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import ModuleType
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

import torch
from torch import nn

from ...common.attention import AttentionCall

OVERRIDE = "optimized_attention_override"


class AttentionOverride:
    """ComfyUI's override of the attentions of one call of a network.

    ``receive`` gets each and returns its output. Gradient checkpointing computes a block again
    with a copy of this as it was when the block began, so that the place is an attribute.
    """

    def __init__(
        self, receive: Callable[[AttentionCall], torch.Tensor], other: Callable | None = None
    ):
        self._receive = receive
        self._other = other
        self._block = ""
        self._number = 0
        self._outside = 0

    def __copy__(self) -> AttentionOverride:
        """Also of an override within, which counts too."""
        twin = type(self).__new__(type(self))
        twin.__dict__.update(self.__dict__)
        if isinstance(self._other, AttentionOverride):
            twin._other = copy.copy(self._other)
        return twin

    def enter(self, block: str) -> None:
        """A block begins, or with "" is over."""
        if not self._block:
            self._outside = self._number
        self._block = block
        self._number = 0 if block else self._outside

    def __call__(
        self,
        attend: Callable,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        heads: int,
        *args: Any,
        **options: Any,
    ) -> torch.Tensor:
        number = self._number
        self._number += 1
        other = self._other
        if getattr(_by_name, "is_under_way", False) and not isinstance(other, AttentionOverride):
            other = None  # another pack's, whom the network does not call either
        function = attend if other is None else partial(other, attend)
        is_split = options.get("skip_reshape", args[2] if len(args) > 2 else False)
        is_split_after = options.get("skip_output_reshape", args[3] if len(args) > 3 else False)
        channels = query.shape[-1] if is_split else query.shape[-1] // heads
        split = (lambda t: t) if is_split else partial(_by_head, channels=channels)
        mask = options.get("mask", args[0] if args else None)
        handed_over = (query, key, value)

        def evaluate(changed: AttentionCall) -> torch.Tensor:
            tensors = []
            both = zip(
                (changed.query, changed.key, changed.value),
                (call.query, call.key, call.value),
                strict=True,
            )
            for original, (tensor, seen) in zip(handed_over, both, strict=True):
                if tensor is seen:
                    tensors.append(original)
                else:
                    tensors.append(tensor if is_split else tensor.transpose(1, 2).flatten(2))
            if changed.mask is call.mask:
                return function(*tensors, heads, *args, **options)
            if args:
                return function(*tensors, heads, changed.mask, *args[1:], **options)
            return function(*tensors, heads, **{**options, "mask": changed.mask})

        call = AttentionCall(
            block=self._block,
            number=number,
            query=split(query),
            key=split(key),
            value=split(value),
            mask=None if mask is None else _over_rows_and_heads(mask),
            scale=options.get("scale") or channels**-0.5,
            token_dimension=2 if is_split_after else 1,
            evaluate=evaluate,
        )
        return self._receive(call)


def _by_head(tensor: torch.Tensor, channels: int) -> torch.Tensor:
    if tensor.ndim == 3:
        tensor = tensor.unflatten(-1, (-1, channels))
    return tensor.transpose(1, 2)  # SD3 has divided its keys and values into heads


def _over_rows_and_heads(mask: torch.Tensor) -> torch.Tensor:
    """A mask (N, M), (rows, N, M) or (rows, heads, N, M), as ComfyUI's attentions read it."""
    if mask.ndim == 2:
        mask = mask[None]
    return mask[:, None] if mask.ndim == 3 else mask


#: Of ComfyUI's attention, in each of its modules that import it.
_NAME = "optimized_attention"
#: Networks that hand no options to their attentions.
_silent: WeakSet[nn.Module] = WeakSet()
_modules: WeakKeyDictionary[nn.Module, tuple[ModuleType, ...]] = WeakKeyDictionary()
#: Networks whose attentions are taken at this time, and by whom.
_takers: list[tuple[nn.Module, Callable[[], AttentionOverride | None]]] = []
#: Of each thread, whether an attention that was taken by name is under way.
_by_name = threading.local()


def take_by_name(network: nn.Module) -> None:
    """From now on take the attentions of a network by name, since it hands no options to them."""
    _silent.add(network)


def is_taken_by_name(network: nn.Module) -> bool:
    """Whether a network hands no options to its attentions."""
    return network in _silent


def _modules_of(network: nn.Module) -> tuple[ModuleType, ...]:
    """Python's modules of a network's classes that call ComfyUI's attention by name."""
    if network not in _modules:
        names = dict.fromkeys(type(module).__module__ for module in network.modules())
        found = (sys.modules[name] for name in names if name in sys.modules)
        _modules[network] = tuple(module for module in found if _NAME in vars(module))
    return _modules[network]


@contextmanager
def _taking_by_name(
    network: nn.Module, current: Callable[[], AttentionOverride | None]
) -> Iterator[None]:
    """Within: what a network's modules call by name goes to the override that is current."""

    def taking(attend: Callable) -> Callable:
        def attention(*args: Any, **options: Any) -> torch.Tensor:
            is_within = getattr(_by_name, "is_under_way", False)
            override = None if is_within or network not in _silent else _outermost(network)
            if override is None:
                return attend(*args, **options)
            _by_name.is_under_way = True
            try:
                return override(attend, *args, **options)
            finally:
                _by_name.is_under_way = False

        return attention

    replaced = [(module, getattr(module, _NAME)) for module in _modules_of(network)]
    taker = (network, current)
    _takers.append(taker)
    try:
        for module, attend in replaced:
            setattr(module, _NAME, taking(attend))
        yield
    finally:
        for module, attend in replaced:
            setattr(module, _NAME, attend)
        _takers.remove(taker)


def _outermost(network: nn.Module) -> AttentionOverride | None:
    """Of the overrides that are current the one that calls the others; they begin in any order."""
    overrides = [
        override
        for taken, current in _takers
        if taken is network and (override := current()) is not None
    ]
    called = {id(override._other) for override in overrides}
    last_first = reversed(overrides)
    return next((override for override in last_first if id(override) not in called), None)


_blocks: WeakKeyDictionary[nn.Module, tuple[tuple[str, nn.Module], ...]] = WeakKeyDictionary()


def blocks_of(network: nn.Module) -> tuple[tuple[str, nn.Module], ...]:
    """The outermost modules that stand in lists of modules, by their dotted paths; of a list of
    lists (Stable Cascade), those of the inner ones, since no list is called.
    """
    if network not in _blocks:
        _blocks[network] = tuple(_blocks_below(network, ""))
    return _blocks[network]


def _blocks_below(module: nn.Module, path: str) -> Iterator[tuple[str, nn.Module]]:
    for name, child in module.named_children():
        place = f"{path}{name}"
        if isinstance(module, nn.ModuleList) and not isinstance(child, nn.ModuleList):
            yield place, child
        else:
            yield from _blocks_below(child, f"{place}.")


@contextmanager
def entering_blocks(
    network: nn.Module, current: Callable[[], AttentionOverride | None]
) -> Iterator[None]:
    """Tell the override that is current at that time, if any, which block of a network runs."""
    handles = []

    def begin(_block: nn.Module, _args: tuple, path: str) -> None:
        override = current()
        if override is not None:
            override.enter(path)

    def end(_block: nn.Module, _args: tuple, _output: object) -> None:
        override = current()
        if override is not None:
            override.enter("")

    try:
        for path, block in blocks_of(network):
            # Before the hooks of others, whose receivers may evaluate layers.
            handles.append(block.register_forward_pre_hook(partial(begin, path=path), prepend=True))
            handles.append(block.register_forward_hook(end))
        with _taking_by_name(network, current):
            yield
    finally:
        for handle in handles:
            handle.remove()
