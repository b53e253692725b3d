"""Bytes that autograd keeps for the gradient of a network, counted on the meta device, where
nothing is computed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import torch


class _Attention(torch.autograd.Function):
    """Attention as fused kernels do it: q, k, v and the output are kept, no matrix of both."""

    @staticmethod
    def forward(ctx, q, k, v):
        output = torch.empty_like(q)
        ctx.save_for_backward(q, k, v, output)
        return output


def fused_attention(q, k, v, heads, *args, **kwargs):
    """Takes the place of ComfyUI's ``optimized_attention``."""
    return _Attention.apply(q, k, v)


class Kept:
    """Counts the bytes of the distinct tensors that are kept while ``counting``; weights do not
    count.
    """

    def __init__(self, network: torch.nn.Module):
        self._weights = {id(tensor) for tensor in network.parameters()}
        self._seen: dict[int, torch.Tensor] = {}  # kept, so that no other tensor gets the id
        self.bytes = 0

    def _pack(self, tensor: torch.Tensor) -> torch.Tensor:
        base = tensor if tensor._base is None else tensor._base
        if id(base) not in self._seen and id(base) not in self._weights:
            self._seen[id(base)] = base
            self.bytes += base.numel() * base.element_size()
        return tensor

    def hold(self, *values) -> None:
        """Count the tensors among nested values, as what a checkpoint starts from again."""
        for value in values:
            if isinstance(value, torch.Tensor):
                self._pack(value)
            elif isinstance(value, list | tuple):
                self.hold(*value)

    @contextlib.contextmanager
    def counting(self) -> Iterator[None]:
        with torch.autograd.graph.saved_tensors_hooks(self._pack, lambda tensor: tensor):
            yield


def inputs_of(
    network: torch.nn.Module, blocks: list[torch.nn.Module], call: Callable[[], object]
) -> int:
    """The bytes of what the blocks read, which checkpointing keeps, and of what is kept outside of
    them.
    """
    kept = Kept(network)

    def begins(block, args, kwargs):
        kept.hold(*args, *kwargs.values())

    handles = [block.register_forward_pre_hook(begins, with_kwargs=True) for block in blocks]
    with kept.counting():
        call()
    for handle in handles:
        handle.remove()
    return kept.bytes


def largest_block(
    network: torch.nn.Module, blocks: list[torch.nn.Module], call: Callable[[], object]
) -> int:
    """The most bytes that one of the blocks keeps without checkpointing: those that its
    recomputation holds again.
    """
    kept, before, most = Kept(network), {}, [0]

    def begins(block, args):
        before[block] = kept.bytes

    def ends(block, args, output):
        most[0] = max(most[0], kept.bytes - before[block])

    handles = [block.register_forward_pre_hook(begins) for block in blocks]
    handles += [block.register_forward_hook(ends) for block in blocks]
    with kept.counting():
        call()
    for handle in handles:
        handle.remove()
    return most[0]
