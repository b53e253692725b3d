"""The linear layers that make queries, keys and values, found by evaluating a network once.

They are those that have read tokens within the module that then hands an attention over. No layer
is known by its name.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from ..evaluate import evaluate, sigma_at
from .reader import OVERRIDE

if TYPE_CHECKING:
    from ..socket_types import ModelPatcher


def attention_projections(patcher: ModelPatcher, positive: list, latent: dict) -> list[str]:
    """Names of the layers ("diffusion_model.blocks.0.attn.qkv") in forward order.

    A network that hands no attention over (PixArt, HunyuanDiT, ERNIE-Image) gives none.
    """
    clone = patcher.clone()
    watch = _Watch(clone.model)
    options = clone.model_options.setdefault("transformer_options", {})
    other = options.get(OVERRIDE)
    options[OVERRIDE] = partial(watch.attention, other)
    with watch.hooks(), torch.inference_mode():
        sigma = sigma_at(patcher, 0.5, "percent")
        evaluate(clone, positive, samples=latent, sigma=sigma, seed=0)
    return list(watch.projections)


class _Watch:
    """Which modules run, and what linear layers have read tokens in each."""

    def __init__(self, model: nn.Module):
        self.projections: dict[str, None] = {}
        self._model = model
        self._running: list[list[str]] = []

    def attention(self, other: Any, attend: Any, *args: Any, **options: Any) -> torch.Tensor:
        """ComfyUI's override; calls another node's that was there before."""
        if self._running:
            # What came of these layers has gone into the attention: later ones of the same module
            # belong to what follows.
            self.projections |= dict.fromkeys(self._running[-1])
            self._running[-1].clear()
        if other is not None:
            return other(attend, *args, **options)
        return attend(*args, **options)

    @contextlib.contextmanager
    def hooks(self) -> Iterator[None]:
        """Hooks on all modules while the block runs."""
        handles = []
        for name, module in self._model.named_modules():
            if isinstance(module, nn.Linear):
                handles.append(module.register_forward_hook(partial(self._linear, name)))
            elif next(module.children(), None) is not None:
                handles.append(module.register_forward_pre_hook(self._enter))
                handles.append(module.register_forward_hook(self._leave, always_call=True))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _enter(self, _module: nn.Module, _args: tuple) -> None:
        self._running.append([])

    def _leave(self, _module: nn.Module, _args: tuple, _output: object) -> None:
        layers = self._running.pop()
        if self._running:
            self._running[-1].extend(layers)

    def _linear(self, name: str, _layer: nn.Module, args: tuple, _output: object) -> None:
        # One row is evaluated: several vectors are tokens, also where the network has dropped the
        # rows (MiniMax H3). Of video without sound the layers of the sound read nothing.
        reads = bool(args) and args[0].ndim > 1 and args[0].shape[-2] > 1 and args[0].numel() > 0
        if self._running and reads:
            self._running[-1].append(name)
