"""Gradient checkpointing: a block keeps its inputs alone, and is computed again for the gradient.

PyTorch's own computes again with the arguments and the autocast of the call. A block of a diffusion
network depends on more: hooks and gates of other nodes, which are gone by then
(``network_call.in_call``), dictionaries of options that later blocks have changed, attention
overrides that count. And blocks of transformers add in place to what they have kept.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import inspect
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import get_device_states, set_device_states

from ...common import network_call

_OVERRIDE = "optimized_attention_override"
#: Why a gradient is refused rather than computed of another network.
_DIFFERENT = (
    "A node on the MODEL computes differently when a block is computed again: turn "
    "gradient_checkpointing off, or connect the MODEL from before that node."
)


@contextlib.contextmanager
def checkpointed(network: nn.Module, depth: int, *, in_place: bool) -> Iterator[None]:
    """Let the network's blocks keep no activations, and compute them again for the gradient.

    ``depth``: 1 for the blocks themselves, more for the modules so many levels inside them.
    ``in_place``: whether blocks may change in place what they have kept.
    """
    replaced: list[tuple[nn.Module, Any]] = []
    try:
        for block in blocks_of(network, depth):
            replaced.append((block, vars(block).get("forward")))
            block.forward = _repeatable(block.forward, in_place)
        yield
    finally:
        for block, before in replaced:
            if before is None:
                del block.forward
            else:
                block.forward = before  # another node's, as an object patch


def blocks_of(network: nn.Module, depth: int) -> Iterator[nn.Module]:
    """The modules that a network is made of; with a ``depth`` above 1 those so many levels
    inside.
    """
    for child in network.children():
        if isinstance(child, nn.ModuleList | nn.Sequential | nn.ModuleDict):
            yield from blocks_of(child, depth)
        elif depth > 1 and any(True for _ in child.children()):
            yield from blocks_of(child, depth - 1)
        else:
            yield child


def _repeatable(forward: Callable, in_place: bool) -> Callable:
    def run(*args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return forward(*args, **kwargs)
        return _Segment(forward, args, kwargs, in_place).run(args, kwargs)

    return run


class _Kept:
    """Stands in the graph for a tensor that is computed again."""

    __slots__ = ("__weakref__", "value")

    def __init__(self):
        self.value: torch.Tensor | None = None


class _StopEarlyError(Exception):
    """All tensors that the graph needs have been computed again."""


class _Segment:
    """One evaluation of a block, and all that it takes to evaluate it again."""

    def __init__(self, forward: Callable, args: tuple, kwargs: dict, in_place: bool):
        self._forward = forward
        self._in_place = in_place
        self._args = _snapshot(args)
        self._kwargs = _snapshot(kwargs)
        self._versions = self._versions_now()
        self._states = network_call.states()
        self._autocast = _autocast_now()
        self._random = torch.get_rng_state()
        on_gpu = torch.cuda.is_initialized()
        self._random_on_gpu = (
            get_device_states(*_tensors(list(self._arguments()))) if on_gpu else ([], [])
        )
        self._kept: list[weakref.ref[_Kept]] = []
        self._kinds: list[tuple[torch.Size, torch.dtype]] = []

    def run(self, args: tuple, kwargs: dict) -> Any:
        """Evaluate the block for the first time, with the arguments as they came."""

        def pack(tensor: torch.Tensor) -> _Kept:
            kept = _Kept()
            self._kept.append(weakref.ref(kept))
            self._kinds.append((tensor.shape, tensor.dtype))
            return kept

        # On copies: some blocks add to their input in place, and would start from the sum the
        # second time.
        with saved_tensors_hooks(pack, self._unpack):
            return self._forward(
                *_copies(args), **{name: _copies(value) for name, value in kwargs.items()}
            )

    def _unpack(self, kept: _Kept) -> torch.Tensor:
        if kept.value is None:
            self._run_again()
        value = kept.value
        kept.value = None
        if value is None:
            raise ValueError(_DIFFERENT)
        return value

    def _arguments(self) -> Iterator[Any]:
        yield from self._args
        yield from self._kwargs.values()

    def _versions_now(self) -> list[int]:
        """How often each tensor among the arguments has been changed in place."""
        return [one._version for one in _tensors(list(self._arguments())) if not one.is_inference()]

    def _run_again(self) -> None:
        if self._versions_now() != self._versions:
            raise ValueError(
                "This MODEL changes in place what its blocks read: turn gradient_checkpointing off."
            )
        # whose dictionaries this evaluation changes
        args = _snapshot(self._args)
        kwargs = _snapshot(self._kwargs)
        guard = _CopyOnWrite()
        count = 0

        def pack(tensor: torch.Tensor) -> torch.Tensor:
            nonlocal count
            if (tensor.shape, tensor.dtype) != self._kinds[count]:
                raise ValueError(_DIFFERENT)
            kept = self._kept[count]()
            count += 1
            if kept is not None:
                kept.value = tensor.detach()
                guard.watch(kept)
            if count == len(self._kept):
                raise _StopEarlyError
            # Not the tensor itself: an operation that saves its own output, as softmax does, would
            # hold itself, and nothing frees such a circle.
            return tensor.detach()

        with contextlib.ExitStack() as stack:
            stack.enter_context(contextlib.suppress(_StopEarlyError))
            stack.enter_context(torch.random.fork_rng(devices=self._random_on_gpu[0]))
            torch.set_rng_state(self._random)
            if self._random_on_gpu[0]:
                set_device_states(*self._random_on_gpu)
            for autocast in self._autocast:
                stack.enter_context(autocast())
            stack.enter_context(torch.enable_grad())
            stack.enter_context(saved_tensors_hooks(pack, lambda tensor: tensor))
            stack.enter_context(network_call.again(self._states))
            if self._in_place:
                stack.enter_context(guard)
            self._forward(
                *_copies(args), **{name: _copies(value) for name, value in kwargs.items()}
            )


class _CopyOnWrite(TorchDispatchMode):
    """Copies kept tensors before an operation changes their memory in place."""

    def __init__(self):
        super().__init__()
        self._by_memory: dict[int, list[_Kept]] = {}

    def watch(self, kept: _Kept) -> None:
        """Copy the tensor of ``kept`` before its memory changes."""
        assert kept.value is not None
        self._by_memory.setdefault(kept.value.untyped_storage().data_ptr(), []).append(kept)

    def __torch_dispatch__(
        self, func: torch._ops.OpOverload, types: Any, args: tuple = (), kwargs: dict | None = None
    ):
        kwargs = kwargs or {}
        for number, argument in enumerate(func._schema.arguments):
            if argument.alias_info is not None and argument.alias_info.is_write:
                written = args[number] if number < len(args) else kwargs.get(argument.name)
                for tensor in _tensors(written):
                    self._copy(tensor.untyped_storage().data_ptr())
        return func(*args, **kwargs)

    def _copy(self, memory: int) -> None:
        for kept in self._by_memory.pop(memory, ()):
            if kept.value is not None:
                kept.value = kept.value.clone()


def _autocast_now() -> list[Callable[[], torch.autocast]]:
    """What enters autocast again as it is now, on the CPU and on a GPU."""
    return [
        functools.partial(
            torch.autocast,
            kind,
            dtype=torch.get_autocast_dtype(kind),
            enabled=torch.is_autocast_enabled(kind),
            cache_enabled=torch.is_autocast_cache_enabled(),
        )
        for kind in (("cpu", "cuda") if torch.cuda.is_initialized() else ("cpu",))
    ]


def _snapshot(value: Any) -> Any:
    """Nested arguments as they are now: later blocks change dictionaries of options, and overrides
    count calls.
    """
    if type(value) is dict:
        return {
            name: _override(item) if name == _OVERRIDE else _snapshot(item)
            for name, item in value.items()
        }
    if type(value) in (list, tuple):
        return type(value)(map(_snapshot, value))
    return value


def _override(attention: Callable) -> Callable:
    return attention if inspect.isfunction(attention) else copy.copy(attention)


def _copies(value: Any) -> Any:
    """Tensors of (nested) arguments copied; those in dictionaries of options are only read."""
    if isinstance(value, torch.Tensor):
        return value.clone()
    return type(value)(map(_copies, value)) if type(value) in (list, tuple) else value


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    """The tensors in nested lists and tuples."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)
