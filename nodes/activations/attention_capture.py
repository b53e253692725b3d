"""Queries and keys of attentions, collected from module outputs while the network runs."""

from __future__ import annotations

from collections.abc import Callable

import torch

from .activation_spec import Attention, JointAttention

#: Receives queries (rows, tokens, heads * d), keys (rows, all tokens, heads * d), and how many of the keys, the first
#: ones, are the text's; None when the keys are one kind of token.
QueryKeyReceiver = Callable[[torch.Tensor, torch.Tensor, "int | None"], None]
#: Module path and the receiver of its output.
Receivers = list[tuple[str, Callable]]


def attention_receivers(
    attention: Attention | JointAttention, receive: QueryKeyReceiver, image_tokens: Callable[[], int | None]
) -> Receivers:
    """Receivers of module outputs that call ``receive`` once an attention's queries and keys are both there.

    ``image_tokens`` returns then how many of the last tokens of a sequence are the image's; None is all of them.
    """
    if isinstance(attention, JointAttention):
        return _JointCapture(attention, receive, image_tokens).receivers()
    queries: list[torch.Tensor] = []

    def receive_keys(keys: torch.Tensor) -> None:
        query = slice_channels(queries.pop(), attention.query_begin, attention.width)
        keys = slice_channels(keys, attention.key_begin, attention.width)
        if len(keys) != len(query):  # PixArt joins the texts of a batch into one sequence
            keys = keys.reshape(len(query), -1, keys.shape[-1])
        receive(query, keys, None)

    return [(attention.query, queries.append), (attention.key, receive_keys)]


def slice_channels(tensor: torch.Tensor, begin: int, width: int | None) -> torch.Tensor:
    """Channels of a fused projection; all of them without a width."""
    return tensor if width is None else tensor[..., begin : begin + width]


def rotate(tensor: torch.Tensor, matrices: torch.Tensor) -> torch.Tensor:
    """Adjacent pairs of channels times rotary matrices: (rows, heads, tokens, d), (1, 1, tokens, d / 2, 2, 2).

    RoFormer (arXiv 2104.09864), equation 34; products in the type of the matrices.
    """
    pairs = tensor.to(matrices.dtype).unflatten(-1, (-1, 1, 2))
    return (matrices * pairs).sum(-1).flatten(-2).to(tensor.dtype)


class _JointCapture:
    """Collects the outputs of the norms of text and image, which come in any order."""

    def __init__(self, attention: JointAttention, receive: QueryKeyReceiver, image_tokens: Callable[[], int | None]):
        self._attention, self._receive, self._image_tokens = attention, receive, image_tokens
        self._outputs: dict[str, torch.Tensor] = {}
        self._matrices: torch.Tensor | None = None
        modules = {"query": (attention.query, 0), "key": (attention.key, 1), "text": (attention.text, 1)}
        self._modules = {name: module for name, module in modules.items() if module[0]}

    def receivers(self) -> Receivers:
        receivers = [(path, self._output_receiver(name, item)) for name, (path, item) in self._modules.items()]
        return [*receivers, (self._attention.rotary, self._keep_matrices)] if self._attention.rotary else receivers

    def _output_receiver(self, name: str, item: int):
        def receive(output: torch.Tensor | tuple[torch.Tensor, ...]) -> None:
            part = output[item] if isinstance(output, tuple) else output
            self._outputs[name] = part if self._attention.heads_first else part.transpose(1, 2)
            if len(self._outputs) == len(self._modules):
                self._complete(**self._outputs)
                self._outputs = {}

        return receive

    def _keep_matrices(self, matrices: torch.Tensor) -> None:
        self._matrices = matrices[:1]

    def _complete(self, query: torch.Tensor, key: torch.Tensor, text: torch.Tensor | None = None) -> None:
        """Hand on the image's queries and the keys of text and image, rotated, with the heads side by side."""
        key = key if text is None else torch.cat([text, key], dim=2)
        image = self._image_tokens() or query.shape[2]
        query = query[:, :, query.shape[2] - image :]
        if self._matrices is not None:
            query, key = rotate(query, self._matrices[:, :, -query.shape[2] :]), rotate(key, self._matrices)
        query, key = (tensor.transpose(1, 2).flatten(2) for tensor in (query, key))
        self._receive(query, key, key.shape[1] - image or None)
