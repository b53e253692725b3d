"""Edits by words in a sampling run: in the cross-attention of U-Nets here, in SD3 and Flux by the other half."""

from __future__ import annotations

import uuid
from functools import partial

import torch
from comfy.ldm.modules import attention
from comfy.patcher_extension import WrappersMP
from torch import nn

from ..common.network_call import Call
from ..host.evaluate import sigmas_of
from ..host.hooks import Receivers, hook_calls
from ..host.text_encoding import encode
from .activation_edit import mask_at
from .word_edit import EncodedEdit, KeysValues, WordEdit, attention_difference
from .word_edit_transformer_comfy import edited_call, text_width

_TEMPORAL = "time_stack"  # of Stable Video Diffusion: attention between frames


def edited_model(patcher, clip, edits: list[WordEdit], start_percent: float, end_percent: float, mask=None):
    """A clone of a MODEL with edits by words in a part of the run; the MODEL itself where nothing is changed.

    ``mask`` (M, H, W) in 0..1 of the image, None for all of it. Raises ValueError for networks whose attention to the
    text is of neither kind, and for a CLIP of another model.
    """
    texts = [_encoded(clip, one) for one in edits]
    texts = [one for one in texts if not torch.equal(one.toward, one.away)]
    if not texts or (mask is not None and not mask.any()):
        return patcher
    network = patcher.model.diffusion_model
    width, paths = text_width(network), []
    if width is None:
        paths = _cross_attentions(network)
        width = network.get_submodule(f"{paths[0]}.to_k").in_features
    if width != texts[0].toward.shape[2]:
        raise ValueError(
            f"The CLIP encodes texts of {texts[0].toward.shape[2]} channels and the MODEL reads {width}: connect the "
            "CLIP of the model."
        )
    (first, last), cache = sigmas_of(patcher, start_percent, end_percent), _KeysValues(texts)

    def calling(call: Call):
        if not last <= call.sigma <= first or not any(part.positive for part in call.parts):
            return None
        return _CallEdit(call, paths, texts, cache, mask).receivers() if paths else edited_call(call, texts, mask)

    def run(executor, *args, **kwargs):
        try:
            return executor(*args, **kwargs)
        finally:
            cache.clear()

    clone = hook_calls(patcher, calling)
    clone.add_wrapper_with_key(WrappersMP.OUTER_SAMPLE, f"glassbox_words_{uuid.uuid4().hex}", run)
    return clone


def _encoded(clip, edit: WordEdit) -> EncodedEdit:
    found = [encode(clip, text)[1] for text in (edit.toward, edit.away)]
    if any(len(entries) != 1 for entries in found):
        raise ValueError("This CLIP changes along the run (scheduled hooks): connect a CLIP without hooks.")
    (toward, further), (away, others) = (entries[0] for entries in found)
    pooled = (further.get("pooled_output"), others.get("pooled_output"))
    return EncodedEdit(toward, away, edit.strength, None if any(one is None for one in pooled) else pooled)


def _cross_attentions(network: nn.Module) -> list[str]:
    """Paths of the modules that read the text."""
    paths = [path for path, _ in network.named_modules() if path.endswith(".attn2") and _TEMPORAL not in path]
    if not paths:
        raise ValueError(
            "How this MODEL reads its text is not known here: use SD1.5, SD2, SDXL, SD3, Flux or the demo model."
        )
    return paths


class _KeysValues:
    """Keys and values of the texts in each layer, kept as long as the layer's weights stay what they were.

    Weights change within a run in many ways (hooks, changes that act at some noise levels, patches of layers in low
    VRAM). The network's own keys and values of the same prompt, which are there anyway, show it.
    """

    def __init__(self, texts: list[EncodedEdit]):
        self._texts = texts
        self._kept: dict[str, tuple[KeysValues, list[tuple[KeysValues, KeysValues]]]] = {}

    def clear(self) -> None:
        """Free the memory."""
        self._kept.clear()

    def of(self, path: str, module: nn.Module, own: KeysValues) -> list[tuple[KeysValues, KeysValues]]:
        """Toward and away of each edit. ``own``: what the layer has made of the prompt of one image."""
        before, made = self._kept.get(path, (None, []))
        if before is None or not all(map(_same, before, own)):
            made = [(self._make(module, one.toward, own), self._make(module, one.away, own)) for one in self._texts]
            self._kept[path] = (own[0].clone(), own[1].clone()), made
        return made

    def _make(self, module: nn.Module, text: torch.Tensor, own: KeysValues) -> KeysValues:
        text = text.to(own[0])
        # Not through __call__: other nodes' hooks on these layers expect the rows of the call.
        to_k, to_v = (module.get_submodule(name) for name in ("to_k", "to_v"))
        return to_k.forward(text), to_v.forward(text)


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.device == other.device and one.dtype == other.dtype and torch.equal(one, other)


class _CallEdit:
    """Receivers for one call that collect queries, keys and values, and change what goes into the output layers."""

    def __init__(self, call: Call, paths: list[str], texts: list[EncodedEdit], cache: _KeysValues, mask):
        self._call, self._paths, self._texts, self._cache, self._mask = call, paths, texts, cache, mask
        self._made: dict[str, torch.Tensor] = {}  # by "q", "k" and "v": of the layer under way
        self._grid: tuple[int, int] = (0, 0)

    def receivers(self) -> Receivers:
        """Of outputs, and of first inputs."""
        outputs = [(f"{path}.to_{name}", partial(self._keep, name)) for path in self._paths for name in ("q", "k", "v")]
        grids = dict.fromkeys(path.partition(".transformer_blocks.")[0] for path in self._paths)
        inputs: list = [(grid, self._keep_grid) for grid in grids] if self._mask is not None else []
        inputs += [(f"{path}.to_out", partial(self._change, path)) for path in self._paths]
        return outputs, inputs

    def _keep(self, name: str, output: torch.Tensor) -> None:
        self._made[name] = output

    def _keep_grid(self, feature: torch.Tensor) -> None:
        self._grid = (feature.shape[-2], feature.shape[-1])

    def _change(self, path: str, attended: torch.Tensor) -> torch.Tensor:
        """The attention's output (rows, N, heads * d) with the edits in the rows of the positive prompt."""
        query, key, value = (self._made.pop(name) for name in ("q", "k", "v"))
        module = self._call.network.get_submodule(path)
        attend = partial(_attend, module)
        self._call.require(len(query))
        changed = attended.clone()
        for part, rows in self._call.split(changed):
            if not part.positive:
                continue
            queries = query[part.rows]
            texts = self._cache.of(path, module, (key[part.rows][:1], value[part.rows][:1]))
            added = torch.zeros_like(rows)
            for one, pair in zip(self._texts, texts, strict=True):
                added = added + one.strength * attention_difference(queries, *pair, attend)
            if self._mask is not None:
                added = added * self._placed(added, part.area)
            changed[part.rows] = rows + added
        return changed

    def _placed(self, added: torch.Tensor, area) -> torch.Tensor:
        """The mask at the positions of a layer: (rows, N, 1)."""
        height, width = self._grid
        if added.shape[1] != height * width:
            raise ValueError(
                f"A layer has {added.shape[1]} tokens for {height} x {width} positions, because another node merges "
                "or tiles tokens, so the mask cannot be placed. Connect the MODEL from before that node."
            )
        feature = added.transpose(1, 2).unflatten(2, self._grid)
        return mask_at(self._mask, feature, 1, area).to(added).flatten(2).transpose(1, 2)


def _attend(module: nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    return attention.optimized_attention(query, key, value, module.heads, attn_precision=module.attn_precision)
