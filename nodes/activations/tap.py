"""Read activations while a network is called, and copy only what is kept."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.nn import functional as F

from ..common.network_call import TILED, Call
from .activation_spec import ActivationSpec, Kind
from .activations import FRAMES, MAP_SIZES, TEXT_MARKS, CpuCopies, Row
from .attention_capture import Receivers, attention_receivers, slice_channels
from .attention_maps import AttentionFeature, LayerMean, attention_map, head_mean_map
from .token_heatmap import text_marks


class SeveralConditioningsError(ValueError):
    """An evaluation in several parts per image and side of the guider, so an image has no one activation."""

    def __init__(self, tiled: bool = False):
        super().__init__(
            f"{TILED}: an image has no single activation."
            if tiled
            else "The conditioning has several parts at this noise level (combined, or with areas), so an image has no "
            "single activation. Use one conditioning without areas."
        )


@dataclass(frozen=True)
class TapSettings:
    """Which rows are kept, averaged over squares of ``pool_size`` positions, in which precision."""

    conditional: bool = True
    unconditional: bool = False
    pool_size: int = 1
    dtype: torch.dtype = torch.float16


class CallLayout:
    """Where the image's positions lie in the tensors of one call of a network.

    ``frames``: how many frames the latents have, each of which is a row of the activations.
    """

    def __init__(self, specs: list[ActivationSpec]):
        every = [one for spec in specs for one in (spec, *spec.members)]
        self._grid_paths = sorted({"", *(spec.grid for spec in every)})
        self._length_paths = sorted({spec.length_module for spec in every} - {""})
        self._grids: dict[str, tuple[int, int]] = {}
        self._lengths: dict[str, int] = {}
        self.frames = 1

    def receivers(self) -> tuple[Receivers, Receivers]:
        """Receivers of the outputs and of the first inputs of modules, by path."""

        def keep_grid(tensor: torch.Tensor, path: str) -> None:
            self._grids[path] = (tensor.shape[-2], tensor.shape[-1])
            if not path and tensor.ndim == 5:
                self.frames = tensor.shape[2]

        outputs = []
        for path in self._length_paths:
            outputs.append((path, lambda tokens, path=path: self._lengths.update({path: tokens.shape[1]})))
        return outputs, [(path, partial(keep_grid, path=path)) for path in self._grid_paths]

    def image_tokens(self, spec: ActivationSpec) -> int | None:
        """How many of the last tokens of a sequence are the image's; None where they are the first."""
        return self._lengths.get(spec.length_module)

    def size(self, spec: ActivationSpec) -> tuple[int, int]:
        """Height and width that a spec's tokens or maps are laid out on."""
        height, width = self._grids[spec.grid]
        return (height, width) if spec.grid else (-(-height // spec.scale), -(-width // spec.scale))

    def token_slice(self, spec: ActivationSpec, count: int) -> slice:
        """Which of ``count`` tokens are the image's; raises ValueError when another node merges or tiles tokens."""
        height, width = self.size(spec)
        positions, length = self.frames * height * width, self.image_tokens(spec)
        begin = count - length if length is not None else 0
        available = count - begin
        if available < positions or (spec.grid and available > positions):  # others may follow a transformer's image
            raise ValueError(
                f"{spec.id} has {count} tokens for {height} x {width} positions, because another node merges or tiles "
                "tokens (such as Token Merging or HyperTile). Connect the MODEL from before that node."
            )
        return slice(begin, begin + positions)


class CallTap:
    """Receivers for one call of a network, and the activations that they have received.

    ``tensors``: activations by ID, for each side of the guider (True: positive) that ``settings`` keeps;
    ``text_tokens``: the text's tokens of its attention maps; ``marks``: of its encoded prompt, see ``text_marks``.
    ``copies``: of the tensors; ``merge`` waits for them. Raises SeveralConditioningsError when two parts are of the
    same side, or one sees a part of the image alone.
    """

    def __init__(self, specs: list[ActivationSpec], settings: TapSettings, call: Call):
        self._specs, self._settings, self._call = specs, settings, call
        kept = [part for part in call.parts if self._keeps(part.side)]
        if any(part.area is None for part in kept):
            raise SeveralConditioningsError(tiled=True)
        self.tensors: dict[bool, dict[str, torch.Tensor]] = {bool(part.side): {} for part in kept}
        if len(self.tensors) < len(kept) or not all(part.area and part.area.whole for part in kept):
            raise SeveralConditioningsError
        self.text_tokens: dict[bool, int] = {}
        self.copies = CpuCopies()
        self.marks: dict[bool, torch.Tensor] = {}
        if any(spec.kind in (Kind.MAP, Kind.ATTN_MEAN) for spec in specs):
            texts = {bool(part.side): part.text for part in kept if part.text is not None}
            self.marks = {side: self.copies.copy(text_marks(text), torch.float32) for side, text in texts.items()}
        self.layout = CallLayout(specs)

    def _keeps(self, side: bool | None) -> bool:
        return side is not None and (self._settings.conditional if side else self._settings.unconditional)

    def receivers(self) -> tuple[Receivers, Receivers]:
        """Receivers of the outputs and of the first inputs of modules, by path."""
        outputs, inputs = self.layout.receivers()
        for spec in self._specs:
            if spec.kind == Kind.MAP:
                outputs += self._map_receivers(spec, partial(self._keep_map, spec))
            elif spec.members:
                outputs += self._average_receivers(spec)
            else:
                from_input = spec.kind == Kind.INPUT or spec.from_input
                (inputs if from_input else outputs).append((spec.module, partial(self._keep_feature, spec)))
        return outputs, inputs

    def _keep_feature(self, spec: ActivationSpec, tensor: torch.Tensor | tuple[torch.Tensor, ...]) -> None:
        tensor = tensor[spec.item] if isinstance(tensor, tuple) else tensor
        for part, rows in self._split(tensor):
            if spec.kind == Kind.TOKENS:
                rows = rows[:, self.layout.token_slice(spec, rows.shape[1])]
                rows = self._frames_as_rows(slice_channels(rows, spec.begin, spec.channels))
                rows = rows.transpose(1, 2).unflatten(2, self.layout.size(spec))
            self._keep(part, spec, rows)

    def _keep(self, part: bool, spec: ActivationSpec, feature: torch.Tensor) -> None:
        self.tensors[part][spec.id] = self.copies.copy(pool(feature, self._settings.pool_size), self._settings.dtype)

    def _split(self, tensor: torch.Tensor) -> list[tuple[bool, torch.Tensor]]:
        """The rows of each side that is kept."""
        return [(bool(part.side), rows) for part, rows in self._call.split(tensor) if self._keeps(part.side)]

    def _keep_map(self, spec: ActivationSpec, part: bool, query: torch.Tensor, key: torch.Tensor, text: int | None):
        maps = attention_map(query, key, spec.queries_and_keys.heads, self._settings.dtype, self.copies, text)
        self.tensors[part][spec.id] = maps

    def _average_receivers(self, spec: ActivationSpec) -> Receivers:
        """Receivers that average the maps of the spec's members; after the last one the average is kept."""
        averages: dict[bool, AttentionFeature | LayerMean] = {}

        def receive(member: ActivationSpec, part: bool, query: torch.Tensor, key: torch.Tensor, text: int | None):
            if part not in averages:
                kind = LayerMean if spec.kind == Kind.ATTN_MEAN else AttentionFeature
                averages[part] = kind(self.layout.size(spec))
            size = self.layout.size(member)
            averages[part].add(head_mean_map(query, key, member.queries_and_keys.heads, size, text))
            if member == spec.members[-1]:
                self._keep(part, spec, averages.pop(part).result())

        return [one for member in spec.members for one in self._map_receivers(member, partial(receive, member))]

    def _map_receivers(self, spec: ActivationSpec, receive: Callable) -> Receivers:
        """Receivers of an attention's queries and keys; ``receive`` gets both for each part that is kept."""
        layout = self.layout

        def receive_both(query: torch.Tensor, keys: torch.Tensor, text: int | None) -> None:
            if text is not None:
                height, width = layout.size(spec)
                query = query[:, : layout.frames * height * width]
            for (part, q), (_, k) in zip(self._split(query), self._split(keys), strict=True):
                if spec.id.endswith("cross-map"):
                    self.text_tokens[part] = keys.shape[1] if text is None else text
                receive(part, self._frames_as_rows(q), k.repeat_interleave(layout.frames, dim=0), text)

        return attention_receivers(spec.queries_and_keys, receive_both, lambda: layout.image_tokens(spec))

    def _frames_as_rows(self, tokens: torch.Tensor) -> torch.Tensor:
        """Tokens (rows, frames * positions, C) as (rows * frames, positions, C)."""
        return tokens.unflatten(1, (self.layout.frames, -1)).flatten(0, 1)


def kept_bytes(
    specs: list[ActivationSpec], size: tuple[int, int], rows: int, tokens: int, settings: TapSettings
) -> int:
    """About how many bytes ``specs`` take of ``rows`` latents of ``size`` (H, W), with a text of ``tokens``.

    Exact where sides divide evenly and no other tokens are in an attention.
    """
    total = 0
    for spec in specs:
        height, width = (-(-side // spec.scale) for side in size)
        if spec.kind == Kind.MAP:
            keys = height * width if spec.id.endswith("self-map") else tokens
            total += spec.queries_and_keys.heads * height * width * keys
        else:
            sides = (max(side // settings.pool_size, 1) for side in (height, width))
            total += (spec.channels or tokens) * math.prod(sides)
    return rows * total * settings.dtype.itemsize


def call_settings(calls: list[CallTap], specs: list[ActivationSpec]) -> dict[str, Any]:
    """What a reader needs to know of the merged calls: the number of frames, sizes of attention maps, marks of texts.

    Of a side whose images have different texts there are no marks.
    """
    layout = calls[0].layout
    sizes = {spec.id: list(layout.size(spec)) for spec in specs if spec.kind == Kind.MAP}
    marks = {
        str(side): one for call in calls for side, one in call.marks.items() if torch.equal(one, one[:1].expand_as(one))
    }
    texts = {side: one[0].numpy().round(4).tolist() for side, one in marks.items()}
    return {FRAMES: layout.frames, **({MAP_SIZES: sizes} if sizes else {}), **({TEXT_MARKS: texts} if texts else {})}


def merge(calls: list[CallTap], specs: list[ActivationSpec]) -> tuple[dict[str, torch.Tensor], tuple[Row, ...]]:
    """The tensors and rows of the calls of one evaluation, conditional rows first.

    Attention to texts of unequal length is filled up with zeros. Raises SeveralConditioningsError when two calls are of
    the same conditioning, ValueError when a module was not called.
    """
    parts: dict[bool, dict[str, torch.Tensor]] = {}
    tokens: dict[bool, int] = {}
    for call in reversed(calls):  # the last call's copies are done last, so at most one wait takes time
        call.copies.wait()
    for call in calls:
        if parts.keys() & call.tensors.keys():
            raise SeveralConditioningsError
        parts |= call.tensors
        tokens |= call.text_tokens
    order = sorted(parts, reverse=True)
    missing = [spec.id for spec in specs for part in order if spec.id not in parts[part]]
    if missing:
        raise ValueError(
            f"{missing[0]} was not computed: another node on the MODEL replaces, compiles or skips that part of the "
            "network. Connect the MODEL from before that node."
        )
    tensors = {
        spec.id: _cat([parts[part][spec.id] for part in order], 3 if spec.kind == Kind.MAP else 1) for spec in specs
    }
    count = len(next(iter(tensors.values()))) // len(order)
    return tensors, tuple(Row(image, part, tokens.get(part)) for part in order for image in range(count))


def _cat(rows: list[torch.Tensor], dim: int) -> torch.Tensor:
    """Tensors of rows one after the other, not pinned; shorter ones are filled up with zeros along a dimension."""
    if len(rows) == 1 and not rows[0].is_pinned():
        return rows[0]
    length = max(part.shape[dim] for part in rows)
    after = [0, 0] * (rows[0].ndim - dim - 1)
    return torch.cat([F.pad(part, (*after, 0, length - part.shape[dim])) for part in rows])


def pool(feature: torch.Tensor, factor: int) -> torch.Tensor:
    """A feature (rows, channels, height, width) averaged over squares, to 1 / ``factor`` of its sides, at least 1."""
    if factor == 1:
        return feature
    height, width = feature.shape[-2:]
    return F.adaptive_avg_pool2d(feature, (max(height // factor, 1), max(width // factor, 1)))
