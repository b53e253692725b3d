"""Change how much attention a prompt's tokens get, for exactly as long as one call of the
network.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from ..common.attention import AttentionCall
from ..common.network_call import Call, Part, evaluated_again
from ..host.attention.reader import blocks_of
from ..host.hooks import hook_calls

if TYPE_CHECKING:
    from torch import nn

    from ..host.socket_types import ModelPatcher


def with_attention(
    patcher: ModelPatcher, paths: list[str], first_scale: float, hidden: torch.Tensor
) -> ModelPatcher:
    """A clone of a MODEL whose cross-attention scales the logit of token 0 and looks away from
    hidden tokens.

    In rows of the positive prompt only. ``paths``: the cross-attention modules of a U-Net; without
    any, each attention in which the image reads the text, beside it in one sequence or apart.
    ``hidden`` bool (tokens,): which tokens get no attention. ComfyUI repeats a prompt to the length
    of a longer one in its batch, and joins prompts; in each repetition and joined one of that many
    tokens so are token 0 and ``hidden``. Of a prompt of another length token 0 is scaled alone.
    """
    scaling = Scaling(first_scale=first_scale, hidden=hidden)

    def calling(call: Call) -> Any:
        chosen = [part.positive for part in call.parts]
        if call.parts and not any(chosen):
            return None
        call.where(chosen, call.rows)  # raises where the rows are not known
        if paths:
            return partial(_changed, call, paths, scaling)
        _refuse_other_lengths(call, len(hidden))
        attentions = _TextAttentions(_Rows(call, scaling), scaling)
        blocks = [(block, attentions.receive) for block, _ in blocks_of(call.network)]
        return [("", attentions.require)], (), blocks

    return hook_calls(patcher, calling)


def _refuse_other_lengths(call: Call, tokens: int) -> None:
    """Raise ValueError unless the positive prompts have so many tokens: where their first one is
    would not be known.
    """
    for part in call.parts:
        if part.positive and part.prompt is not None and part.prompt.shape[1] != tokens:
            raise ValueError(
                f"The positive prompt has {part.prompt.shape[1]} tokens and the node's prompt "
                f"{tokens}: enter the prompt that is sampled. Models whose text is padded in front "
                "(FLUX.2) are not supported."
            )


@dataclass(kw_only=True)
class Scaling:
    """The factor of token 0's logit, and which tokens get no attention: bool (tokens,)."""

    first_scale: float
    hidden: torch.Tensor

    def __post_init__(self):
        self.hides = bool(self.hidden.any())  # looked up once, not in every layer


@contextmanager
def _changed(call: Call, paths: list[str], scaling: Scaling) -> Iterator[None]:
    handles = []
    network = call.network
    rows = _Rows(call, scaling)
    try:
        for path in paths:
            module = network.get_submodule(path)
            # Scaling the key of a token scales its logit.
            key = network.get_submodule(f"{path}.to_k")
            handles.append(key.register_forward_hook(_first_key(rows)))
            if scaling.hides:
                handles.append(module.register_forward_pre_hook(_bias(rows), with_kwargs=True))
        yield
    finally:
        for handle in handles:
            handle.remove()


