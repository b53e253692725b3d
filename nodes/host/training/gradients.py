"""What gradients need of a network beside its weights: kernels that have them, and memory for activations."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping

import comfy.model_management
import torch
from comfy.ldm.modules.diffusionmodules.openaimodel import UNetModel
from torch import nn
from torch.utils.checkpoint import checkpoint

LOW_PRECISION = (torch.bfloat16, torch.float16)


@contextlib.contextmanager
def kernels_with_gradients() -> Iterator[None]:
    """Newer ComfyUI computes rotary positions and more by kernels without gradients, unless it knows of a training.

    Versions in between, such as 0.8.0, have these kernels and no such switch: raises ValueError where one is met.
    """
    management = comfy.model_management
    if not hasattr(management, "in_training"):
        try:
            yield
        except RuntimeError as error:
            if "no autograd formula was registered" not in str(error):
                raise
            raise ValueError(
                "This version of ComfyUI computes this MODEL by kernels without gradients: update ComfyUI to train it."
            ) from error
        return
    before, management.in_training = management.in_training, True
    try:
        yield
    finally:
        management.in_training = before


def activations_kept(patcher, dtype: torch.dtype, checkpointing: bool, controlled: bool = False, depth: int = 1):
    """What is kept for the gradient, as a context. ``controlled``: a ControlNet takes part.

    ``depth``: 1 checkpoints the network's blocks, more the modules so many levels inside them: smaller pieces, of
    which more inputs are kept and less is computed at once.

    U-Nets add a ControlNet's outputs in place to what their blocks have kept, and to what checkpoints start from.
    Transformers (Flux) add in place to what their norms have kept. Autocast on a GPU spares them by computing norms in
    float32; elsewhere PyTorch must copy what is about to change, which does not go together with checkpointing.
    """
    network = patcher.model.diffusion_model
    spared = patcher.load_device.type == "cuda" and dtype in LOW_PRECISION
    if controlled or (not isinstance(network, UNetModel) and not (spared and checkpointing)):
        return changes_allowed()
    return _checkpointed(network, depth) if checkpointing else contextlib.nullcontext()


@contextlib.contextmanager
def changes_allowed() -> Iterator[None]:
    """PyTorch's context in which tensors that are kept for the gradient may be changed in place: it copies them first.

    Its own takes a new tensor for one that it has copied where both had the same id, address and version, which happens
    as soon as memory is used again, and the gradient is then that of the old numbers.
    """
    with torch.autograd.graph.allow_mutation_on_saved_tensors() as kept:
        kept.tid_to_weakhandle = _Unchanged(kept.cloned)
        yield


class _Unchanged(weakref.WeakValueDictionary):
    """The handles of kept tensors by what PyTorch tells them by; without those that have been copied."""

    def __init__(self, copied: Mapping):
        super().__init__()
        self._copied = copied

    def __contains__(self, key) -> bool:
        handle = self.get(key)
        return handle is not None and handle not in self._copied


@contextlib.contextmanager
def _checkpointed(network: nn.Module, depth: int) -> Iterator[None]:
    """Let the network's blocks keep no activations, and compute them again for the gradient."""
    blocks = list(_blocks(network, depth))
    forwards = [block.forward for block in blocks]
    try:
        for block, forward in zip(blocks, forwards, strict=True):
            block.forward = _again(forward)
        yield
    finally:
        for block in blocks:
            del block.forward


def _again(forward: Callable) -> Callable:
    def on_copies(*args, **kwargs):
        # Some blocks add to their input in place, and would start from the sum.
        return forward(*map(_copied, args), **{name: _copied(value) for name, value in kwargs.items()})

    return lambda *args, **kwargs: checkpoint(on_copies, *args, use_reentrant=False, **kwargs)


@contextlib.contextmanager
def inputs_copied(layers: Iterable[nn.Module]) -> Iterator[None]:
    """Let layers work on copies: text encoders add in place to what their norms have kept for the gradient."""

    def copied(_layer, args):
        return tuple(map(_copied, args))

    handles = [layer.register_forward_pre_hook(copied) for layer in layers]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _copied(value):
    return value.clone() if isinstance(value, torch.Tensor) else value


def _blocks(network: nn.Module, depth: int) -> Iterator[nn.Module]:
    for child in network.children():
        if isinstance(child, nn.ModuleList | nn.Sequential | nn.ModuleDict):
            yield from _blocks(child, depth)
        elif depth > 1 and any(True for _ in child.children()):
            yield from _blocks(child, depth - 1)
        else:
            yield child
