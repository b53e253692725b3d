"""Read activations while a network is called, and copy only what is kept."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.nn import functional as F

from ..common.attention import AttentionCall, AttentionReceiver, Positions, TokenLayout, positions
from ..common.network_call import TILED, Call
from .activation_spec import ActivationSpec, Attention, Kind
from .activations import FRAMES, MAP_SIZES, TEXT_MARKS, CpuCopies, Row
from .attention_maps import (
    AttentionFeature,
    LayerMean,
    QueriesAndKeys,
    attention_map,
    head_mean_map,
)
from .token_heatmap import text_marks

#: Module path and the receiver of its output or first input.
Receivers = list[tuple[str, Callable]]
#: Path of a block and the receiver of its attentions.
AttentionReceivers = list[tuple[str, AttentionReceiver]]
_PATCHES = (1, 2, 4, 8, 16, 32)  # latent positions a side of a token
_PADDED = 32  # tokens to whose multiple a network may fill up its image (Z-Image)


class SeveralConditioningsError(ValueError):
    """An evaluation in several parts per image and side of the guider, so an image has no one
    activation.
    """

    def __init__(self, tiled: bool = False):
        super().__init__(
            f"{TILED}: an image has no single activation."
            if tiled
            else (
                "The conditioning has several parts at this noise level (combined, or with "
                "areas), so an image has no single activation. Use one conditioning without areas."
            )
        )


@dataclass(frozen=True, kw_only=True)
class TapSettings:
    """Which rows are kept, averaged over squares of ``pool_size`` positions, in which precision."""

    conditional: bool = True
    unconditional: bool = False
    pool_size: int = 1
    dtype: torch.dtype = torch.float16


@dataclass(frozen=True, kw_only=True)
class ImageTokens:
    """Where the image's tokens are in the output of a block.

    ``element``: its number in a tuple of outputs, None of a single one. ``tokens``: those of the
    element, (rows, N, C), as a view. ``positions``: of the image's among them.
    """

    element: int | None
    tokens: torch.Tensor
    positions: Positions


class CallLayout:
    """Where the image's positions lie in the tensors of one call of a network.

    ``frames``: how many frames the latents have, each of which is a row of the activations.
    """

    def __init__(self, specs: list[ActivationSpec]):
        every = [one for spec in specs for one in (spec, *spec.members)]
        self._grid_paths = sorted({"", *(spec.grid for spec in every)})
        self._length_paths = sorted({spec.length_module for spec in every} - {""})
        self._block_paths = sorted({spec.block for spec in every} - {""})
        self._grids: dict[str, tuple[int, int]] = {}
        self._lengths: dict[str, int] = {}
        self._of_blocks: dict[str, TokenLayout] = {}
        self.frames = 1

    def receivers(self) -> tuple[Receivers, Receivers, AttentionReceivers]:
        """Receivers of the outputs and of the first inputs of modules, and of blocks' attentions,
        by path.
        """

        def keep_grid(latent: torch.Tensor | list[torch.Tensor], path: str) -> None:
            # The video, where there is sound beside it.
            tensor = latent if isinstance(latent, torch.Tensor) else latent[0]
            self._grids[path] = (tensor.shape[-2], tensor.shape[-1])
            if not path and tensor.ndim == 5:
                self.frames = tensor.shape[2]

        def keep_length(tokens: torch.Tensor, path: str) -> None:
            self._lengths[path] = tokens.shape[1]

        outputs: Receivers = [
            (path, partial(keep_length, path=path)) for path in self._length_paths
        ]
        inputs: Receivers = [(path, partial(keep_grid, path=path)) for path in self._grid_paths]
        return outputs, inputs, [(path, self._keep_layout) for path in self._block_paths]

    def _keep_layout(self, call: AttentionCall) -> None:
        """Of a block's first attention that the image has."""
        if call.layout is not None and call.layout.first_part.any():
            self._of_blocks.setdefault(call.block, call.layout)

    def image_tokens(self, spec: ActivationSpec) -> int | None:
        """How many of the last tokens of a sequence are the image's; None where they are the
        first.
        """
        return self._lengths.get(spec.length_module)

    def size(self, spec: ActivationSpec) -> tuple[int, int]:
        """Height and width that a spec's tokens or maps are laid out on."""
        height, width = self._grids[spec.grid]
        if spec.grid:
            return height, width
        sides = (-(-height // spec.scale), -(-width // spec.scale))
        layout = self._of_blocks.get(spec.block)
        if layout is None:
            return sides
        tokens = int(layout.first_part.sum())
        sizes = [sides, *((-(-height // side), -(-width // side)) for side in _PATCHES)]
        for padding in (0, _PADDED - 1):
            for size in sizes:
                if 0 <= tokens - self.frames * math.prod(size) <= padding:
                    return size
        raise ValueError(_merged(spec, tokens, sides))

    def tokens(self, spec: ActivationSpec) -> int:
        """How many tokens the image has, without padding."""
        return self.frames * math.prod(self.size(spec))

    def token_slice(self, spec: ActivationSpec, count: int) -> slice:
        """Which of ``count`` tokens are the image's; raises ValueError when another node merges or
        tiles tokens.
        """
        height, width = self.size(spec)
        positions = self.frames * height * width
        length = self.image_tokens(spec)
        begin = count - length if length is not None else 0
        available = count - begin
        if available < positions or (
            spec.grid and available > positions
        ):  # others may follow a transformer's image
            raise ValueError(_merged(spec, count, (height, width)))
        return slice(begin, begin + positions)

    def in_output(self, spec: ActivationSpec, output: Any) -> ImageTokens:
        """The image's tokens in what a spec's module has put out.

        Raises ValueError when another node merges, tiles or replaces tokens.
        """
        if not spec.block:
            several = isinstance(output, tuple)
            tokens = output[spec.item] if several else output
            return ImageTokens(
                element=spec.item if several else None,
                tokens=tokens,
                positions=self.token_slice(spec, tokens.shape[1]),
            )
        layout = self._of_blocks.get(spec.block)
        if layout is None:
            raise ValueError(f"The attention of {spec.block} was not seen: {_REPLACED}")
        elements = list(output) if isinstance(output, tuple) else [output]
        placed = []
        for number, element in enumerate(elements):
            if isinstance(element, torch.Tensor) and element.ndim > 1:
                # Some networks keep no rows, others keep frames, rows and columns apart.
                tokens = element[None] if element.ndim == 2 else element.flatten(1, -2)
                image = _image_positions(layout, tokens.shape[1], self.tokens(spec))
                if image is not None:
                    element_number = number if isinstance(output, tuple) else None
                    placed.append(
                        ImageTokens(element=element_number, tokens=tokens, positions=image)
                    )
        if not placed:
            tokens = int(layout.first_part.sum())
            raise ValueError(_merged(spec, tokens, self.size(spec)))
        # As many words as positions: text and image come out in the order in which they go in.
        text_first = layout.text_keys[: len(layout.text_keys) // 2].any()
        return placed[-1 if text_first else 0]


_REPLACED = (
    "another node on the MODEL replaces, compiles or skips that part of the network. Connect the "
    "MODEL from before that node."
)


def _merged(spec: ActivationSpec, count: int, size: tuple[int, int]) -> str:
    return (
        f"{spec.id} has {count} tokens for {size[0]} x {size[1]} positions, because another node "
        "merges or tiles tokens (such as Token Merging or HyperTile). Connect the MODEL from "
        "before that node."
    )


def _image_positions(layout: TokenLayout, count: int, image: int) -> Positions | None:
    """Where the image's tokens are among ``count``: those of a block's attention, without its
    text, or the image's alone.
    """
    if count == len(layout.first_part):
        return layout.first_tokens(image)
    if len(layout.text_keys) == len(layout.first_part):
        others = layout.first_part[~layout.text_keys]
        if count == len(others):
            return positions(others & (others.cumsum(0) <= image))
    return slice(0, image) if count == int(layout.first_part.sum()) else None


class CallTap:
    """Receivers for one call of a network, and the activations that they have received.

    ``tensors``: activations by ID, for each side of the guider (True: positive) that ``settings``
    keeps; ``text_tokens``: the text's tokens of its attention maps; ``marks``: of its encoded
    prompt, see ``text_marks``. ``copies``: of the tensors, on the CPU unless others are given;
    ``merge`` waits for them. ``prompts``: the encoded prompts that are read, one tensor each for
    all calls of a run, None where that is not known. Raises SeveralConditioningsError when two
    parts are of the same side, or one sees a part of the image alone.
    """

    def __init__(
        self,
        specs: list[ActivationSpec],
        settings: TapSettings,
        call: Call,
        copies: CpuCopies | None = None,
    ):
        self._specs = specs
        self._settings = settings
        self._call = call
        kept = [part for part in call.parts if self._keeps(part.side)]
        if any(part.area is None for part in kept):
            raise SeveralConditioningsError(tiled=True)
        self.tensors: dict[bool, dict[str, torch.Tensor]] = {bool(part.side): {} for part in kept}
        if len(self.tensors) < len(kept) or not all(part.area and part.area.whole for part in kept):
            raise SeveralConditioningsError
        self.text_tokens: dict[bool, int] = {}
        self.copies = copies or CpuCopies()
        self.prompts = {bool(part.side): part.prompt for part in kept}
        self.marks: dict[bool, torch.Tensor] = {}
        if any(spec.kind in (Kind.MAP, Kind.ATTN_MEAN) for spec in specs):
            for part in kept:
                text = part.encoded_text()
                if text is not None:
                    marks = self.copies.copy(text_marks(text), torch.float32)
                    self.marks[bool(part.side)] = marks
        self.layout = CallLayout(specs)

    def _keeps(self, side: bool | None) -> bool:
        return side is not None and (
            self._settings.conditional if side else self._settings.unconditional
        )

    def receivers(self) -> tuple[Receivers, Receivers, AttentionReceivers]:
        """Receivers of the outputs and of the first inputs of modules, and of blocks' attentions,
        by path.
        """
        outputs, inputs, attentions = self.layout.receivers()
        for spec in self._specs:
            if spec.kind == Kind.MAP:
                self._receive_map(spec, partial(self._keep_map, spec), outputs, attentions)
            elif spec.members:
                self._receive_average(spec, outputs, attentions)
            elif spec.projection:
                attentions.append((spec.block, partial(self._keep_projection, spec)))
            else:
                from_input = spec.kind == Kind.INPUT or spec.from_input
                (inputs if from_input else outputs).append(
                    (spec.module, partial(self._keep_feature, spec))
                )
        return outputs, inputs, attentions

    def _keep_feature(self, spec: ActivationSpec, output: Any) -> None:
        if spec.kind == Kind.TOKENS:
            image = self.layout.in_output(spec, output)
            channels = slice(None)
            if not spec.block and spec.channels is not None:
                channels = slice(spec.begin, spec.begin + spec.channels)
            for part, rows in self._split(image.tokens):
                self._keep_tokens(part, spec, rows[:, image.positions, channels])
            return
        if spec.kind == Kind.INPUT:
            output = output if isinstance(output, torch.Tensor) else output[0]
        for part, rows in self._split(output[spec.item] if isinstance(output, tuple) else output):
            self._keep(part, spec, rows)

    def _keep_projection(self, spec: ActivationSpec, call: AttentionCall) -> None:
        """Queries, keys or values of the first attention of the image to itself."""
        layout = call.layout
        if layout is None or not layout.image_keys.any() or not layout.first_part.any():
            return
        if len(layout.first_part) != len(layout.image_keys):
            return
        tensor = {"q": call.query, "k": call.key, "v": call.value}[spec.projection]
        tokens = (
            tensor[:, :, layout.first_tokens(self.layout.tokens(spec))].transpose(1, 2).flatten(2)
        )
        for part, rows in self._split(tokens):
            if spec.id not in self.tensors[part]:
                self._keep_tokens(part, spec, rows)

    def _keep_tokens(self, part: bool, spec: ActivationSpec, tokens: torch.Tensor) -> None:
        """The image's tokens (rows, frames * positions, C)."""
        of_frames = tokens.unflatten(1, (self.layout.frames, -1)).flatten(0, 1)
        self._keep(part, spec, of_frames.transpose(1, 2).unflatten(2, self.layout.size(spec)))

    def _keep(self, part: bool, spec: ActivationSpec, feature: torch.Tensor) -> None:
        self.tensors[part][spec.id] = self.copies.copy(
            pool(feature, self._settings.pool_size), self._settings.dtype
        )

    def _split(self, tensor: torch.Tensor) -> list[tuple[bool, torch.Tensor]]:
        """The rows of each side that is kept."""
        return [
            (bool(part.side), rows)
            for part, rows in self._call.split(tensor)
            if self._keeps(part.side)
        ]

    def _keep_map(self, spec: ActivationSpec, part: bool, attention: QueriesAndKeys) -> None:
        if spec.id not in self.tensors[part]:  # the first of a block that has several
            self.tensors[part][spec.id] = attention_map(
                attention, self._settings.dtype, self.copies, self.layout.frames
            )

    def _receive_average(
        self, spec: ActivationSpec, outputs: Receivers, attentions: AttentionReceivers
    ) -> None:
        """Average the maps of the spec's members; after the last one the average is kept."""
        averages: dict[bool, AttentionFeature | LayerMean] = {}
        added: dict[bool, set[str]] = {}

        def receive(member: ActivationSpec, part: bool, attention: QueriesAndKeys) -> None:
            if member.id in added.setdefault(part, set()):
                return
            added[part].add(member.id)
            if part not in averages:
                kind = LayerMean if spec.kind == Kind.ATTN_MEAN else AttentionFeature
                averages[part] = kind(self.layout.size(member if member.block else spec))
            size = self.layout.size(member)
            averages[part].add(head_mean_map(attention, size, self.layout.frames))
            if member == spec.members[-1]:
                self._keep(part, spec, averages.pop(part).result())

        for member in spec.members:
            self._receive_map(member, partial(receive, member), outputs, attentions)

    def _receive_map(
        self,
        spec: ActivationSpec,
        receive: Callable[[bool, QueriesAndKeys], None],
        outputs: Receivers,
        attentions: AttentionReceivers,
    ) -> None:
        """Give ``receive`` an attention's queries and keys for each side that is kept."""
        with_text = spec.id.endswith("cross-map")

        def receive_sides(attention: QueriesAndKeys) -> None:
            for part, _ in self._call.split(attention.query):
                if part.rows is None or not self._keeps(part.side):
                    continue
                side = bool(part.side)
                if with_text:
                    self.text_tokens[side] = attention.count
                receive(side, attention.rows(part.rows))

        def receive_call(call: AttentionCall) -> None:
            layout = call.layout
            if layout is None or not layout.first_part.any() or layout.reads_text != with_text:
                return
            if with_text or layout.image_keys.any():
                tokens = self.layout.tokens(spec)
                receive_sides(QueriesAndKeys.of_image(call, tokens, with_text=with_text))

        if not isinstance(spec.attention, Attention):
            attentions.append((spec.block, receive_call))
            return
        heads = spec.attention.heads
        queries: list[torch.Tensor] = []

        def receive_keys(keys: torch.Tensor) -> None:
            receive_sides(QueriesAndKeys.of_projections(queries.pop(), keys, heads))

        outputs += [(spec.attention.query, queries.append), (spec.attention.key, receive_keys)]


def kept_bytes(
    specs: list[ActivationSpec],
    size: tuple[int, int],
    rows: int,
    tokens: int,
    settings: TapSettings,
) -> int:
    """About how many bytes ``specs`` take of ``rows`` latents of ``size`` (H, W), with a text of
    ``tokens``.

    Exact where sides divide evenly and no other tokens are in an attention.
    """
    total = 0
    for spec in specs:
        height, width = (-(-side // spec.scale) for side in size)
        if spec.kind == Kind.MAP:
            keys = height * width if spec.id.endswith("self-map") else tokens
            heads = spec.attention.heads if spec.attention is not None else 1
            total += heads * height * width * keys
        else:
            sides = (max(side // settings.pool_size, 1) for side in (height, width))
            total += (spec.channels or tokens) * math.prod(sides)
    return rows * total * settings.dtype.itemsize


def call_settings(calls: list[CallTap], specs: list[ActivationSpec]) -> dict[str, Any]:
    """What a reader needs to know of the merged calls: the number of frames, and sizes of attention
    maps.
    """
    layout = calls[0].layout
    sizes = {spec.id: list(layout.size(spec)) for spec in specs if spec.kind == Kind.MAP}
    return {FRAMES: layout.frames, **({MAP_SIZES: sizes} if sizes else {})}


@dataclass(frozen=True)
class EvaluatedTexts:
    """The encoded prompts of an evaluation by side of the guider, and their marks where maps are
    read.
    """

    prompts: dict[bool, torch.Tensor | None]
    marks: dict[bool, torch.Tensor]

    @classmethod
    def of(cls, calls: list[CallTap]) -> EvaluatedTexts:
        """Of the calls of one evaluation."""
        prompts = {side: prompt for call in calls for side, prompt in call.prompts.items()}
        marks = {side: one for call in calls for side, one in call.marks.items()}
        return cls(prompts, marks)

    def same_as(self, other: EvaluatedTexts) -> bool:
        """Whether these are another evaluation's texts. A run has one tensor for each; else the
        marks are compared.
        """
        if self.marks.keys() != other.marks.keys():
            return False
        pairs = [(self.prompts[side], other.prompts[side]) for side in self.marks]
        if all(prompt is not None and prompt is before for prompt, before in pairs):
            return True
        return self.setting() == other.setting()

    def setting(self) -> dict[str, Any]:
        """The marks as a setting; of a side whose images have different texts there are none.

        Reads them, which waits for copies that are on their way.
        """
        texts = {
            str(side): one[0].cpu().numpy().round(4).tolist()
            for side, one in self.marks.items()
            if torch.equal(one, one[:1].expand_as(one))
        }
        return {TEXT_MARKS: texts} if texts else {}


def merge(
    calls: list[CallTap], specs: list[ActivationSpec]
) -> tuple[dict[str, torch.Tensor], tuple[Row, ...]]:
    """The tensors and rows of the calls of one evaluation, conditional rows first.

    Attention to texts of unequal length is filled up with zeros. Raises SeveralConditioningsError
    when two calls are of the same conditioning, ValueError when a module was not called.
    """
    parts: dict[bool, dict[str, torch.Tensor]] = {}
    tokens: dict[bool, int] = {}
    for call in reversed(
        calls
    ):  # the last call's copies are done last, so at most one wait takes time
        call.copies.wait()
    for call in calls:
        if parts.keys() & call.tensors.keys():
            raise SeveralConditioningsError
        parts |= call.tensors
        tokens |= call.text_tokens
    order = sorted(parts, reverse=True)
    missing = [spec.id for spec in specs for part in order if spec.id not in parts[part]]
    if missing:
        raise ValueError(f"{missing[0]} was not computed: {_REPLACED}")
    tensors = {
        spec.id: _cat([parts[part][spec.id] for part in order], 3 if spec.kind == Kind.MAP else 1)
        for spec in specs
    }
    count = len(next(iter(tensors.values()))) // len(order)
    return tensors, tuple(
        Row(image, part, tokens.get(part)) for part in order for image in range(count)
    )


def _cat(rows: list[torch.Tensor], dim: int) -> torch.Tensor:
    """Tensors of rows one after the other, not pinned; shorter ones are filled up with zeros along
    a dimension.
    """
    if len(rows) == 1 and not rows[0].is_pinned():
        return rows[0]
    length = max(part.shape[dim] for part in rows)
    after = [0, 0] * (rows[0].ndim - dim - 1)
    return torch.cat([F.pad(part, (*after, 0, length - part.shape[dim])) for part in rows])


def pool(feature: torch.Tensor, factor: int) -> torch.Tensor:
    """A feature (rows, channels, height, width) averaged over squares, to 1 / ``factor`` of its
    sides, at least 1.
    """
    if factor == 1:
        return feature
    height, width = feature.shape[-2:]
    return F.adaptive_avg_pool2d(feature, (max(height // factor, 1), max(width // factor, 1)))
