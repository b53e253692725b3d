"""Change how much attention a prompt's tokens get, for exactly as long as one call of the network."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from ..common.network_call import Call
from ..host.hooks import hook_calls


def with_attention(patcher, paths: list[str], first_scale: float, hidden: torch.Tensor):
    """A clone of a MODEL whose cross-attention scales the logit of token 0 and looks away from hidden tokens.

    In rows of the positive prompt only. ``paths``: the cross-attention modules; ``hidden`` bool (tokens,): which tokens
    get no attention. ComfyUI repeats a prompt to the length of a longer one in its batch; so are token 0 and
    ``hidden``. Rows whose number of tokens is no multiple keep all of theirs.
    """

    def calling(call: Call):
        chosen = [part.positive for part in call.parts]
        if call.parts and not any(chosen):
            return None
        return _changed(call, paths, first_scale, hidden, call.where(chosen, call.rows))

    return hook_calls(patcher, calling)


@contextmanager
def _changed(call: Call, paths: list[str], scale: float, hidden: torch.Tensor, rows: torch.Tensor) -> Iterator[None]:
    handles, network = [], call.network
    try:
        for path in paths:
            module = network.get_submodule(path)
            # Scaling the key of a token scales its logit.
            key = network.get_submodule(f"{path}.to_k")
            handles.append(key.register_forward_hook(_first_key(scale, rows, len(hidden), call)))
            if bool(hidden.any()):
                handles.append(module.register_forward_pre_hook(_bias(hidden, rows, call), with_kwargs=True))
        yield
    finally:
        for handle in handles:
            handle.remove()


def _first_key(scale: float, rows: torch.Tensor, period: int, call: Call):
    def hook(_module, _args, output):
        call.require(len(output))
        factors = torch.where(rows, scale, 1.0).to(output)
        scaled = output.clone()
        scaled[:, ::period] *= factors[:, None, None]
        return scaled

    return hook


def _bias(hidden: torch.Tensor, rows: torch.Tensor, call: Call):
    """Hands a bias on the logits (rows, queries, tokens) to the attention, unless it has a mask of its own already."""

    def hook(_module, args, kwargs):
        x, context = args[0], kwargs.get("context")
        call.require(len(x))
        if context is None or context.shape[1] % len(hidden) or kwargs.get("mask") is not None:
            return None
        lowest = torch.finfo(x.dtype).min / 2
        repeated = hidden.repeat(context.shape[1] // len(hidden))
        bias = torch.where(rows[:, None] & repeated, lowest, 0.0).to(x)
        return args, {**kwargs, "mask": bias[:, None].expand(-1, x.shape[1], -1)}

    return hook
