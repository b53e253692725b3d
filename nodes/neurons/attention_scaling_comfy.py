"""Change how much attention a prompt's tokens get, for exactly as long as one call of the network."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from comfy.patcher_extension import WrappersMP
from torch import nn

from ..host.hooks import POSITIVE, RowRoles, refuse_compiled_runs


def with_attention(patcher, paths: list[str], first_scale: float, hidden: torch.Tensor):
    """A clone of a MODEL whose cross-attention scales the logit of token 0 and looks away from hidden tokens.

    In rows of the positive prompt only. ``paths``: the cross-attention modules; ``hidden`` bool (tokens,): which tokens
    get no attention. ComfyUI repeats a prompt to the length of a longer one in its batch; so are token 0 and
    ``hidden``. Rows whose number of tokens is no multiple keep all of theirs.
    """
    clone, key = patcher.clone(), f"glassbox_attention_{uuid.uuid4().hex}"
    refuse_compiled_runs(clone, key)
    roles = RowRoles(clone, key)

    def call(executor, *args, **kwargs):
        options = kwargs.get("transformer_options") or (args[5] if len(args) > 5 else {})
        parts = [role in POSITIVE for role in roles.of_parts(options)] or [True]
        rows = torch.tensor(parts).repeat_interleave(len(args[0]) // len(parts))
        with _changed(executor.class_obj.diffusion_model, paths, first_scale, hidden, rows):
            return executor(*args, **kwargs)

    clone.add_wrapper_with_key(WrappersMP.APPLY_MODEL, key, call)
    return clone


@contextmanager
def _changed(network: nn.Module, paths: list[str], scale: float, hidden: torch.Tensor, rows: torch.Tensor) -> Iterator:
    handles = []
    try:
        for path in paths:
            module = network.get_submodule(path)
            # Scaling the key of a token scales its logit.
            key = network.get_submodule(f"{path}.to_k")
            handles.append(key.register_forward_hook(_first_key(scale, rows, len(hidden))))
            if bool(hidden.any()):
                handles.append(module.register_forward_pre_hook(_bias(hidden, rows), with_kwargs=True))
        yield
    finally:
        for handle in handles:
            handle.remove()


def _first_key(scale: float, rows: torch.Tensor, period: int):
    def hook(_module, _args, output):
        factors = torch.where(rows, scale, 1.0).to(output)
        scaled = output.clone()
        scaled[:, ::period] *= factors[:, None, None]
        return scaled

    return hook


def _bias(hidden: torch.Tensor, rows: torch.Tensor):
    """Hands a bias on the logits (rows, queries, tokens) to the attention, unless it has a mask of its own already."""

    def hook(_module, args, kwargs):
        x, context = args[0], kwargs.get("context")
        if context is None or context.shape[1] % len(hidden) or kwargs.get("mask") is not None:
            return None
        lowest = torch.finfo(x.dtype).min / 2
        repeated = hidden.repeat(context.shape[1] // len(hidden))
        bias = torch.where(rows[:, None] & repeated, lowest, 0.0).to(x)
        return args, {**kwargs, "mask": bias[:, None].expand(-1, x.shape[1], -1)}

    return hook
