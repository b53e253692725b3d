"""Hand the attentions of a network's blocks to receivers while the network is called."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import nn

from ...common.attention import AttentionCall, AttentionReceiver, NetworkLayout
from ...common.network_call import RowSubset, evaluated_again
from .reader import OVERRIDE, AttentionOverride, entering_blocks
from .token_layout import first_part, layout_of


@contextmanager
def receiving_attentions(
    network: nn.Module,
    receivers: Iterable[tuple[str, AttentionReceiver]],
    *,
    watches: bool = False,
) -> Iterator[None]:
    """Within: the attentions of blocks, by their dotted paths, go to receivers, with their layouts.

    The path "" is that of attentions outside of blocks. Of several receivers of a block the first
    is outermost: what it changes is handed on to the next. ``watches``: they only look, after the
    attention, so that what they compute is no part of a gradient, and get nothing of layers that
    another node evaluates again, nor of what is computed again for a gradient.
    """
    by_block: dict[str, list[AttentionReceiver]] = {}
    for path, receiver in receivers:
        by_block.setdefault(path, []).append(receiver)
    if not by_block:
        yield
        return
    of_call = _CallAttentions(network, by_block, watches=watches)
    # Before the hooks of an edit by words, whose texts it changes too.
    handle = network.register_forward_pre_hook(of_call.begin, with_kwargs=True, prepend=True)
    try:
        with entering_blocks(network, of_call.current):
            yield
    finally:
        handle.remove()
        of_call.is_over = True


class _CallAttentions:
    """The attentions of one call of a network, and who receives them."""

    def __init__(
        self, network: nn.Module, receivers: dict[str, list[AttentionReceiver]], *, watches: bool
    ):
        self._network = network
        self._receivers = receivers
        self._watches = watches
        self._override: AttentionOverride | None = None
        self._layout: NetworkLayout
        self.is_over = False

    def current(self) -> AttentionOverride | None:
        """The override; None while an evaluation beside the call is none of its business."""
        return None if self._looks_away() else self._override

    def _looks_away(self) -> bool:
        subset = evaluated_again()
        if subset is None:
            return self._watches and self.is_over
        return self._watches or subset.probe

    def begin(
        self, _network: nn.Module, args: tuple, kwargs: dict[str, Any]
    ) -> tuple[tuple, dict[str, Any]]:
        """The inputs with which the network is called."""
        options = kwargs.get("transformer_options") or {}
        rows = len(first_part(args[0]))
        self._layout = layout_of(self._network, args, kwargs, RowSubset([0], rows))
        self._override = _Override(self, options.get(OVERRIDE))
        return args, {**kwargs, "transformer_options": {**options, OVERRIDE: self._override}}

    def receive(self, call: AttentionCall) -> torch.Tensor:
        """The output of an attention."""
        receivers = self._receivers.get(call.block)
        if not receivers:
            return call.attend()
        subset = evaluated_again()
        layout = self._layout if subset is None or subset.layout is None else subset.layout
        call = replace(call, layout=layout.of(call))
        if not self._watches:
            return _through(receivers, call)
        output = call.attend()
        watched = replace(call, evaluate=lambda _call: output)
        with torch.no_grad():
            for receive in receivers:
                receive(watched)
        return output


class _Override(AttentionOverride):
    """An override that leaves evaluations out that are none of its business."""

    def __init__(self, attentions: _CallAttentions, other: Any):
        super().__init__(attentions.receive, other)
        self._attentions = attentions

    def __call__(self, attend: Any, *args: Any, **options: Any) -> torch.Tensor:
        if self._attentions.current() is None:
            if self._other is None:
                return attend(*args, **options)
            return self._other(attend, *args, **options)
        return super().__call__(attend, *args, **options)


def _through(receivers: Sequence[AttentionReceiver], call: AttentionCall) -> torch.Tensor:
    """An attention handed to one receiver after the other."""
    if not receivers:
        return call.attend()
    inner = replace(call, evaluate=partial(_handed_on, receivers[1:], call))
    output = receivers[0](inner)
    return inner.attend() if output is None else output


def _handed_on(
    receivers: Sequence[AttentionReceiver], call: AttentionCall, changed: AttentionCall
) -> torch.Tensor:
    return _through(receivers, replace(changed, evaluate=call.evaluate))
