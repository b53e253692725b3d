"""What gradients need of a network beside its weights: kernels that have them, and memory for
activations.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import weakref
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import comfy.model_management
import torch
from comfy.ldm.modules.diffusionmodules.mmdit import JointBlock
from comfy.ldm.modules.diffusionmodules.openaimodel import UNetModel
from torch import nn

from . import repeating
from .checkpointing import checkpointed
from .plain_kernels import kernels_in_plain_torch

if TYPE_CHECKING:
    from ..socket_types import ModelPatcher

LOW_PRECISION = (torch.bfloat16, torch.float16)


@contextlib.contextmanager
def kernels_with_gradients() -> Iterator[None]:
    """Newer ComfyUI computes rotary positions and more by kernels without gradients: those that are
    known are computed in plain PyTorch while the block runs, and ComfyUI knows of a training.

    Raises ValueError where another such kernel is met.
    """
    management = comfy.model_management
    before = getattr(management, "in_training", None)
    if before is not None:
        management.in_training = True
    try:
        with kernels_in_plain_torch():
            yield
    except RuntimeError as error:
        if "no autograd formula was registered" not in str(error):
            raise
        raise ValueError(
            "This version of ComfyUI computes this MODEL by kernels without gradients: update "
            "ComfyUI to train it."
        ) from error
    finally:
        if before is not None:
            management.in_training = before


def activations_kept(
    patcher: ModelPatcher,
    dtype: torch.dtype,
    checkpointing: bool,
    conditions: Iterable[Mapping] = (),
    depth: int = 1,
) -> contextlib.ExitStack:
    """What is kept for the gradient, as a context. ``conditions``: the entries of all
    conditionings.

    With ``checkpointing`` the network's blocks keep nothing and are computed again; at a ``depth``
    above 1 the modules so many levels inside them: smaller pieces, of which more inputs are kept
    and less is computed at once. Where that would be another computation (``repeating.hindrance``)
    everything is kept, and the log says so.

    U-Nets add a ControlNet's outputs in place to what their blocks have kept. Transformers (Flux)
    add in place to what their norms have kept. Autocast on a GPU spares them by computing norms in
    float32; elsewhere it is copied before.
    """
    network = patcher.model.diffusion_model
    why = repeating.hindrance(patcher, conditions) if checkpointing else ""
    if why:
        logging.warning("Gradient checkpointing is off: %s, so all activations are kept.", why)
    spared = patcher.load_device.type == "cuda" and dtype in LOW_PRECISION
    in_place = not isinstance(network, UNetModel) and not spared
    controlled = any(entry.get("control") is not None for entry in conditions)
    stack = contextlib.ExitStack()
    stack.enter_context(_own_checkpoints_off(network))
    if in_place or controlled:
        stack.enter_context(changes_allowed())
    if checkpointing and not why:
        stack.enter_context(checkpointed(network, depth, in_place=in_place))
    return stack


@contextlib.contextmanager
def _own_checkpoints_off(network: nn.Module) -> Iterator[None]:
    """SD3's blocks checkpoint themselves where a patch stands around them, and know nothing of what
    holds in a call.
    """
    blocks = [block for block in network.modules() if isinstance(block, JointBlock)]
    before = [vars(block).get("forward") for block in blocks]
    for block in blocks:
        block.forward = functools.partial(block.forward, use_checkpoint=False)
    try:
        yield
    finally:
        for block, forward in zip(blocks, before, strict=True):
            if forward is None:
                del block.forward
            else:
                block.forward = forward


@contextlib.contextmanager
def changes_allowed() -> Iterator[None]:
    """PyTorch's context in which tensors that are kept for the gradient may be changed in place: it
    copies them first.

    Its own takes a new tensor for one that it has copied where both had the same id, address and
    version, which happens as soon as memory is used again, and the gradient is then that of the old
    numbers.
    """
    with torch.autograd.graph.allow_mutation_on_saved_tensors() as kept:
        kept.tid_to_weakhandle = _Unchanged(kept.cloned)
        yield


class _Unchanged(weakref.WeakValueDictionary):
    """The handles of kept tensors by what PyTorch tells them by; without those that have been
    copied.
    """

    def __init__(self, copied: Mapping):
        super().__init__()
        self._copied = copied

    def __contains__(self, key: object) -> bool:
        handle = self.get(key)
        return handle is not None and handle not in self._copied


@contextlib.contextmanager
def inputs_copied(layers: Iterable[nn.Module]) -> Iterator[None]:
    """Let layers work on copies: text encoders add in place to what their norms have kept for the
    gradient.
    """

    def copied(_layer: nn.Module, args: tuple) -> tuple:
        return tuple(map(_copied, args))

    handles = [layer.register_forward_pre_hook(copied) for layer in layers]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _copied(value: Any) -> Any:
    return value.clone() if isinstance(value, torch.Tensor) else value