class _Rows:
    """What the keys and the logits of each row of a call are changed by, made once for each number
    of tokens.
    """

    def __init__(self, call: Call, scaling: Scaling):
        self._call = call
        self._hidden = scaling.hidden
        self._first_scale = scaling.first_scale
        self._tokens: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._placed: dict[tuple, torch.Tensor] = {}

    def scales(self, tokens: int, keys: torch.Tensor) -> torch.Tensor:
        """Factors (rows, tokens, 1) of keys (rows, ...); ValueError when they have other rows than
        the call.
        """
        self._call.require(len(keys))

        def make(first: torch.Tensor, _hidden: torch.Tensor) -> torch.Tensor:
            return torch.where(first, self._first_scale, 1.0)[..., None]

        return _evaluated_rows(self._on_device("scales", tokens, keys, make))

    def bias(self, tokens: int, queries: torch.Tensor) -> torch.Tensor:
        """What is added to the logits of queries (rows, ...): (rows, 1, tokens); ValueError as in
        ``scales``.
        """
        self._call.require(len(queries))

        def make(_first: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
            return torch.where(hidden, torch.finfo(queries.dtype).min / 2, 0.0)[:, None]

        return _evaluated_rows(self._on_device("bias", tokens, queries, make))

    def _on_device(
        self, name: str, tokens: int, like: torch.Tensor, make: Callable
    ) -> torch.Tensor:
        key = (name, tokens, like.dtype, like.device)
        if key not in self._placed:
            if tokens not in self._tokens:
                self._tokens[tokens] = self._make(tokens)
            self._placed[key] = make(*self._tokens[tokens]).to(like)
        return self._placed[key]

    def _make(self, tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Which tokens are first ones, and which are hidden, in each row of the call: bool (rows,
        tokens).
        """
        length = len(self._hidden)
        first = torch.zeros(self._call.rows, tokens, dtype=torch.bool)
        hidden = torch.zeros(self._call.rows, tokens, dtype=torch.bool)
        changed: list[tuple] = [(slice(None), tokens)]
        if self._call.parts:
            changed = [
                (part.rows, _own_length(part, tokens)) for part in self._call.parts if part.positive
            ]
        for rows, period in changed:
            if period % length == 0:
                hidden[rows] = self._hidden.repeat(tokens // length)
                period = length
            first[rows, ::period] = True
        return first, hidden


def _evaluated_rows(of_call: torch.Tensor) -> torch.Tensor:
    """What there is for each row of the call, for the rows that are evaluated."""
    subset = evaluated_again()
    return of_call if subset is None else subset.select(of_call)


class _TextAttentions:
    """The attentions of one call in which the image reads the text."""

    def __init__(self, rows: _Rows, scaling: Scaling):
        self._rows = rows
        self._scaling = scaling
        self._is_seen = False

    def receive(self, attention: AttentionCall) -> torch.Tensor | None:
        """The attention with the keys of first tokens scaled, which scales their logits, and
        without attention to the hidden ones; None where the image does not read the text.
        """
        layout = attention.layout
        if layout is None or not layout.reads_text or not bool(layout.first_part.any()):
            return None
        self._is_seen = True
        key = attention.key
        tokens = int(layout.text_keys.sum())
        scaled = key.clone()
        scaled[:, :, layout.text] = key[:, :, layout.text] * self._rows.scales(tokens, key)[:, None]
        changed = replace(attention, key=scaled)
        if self._scaling.hides:
            queries, keys = attention.size
            bias = key.new_zeros(len(key), 1, 1, keys)
            bias[..., layout.text] = self._rows.bias(tokens, attention.query)[:, None]
            changed = replace(changed, mask=_with_bias(attention.mask, bias, queries))
        return changed.attend()

    def require(self, _output: Any) -> None:
        """Raise ValueError unless the call had such an attention."""
        if not self._is_seen:
            raise ValueError(
                "How this MODEL reads its text cannot be seen (as of Stable Cascade), so that its "
                "attention cannot be scaled: use another model."
            )


def _with_bias(mask: torch.Tensor | None, bias: torch.Tensor, queries: int) -> torch.Tensor:
    """The mask of an attention and what is added to its logits (rows, 1, 1, M), as one addition."""
    if mask is None:
        return bias.expand(-1, -1, queries, -1)
    if mask.dtype == torch.bool:
        mask = torch.where(mask, 0.0, torch.finfo(bias.dtype).min / 2)
    return bias + mask.to(bias)


def _own_length(part: Part, tokens: int) -> int:
    """How many tokens the encoded prompt of a part has before it is repeated; ``tokens`` where that
    is unknown.
    """
    if part.prompt is None or tokens % part.prompt.shape[1]:
        return tokens
    return part.prompt.shape[1]


def _first_key(rows: _Rows) -> Callable:
    def hook(_module: nn.Module, _args: tuple, output: Any) -> Any:
        return output * rows.scales(output.shape[1], output)

    return hook


def _bias(rows: _Rows) -> Callable:
    """Hands a bias on the logits (rows, queries, tokens) to the attention, unless it has a mask of
    its own already.
    """

    def hook(_module: nn.Module, args: tuple, kwargs: dict) -> Any:
        x = args[0]
        context = kwargs.get("context")
        if context is None or kwargs.get("mask") is not None:
            return None
        return args, {**kwargs, "mask": rows.bias(context.shape[1], x).expand(-1, x.shape[1], -1)}

    return hook
