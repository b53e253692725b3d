"""Edits by words in a sampling run: in the cross-attention of U-Nets here, in transformers by the
other half.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from comfy.ldm.modules import attention
from comfy.ldm.modules.diffusionmodules.openaimodel import UNetModel
from comfy.patcher_extension import WrappersMP
from torch import nn

from ..common.network_call import Area, Call, RowSubset, evaluated_again, evaluating_again
from ..host.evaluate import sigmas_of
from ..host.hooks import forward_hooks, hook_calls, mark_layer_evaluations
from ..host.text_encoding import encode
from .activation_edit import mask_at
from .word_edit import (
    EncodedEdit,
    EncodedTexts,
    KeysValues,
    ReadingPlan,
    WordEdit,
    edited_attention,
)
from .word_edit_transformer_comfy import RunTexts, edited_call

if TYPE_CHECKING:
    from ..host.socket_types import CLIP, BaseModel, ModelPatcher, WrapperExecutor

_TEMPORAL = "time_stack"  # of Stable Video Diffusion: attention between frames
_OVERRIDE = "optimized_attention_override"
_REPLACED = "patches_replace"


def edited_model(
    patcher: ModelPatcher,
    clip: CLIP,
    edits: list[WordEdit],
    start_percent: float,
    end_percent: float,
    mask: torch.Tensor | None = None,
) -> ModelPatcher:
    """A clone of a MODEL with edits by words in a part of the run; the MODEL itself where nothing
    is changed.

    ``mask`` (M, H, W) in 0..1 of the image, None for all of it. Raises ValueError for networks
    whose attention to the text is of neither kind, and for a CLIP of another model.
    """
    encoded = [_encoded(clip, edit) for edit in edits]
    encoded = [edit for edit in encoded if not torch.equal(edit.toward, edit.away)]
    if not encoded or (mask is not None and not mask.any()):
        return patcher
    network = patcher.model.diffusion_model
    paths = _cross_attentions(network)
    if paths:
        width = network.get_submodule(f"{paths[0]}.to_k").in_features
        if width != encoded[0].toward.shape[2]:
            raise ValueError(
                f"The CLIP encodes texts of {encoded[0].toward.shape[2]} channels and the MODEL "
                f"reads {width}: connect the CLIP of the model."
            )
    first, last = sigmas_of(patcher, start_percent, end_percent)
    texts = EncodedTexts(encoded)
    cache = _RunCache(patcher.model)
    of_run = RunTexts(encoded)

    def calling(call: Call) -> Callable | None:
        if not last <= call.sigma <= first or not any(part.positive for part in call.parts):
            return None
        if paths:
            return partial(_edited_cross_attentions, _CallEdit(call, texts, mask, cache), paths)
        return partial(edited_call, call, of_run, mask)

    def run(executor: WrapperExecutor, *args: Any, **kwargs: Any) -> torch.Tensor:
        of_run.begin(kwargs.get("latent_shapes"))
        try:
            return executor(*args, **kwargs)
        finally:
            of_run.end()
            cache.clear()
            texts.forget()

    def predict(
        executor: WrapperExecutor, x: torch.Tensor, *args: Any, **kwargs: Any
    ) -> torch.Tensor:
        if not paths:
            of_run.prepare(executor.class_obj, x, kwargs.get("seed"))
        return executor(x, *args, **kwargs)

    clone = hook_calls(patcher, calling)
    mark_layer_evaluations(clone)  # keys and values of other texts, blocks on further rows
    key = f"glassbox_words_{uuid.uuid4().hex}"
    clone.add_wrapper_with_key(WrappersMP.OUTER_SAMPLE, key, run)
    clone.add_wrapper_with_key(WrappersMP.PREDICT_NOISE, key, predict)
    return clone


def _encoded(clip: CLIP, edit: WordEdit) -> EncodedEdit:
    encodings = [encode(clip, text)[1] for text in (edit.toward, edit.away)]
    if any(len(entries) != 1 for entries in encodings):
        raise ValueError(
            "This CLIP changes along the run (scheduled hooks): connect a CLIP without hooks."
        )
    toward, away = (entries[0] for entries in encodings)
    return EncodedEdit(toward[0], away[0], edit.strength, (toward, away))


def _cross_attentions(network: nn.Module) -> list[str]:
    """Paths of the modules of a U-Net that read the text; none in another network."""
    if not isinstance(network, UNetModel):
        return []
    paths = [
        path
        for path, _ in network.named_modules()
        if path.endswith(".attn2") and _TEMPORAL not in path
    ]
    if not paths:
        raise ValueError("This U-Net reads no text: use a model that is prompted with text.")
    return paths


@contextmanager
def _edited_cross_attentions(edit: _CallEdit, paths: list[str]) -> Iterator[None]:
    """One call of the network in which the cross-attentions at ``paths`` are edited."""
    network = edit.call.network
    inputs: list = [(f"{path}.to_q", partial(edit.begin, path)) for path in paths]
    inputs += [(f"{path}.to_out", edit.end) for path in paths]
    inputs += [(path, partial(edit.keep_grid, path)) for path in dict.fromkeys(map(_around, paths))]

    def hand_over(_network: nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
        return args, {
            **kwargs,
            "transformer_options": edit.options(kwargs.get("transformer_options") or {}),
        }

    handle = network.register_forward_pre_hook(hand_over, with_kwargs=True)
    try:
        with forward_hooks(network, ((), inputs)):
            yield
    finally:
        handle.remove()


class _RunCache:
    """Keys and values of texts by layer, and masks at the size of layers, as long as a run
    lasts.
    """

    def __init__(self, model: BaseModel):
        self._model = model
        self._keys_values: dict[tuple, tuple[list[tuple], torch.Tensor, KeysValues]] = {}
        self._masks: dict[tuple, torch.Tensor] = {}

    def clear(self) -> None:
        """Free the memory."""
        self._keys_values.clear()
        self._masks.clear()

    def keys_values(
        self, path: str, module: nn.Module, text: torch.Tensor, subset: RowSubset
    ) -> KeysValues:
        """Keys and values (rows, tokens, C) of a text (1 or more, tokens, D) for some rows of a
        call.

        Through the layers as they are in the call: with other nodes' hooks on them, which then
        change these rows, and with changes of the weights. They are kept where neither can be
        otherwise at the next noise level.
        """
        layers = (module.get_submodule("to_k"), module.get_submodule("to_v"))
        state = None if torch.is_grad_enabled() else self._constant(layers)
        key = (path, id(text), len(subset))
        if state is not None and key in self._keys_values:
            before, _, made = self._keys_values[key]
            if _same_state(state, before):
                return made
        count = len(subset)
        of_rows = (
            text.expand(count, -1, -1) if len(text) == 1 else text[torch.arange(count) % len(text)]
        )
        with evaluating_again(subset):
            if state is not None and len(text) == 1:
                made = tuple(layer(text).expand(count, -1, -1) for layer in layers)
            else:
                made = tuple(layer(of_rows) for layer in layers)
        if state is not None:
            self._keys_values[key] = state, text, made  # the text too, so that its id stays its own
        return made

    def _constant(self, layers: tuple[nn.Module, ...]) -> list[tuple] | None:
        """What keys and values depend on beside the text; None where that may change from call to
        call.
        """
        patcher = getattr(self._model, "current_patcher", None)
        if getattr(patcher, "current_hooks", None) is not None:
            return None  # ComfyUI's scheduled LoRAs write into the weights
        weights: list[tuple] = []
        for layer in layers:
            changing = (
                layer._forward_hooks,
                layer._forward_pre_hooks,
                getattr(layer, "weight_function", None),
                getattr(layer, "bias_function", None),
            )
            if any(changing):
                return None
            for tensor in (getattr(layer, "weight", None), getattr(layer, "bias", None)):
                version = 0
                if tensor is not None and not tensor.is_inference():
                    version = tensor._version
                weights.append((tensor, version))
        return weights

    def mask(self, key: tuple, make: Callable[[], torch.Tensor]) -> torch.Tensor:
        """A mask at the size of a layer, made once a run."""
        if torch.is_grad_enabled():
            return make()
        if key not in self._masks:
            self._masks[key] = make()
        return self._masks[key]


def _same_state(now: list[tuple], then: list[tuple]) -> bool:
    pairs = zip(now, then, strict=True)
    return all(weight is before and version == old for (weight, version), (before, old) in pairs)


class _CallEdit:
    """Changes the attention to the text in one call: each layer's as its queries, keys and values
    are there.
    """

    def __init__(
        self, call: Call, texts: EncodedTexts, mask: torch.Tensor | None, cache: _RunCache
    ):
        self.call = call
        self._texts = texts
        self._mask = mask
        self._cache = cache
        parts = [part for part in call.parts if part.positive]
        self._parts = [(part, len(RowSubset.of_parts([part], call.rows))) for part in parts]
        self._subset = RowSubset.of_parts(parts, call.rows)
        self._path = ""
        self._is_attended = False
        self._grids: dict[
            str, tuple[int, int]
        ] = {}  # height and width by path of the module around the attention
        self._plan: ReadingPlan | None = None

    def options(self, options: dict[str, Any]) -> dict[str, Any]:
        """The options with which the network is called, in which its attention is this edit's."""
        replaced = options.get(_REPLACED, {})
        other = options.get(_OVERRIDE)
        # Where another node changes a text on its way, or the attention to it, that is not the
        # prompt's any more.
        is_changed = (
            options.get("patches", {}).get("attn2_patch")
            or replaced.get("attn2")
            or isinstance(other, _EditedAttention)
        )
        self._plan = self._texts.plan(
            [None] if is_changed else [part.prompt for part, _ in self._parts]
        )
        changed = {**options, _OVERRIDE: _EditedAttention(self, other)}
        if replaced.get("attn2"):
            layers = {
                place: partial(self._replaced, other) for place, other in replaced["attn2"].items()
            }
            changed[_REPLACED] = {**replaced, "attn2": layers}
        return changed

    def begin(self, path: str, _hidden: torch.Tensor) -> None:
        """A cross-attention begins."""
        self._path = path
        self._is_attended = False

    def end(self, _attended: torch.Tensor) -> None:
        """A cross-attention is over. Raises ValueError where its attention was not handed over."""
        self._path = ""
        if not self._is_attended:
            raise ValueError(
                "Another node on the MODEL computes the attention to the text by itself, so that "
                "Edit by Words would be left out: connect the MODEL from before that node, or "
                "leave the node out."
            )

    def keep_grid(self, path: str, feature: torch.Tensor) -> None:
        """Height and width of the positions of a module's layers."""
        self._grids[path] = (feature.shape[-2], feature.shape[-1])

    def attention(
        self,
        other: Callable | None,
        attend: Callable,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        heads: int,
        mask: torch.Tensor | None = None,
        **options: Any,
    ) -> torch.Tensor:
        """Stands for every attention (rows, N, heads * d) of the network; only cross-attentions are
        changed.

        ``other``: another node's attention, which then attends to the texts too, in all rows of the
        call.
        """
        attend = partial(
            attend if other is None else partial(other, attend), heads=heads, **options
        )
        if not self._path or evaluated_again() is not None:
            return attend(query, key, value, mask=mask)
        pairs = self._pairs(query)
        is_same_length = all(keys.shape[1] == key.shape[1] for keys, _ in pairs)
        if other is None and is_same_length:
            # One attention for the call's own rows and those of the texts: hardly more operations
            # than without.
            queries = torch.cat([query, *[self._positive(query)] * len(pairs)])
            keys = torch.cat([key, *(keys for keys, _ in pairs)])
            values = torch.cat([value, *(values for _, values in pairs)])
            attended = attend(queries, keys, values, mask=self._masks(mask, len(query), len(pairs)))
            reads = attended[len(query) :].split(len(self._subset))
            return self._changed(attended[: len(query)], reads)
        attended = attend(query, key, value, mask=mask)
        read = self._read if other is None else self._read_in_all_rows
        return self._changed(attended.clone(), [read(attend, query, pair, mask) for pair in pairs])

    def _replaced(
        self,
        other: Callable,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        extra: dict[str, Any],
    ) -> torch.Tensor:
        """Stands for a cross-attention that another node has replaced: the difference is of the
        network's own kind.
        """
        attended = other(query, key, value, extra)
        if not self._path:
            return attended
        attend = partial(
            attention.optimized_attention,
            heads=extra["n_heads"],
            attn_precision=extra.get("attn_precision"),
        )
        pairs = self._pairs(query)
        return self._changed(
            attended.clone(), [self._read(attend, query, pair, None) for pair in pairs]
        )

    def _pairs(self, query: torch.Tensor) -> list[KeysValues]:
        """Keys and values of the plan's texts in the layer under way, for the rows of the positive
        prompts.
        """
        self.call.require(len(query))
        self._is_attended = True
        assert self._plan is not None
        module = self.call.network.get_submodule(self._path)
        texts = self._texts.on(query)
        return [
            self._cache.keys_values(self._path, module, texts[number], self._subset)
            for number in self._plan.texts
        ]

    def _positive(self, tensor: torch.Tensor) -> torch.Tensor:
        """The rows of the positive prompts, all parts one after the other."""
        rows = [tensor[part.rows] for part, _ in self._parts]
        return rows[0] if len(rows) == 1 else torch.cat(rows)

    def _read(
        self, attend: Callable, query: torch.Tensor, pair: KeysValues, mask: torch.Tensor | None
    ) -> torch.Tensor:
        """What the queries of the positive rows read in a text of any length."""
        if mask is not None and mask.ndim > 2 and len(mask) == len(query):
            mask = self._positive(mask)
        return attend(self._positive(query), *pair, mask=_fitted(mask, pair[0].shape[1]))

    def _read_in_all_rows(
        self, attend: Callable, query: torch.Tensor, pair: KeysValues, mask: torch.Tensor | None
    ) -> torch.Tensor:
        """The same in a call of all rows, which another node's attention may count; other edits
        stand aside.
        """
        every = RowSubset(range(len(query)), len(query))
        rows = self._subset.index(query.device)
        filled = []
        for of_text in pair:
            all_rows = of_text[:1].repeat(len(query), 1, 1)
            all_rows[rows] = of_text
            filled.append(all_rows)
        with evaluating_again(every):
            return self._positive(attend(query, *filled, mask=_fitted(mask, pair[0].shape[1])))

    def _masks(self, mask: torch.Tensor | None, rows: int, texts: int) -> torch.Tensor | None:
        """A mask of the call's rows for these and the positive ones once for each text."""
        if mask is None or mask.ndim < 3 or len(mask) != rows:
            return mask
        return torch.cat([mask, *[self._positive(mask)] * texts])

    def _changed(self, attended: torch.Tensor, reads: Sequence[torch.Tensor]) -> torch.Tensor:
        """The attention's output (rows, N, heads * d) with the edits in the rows of the positive
        prompt, in place.
        """
        assert self._plan is not None
        changed = attended.clone() if torch.is_grad_enabled() else attended
        first = 0
        for part, count in self._parts:
            assert part.rows is not None
            own = attended[part.rows]
            edited = edited_attention(
                self._plan, own, [read[first : first + count] for read in reads]
            )
            if self._mask is not None:
                edited = torch.lerp(own, edited, self._placed(own, self._mask, part.area))
            changed[part.rows] = edited
            first += count
        return changed

    def _placed(
        self, attended: torch.Tensor, mask: torch.Tensor, area: Area | None
    ) -> torch.Tensor:
        """The mask at the positions of a layer: (rows, N, 1)."""
        grid = self._grids[_around(self._path)]
        if attended.shape[1] != grid[0] * grid[1]:
            raise ValueError(
                f"A layer has {attended.shape[1]} tokens for {grid[0]} x {grid[1]} positions, "
                "because another node merges or tiles tokens, so the mask cannot be placed. "
                "Connect the MODEL from before that node."
            )

        def make() -> torch.Tensor:
            feature = attended.transpose(1, 2).unflatten(2, grid)
            return mask_at(mask, feature, 1, area).to(attended).flatten(2).transpose(1, 2)

        return self._cache.mask((grid, area, len(attended), attended.dtype, attended.device), make)


class _EditedAttention:
    """ComfyUI's override of an attention by an edit, in place of another node's, which goes on to
    act within it.
    """

    def __init__(self, edit: _CallEdit, other: Callable | None):
        self._edit = edit
        self._other = other

    def __call__(self, attend: Callable, *args: Any, **options: Any) -> torch.Tensor:
        return self._edit.attention(self._other, attend, *args, **options)


def _around(path: str) -> str:
    """The module that an attention is in, whose input has the height and width of its tokens."""
    return path.partition(".transformer_blocks.")[0]


def _fitted(mask: torch.Tensor | None, tokens: int) -> torch.Tensor | None:
    """A mask (..., tokens) for a text of another length: ComfyUI pads texts by whole chunks of 77,
    as masks repeat.
    """
    if mask is None or mask.shape[-1] == tokens:
        return mask
    return mask[..., torch.arange(tokens, device=mask.device) % mask.shape[-1]]
