"""Change how much attention a prompt's tokens get, for exactly as long as one call of the network."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from ..common.network_call import Call
from ..host.hooks import hook_calls

_CHUNK = 77  # tokens that CLIP encodes at a time


def with_attention(patcher, paths: list[str], first_scale: float, hidden: torch.Tensor):
    """A clone of a MODEL whose cross-attention scales the logit of token 0 and looks away from hidden tokens.

    In rows of the positive prompt only. ``paths``: the cross-attention modules; ``hidden`` bool (tokens,): which tokens
    get no attention. ComfyUI repeats a prompt to the length of a longer one in its batch, and joins prompts; in each
    repetition and joined one of that many tokens so are token 0 and ``hidden``. Of a prompt of another length token 0
    is scaled alone.
    """

    def calling(call: Call):
        chosen = [part.positive for part in call.parts]
        if call.parts and not any(chosen):
            return None
        call.where(chosen, call.rows)  # raises where the rows are not known
        return _changed(call, paths, first_scale, hidden)

    return hook_calls(patcher, calling)


@contextmanager
def _changed(call: Call, paths: list[str], scale: float, hidden: torch.Tensor) -> Iterator[None]:
    handles, network = [], call.network
    rows = _Rows(call, hidden)
    try:
        for path in paths:
            module = network.get_submodule(path)
            # Scaling the key of a token scales its logit.
            key = network.get_submodule(f"{path}.to_k")
            handles.append(key.register_forward_hook(_first_key(scale, rows)))
            if bool(hidden.any()):
                handles.append(module.register_forward_pre_hook(_bias(rows), with_kwargs=True))
        yield
    finally:
        for handle in handles:
            handle.remove()


class _Rows:
    """Which tokens are first ones, and which hidden, in each row of a call: bool (rows, tokens)."""

    def __init__(self, call: Call, hidden: torch.Tensor):
        self._call, self._hidden = call, hidden
        self._made: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def of(self, tensor: torch.Tensor, tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
        """For a tensor inside the network; ValueError when it has other rows than the call."""
        self._call.require(len(tensor))
        if tokens not in self._made:
            self._made[tokens] = self._make(tokens)
        return self._made[tokens]

    def _make(self, tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
        length = len(self._hidden)
        first, hidden = (torch.zeros(self._call.rows, tokens, dtype=torch.bool) for _ in range(2))
        parts = [(part.rows, part.text) for part in self._call.parts if part.positive]
        for rows, text in parts if self._call.parts else [(slice(None), None)]:
            period = _own_length(text, tokens)
            if period % length == 0:
                hidden[rows] = self._hidden.repeat(tokens // length)
                period = length
            first[rows, ::period] = True
        return first, hidden


def _own_length(text: torch.Tensor | None, tokens: int) -> int:
    """How many tokens an encoded text (rows, tokens, D) has before it is repeated; ``tokens`` where that is unknown."""
    if text is None or tokens % text.shape[1]:
        return tokens
    shorter = (length for length in range(_CHUNK, text.shape[1], _CHUNK) if text.shape[1] % length == 0)
    same = (one for one in shorter if torch.equal(text, text[:, :one].repeat(1, text.shape[1] // one, 1)))
    return next(same, text.shape[1])


def _first_key(scale: float, rows: _Rows):
    def hook(_module, _args, output):
        first, _ = rows.of(output, output.shape[1])
        return output * torch.where(first, scale, 1.0).to(output)[..., None]

    return hook


def _bias(rows: _Rows):
    """Hands a bias on the logits (rows, queries, tokens) to the attention, unless it has a mask of its own already."""

    def hook(_module, args, kwargs):
        x, context = args[0], kwargs.get("context")
        if context is None or kwargs.get("mask") is not None:
            return None
        _, hidden = rows.of(x, context.shape[1])
        bias = torch.where(hidden, torch.finfo(x.dtype).min / 2, 0.0).to(x)
        return args, {**kwargs, "mask": bias[:, None].expand(-1, x.shape[1], -1)}

    return hook
