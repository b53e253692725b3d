"""The size metadata of ComfyUI's models: which fields each takes, what a conditioning sets, and how
it is encoded.

ComfyUI encodes metadata once before sampling (``extra_conds``). ``annotate`` lets a MODEL remember
beside the encoded tensor the values behind it, so that they can be encoded again at every step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import comfy.conds
import comfy.model_base
import comfy.samplers
import node_helpers
import torch

from ..host import hooks
from ..host.evaluate import name_of
from .size_metadata import guided_by_metadata

if TYPE_CHECKING:
    from ..host.socket_types import BaseModel, ModelPatcher

_PIXELS = 8  # per latent cell, for the size that ComfyUI passes when a conditioning sets none
_SIZE = ("height", "width")
_CROP = ("crop_h", "crop_w")
_TARGET = ("target_height", "target_width")


@dataclass(frozen=True)
class Layout:
    """Where a model takes metadata: the name of the encoded tensor, its fields in order, and how it
    is encoded.

    ``encode(model, stock, values, changed)`` returns the tensor ``stock`` (rows, width) with
    changed fields re-encoded.
    """

    model: str
    key: str
    fields: tuple[str, ...]
    encode: Callable[[object, torch.Tensor, Mapping[str, float], frozenset[str]], torch.Tensor]


@dataclass(frozen=True, kw_only=True)
class SizeMetadata:
    """The size metadata of one conditioning: values by field, the image's (width, height) in
    pixels, and its role.

    ``implicit``: the target sides that it leaves to ComfyUI, which passes the original size for
    them. ``explicit``: the fields that it sets itself.
    """

    values: Mapping[str, float]
    canvas: tuple[int, int]
    prompt: str
    implicit: frozenset[str] = frozenset()
    explicit: frozenset[str] = frozenset()


class CondWithMetadata(comfy.conds.CONDRegular):
    """An encoded tensor with the size metadata that it encodes."""

    def __init__(self, cond: torch.Tensor, size_metadata: SizeMetadata):
        super().__init__(cond)
        self.size_metadata = size_metadata

    def _copy_with(self, cond: torch.Tensor) -> CondWithMetadata:
        return CondWithMetadata(cond, self.size_metadata)


def layout_of(patcher: ModelPatcher) -> Layout:
    """The layout of a MODEL; raises ValueError when the model takes no size metadata."""
    model = patcher.model
    own = getattr(model, "metadata_fields", None)
    if own:
        return Layout(type(model).__name__, "y", tuple(own), _vector(tuple(own)))
    for kind, describe in _LAYOUTS.items():
        if isinstance(model, kind):
            layout = describe(model)
            if layout is not None:
                return layout
    raise ValueError(
        f"{name_of(model)} takes no size metadata: use SDXL, its refiner, PixArt-alpha, HunyuanDiT "
        "up to 1.1, or the demo model."
    )


def annotate(patcher: ModelPatcher) -> None:
    """Let the model of this (cloned) MODEL keep the size metadata of each of its conditionings."""
    inner = hooks.method_of(patcher, "extra_conds")
    layout = layout_of(patcher)
    if getattr(inner, "remembers_metadata", False):
        return

    def extra_conds(**kwargs: Any) -> dict:
        out = inner(**kwargs)
        if layout.key in out:
            metadata = read_metadata(layout, kwargs, kwargs["noise"].shape)
            out[layout.key] = CondWithMetadata(out[layout.key].cond, metadata)
        return out

    extra_conds.remembers_metadata = True  # type: ignore[attr-defined]
    patcher.add_object_patch("extra_conds", extra_conds)


def read_metadata(layout: Layout, conditioning: Mapping, shape: torch.Size) -> SizeMetadata:
    """The size metadata that a conditioning gives a model for a latent of that shape, ComfyUI's
    defaults included.
    """
    canvas = (shape[-1] * _PIXELS, shape[-2] * _PIXELS)
    width = conditioning.get("width", canvas[0])
    height = conditioning.get("height", canvas[1])
    defaults = {
        "width": width,
        "height": height,
        "target_width": width,
        "target_height": height,
        **dict.fromkeys((*_CROP, "mirror"), 0),
    }
    values = {
        name: float(conditioning.get(name, defaults[name]))
        for name in layout.fields
        if name in defaults
    }
    implicit = frozenset(name for name in _TARGET if name in values and name not in conditioning)
    explicit = frozenset(name for name in values if name in conditioning)
    return SizeMetadata(
        values=values,
        canvas=canvas,
        prompt=conditioning.get("prompt_type", "positive"),
        implicit=implicit,
        explicit=explicit,
    )


def explicit_fields(layout: Layout, conditioning: list) -> dict[str, float]:
    """The fields that the first entry of a CONDITIONING sets itself, from any node."""
    entry = conditioning[0][1] if conditioning else {}
    return {name: float(entry[name]) for name in layout.fields if name in entry}


def write_metadata(
    conditioning: list, values: Mapping[str, float], forget: tuple[str, ...] = (), **more: Any
) -> list:
    """A CONDITIONING with ``values`` (and ``more``) set and the fields of ``forget`` removed."""
    kept = [
        [entry[0], {key: value for key, value in entry[1].items() if key not in forget}]
        for entry in conditioning
    ]
    return node_helpers.conditioning_set_values(kept, {**values, **more})


def _vector(fields: tuple[str, ...]) -> Callable:
    """Encoding by a model's own ``encode_adm``: equal blocks, one a field, behind the pooled
    text.
    """

    def encode(
        model: BaseModel, stock: torch.Tensor, values: Mapping[str, float], changed: frozenset[str]
    ) -> torch.Tensor:
        part = model.encode_adm(pooled_output=stock.new_zeros(1, 0), **values).to(stock)
        pooled = stock.shape[1] - part.shape[1]
        block = part.shape[1] // len(fields)
        result = stock.clone()
        for index, name in enumerate(fields):
            if name in changed:
                here = index * block
                result[:, pooled + here : pooled + here + block] = part[:, here : here + block]
        return result

    return encode


def _numbers(*fields: str) -> Callable:
    """Encoding as the plain numbers of some fields; what follows them in the tensor stays."""

    def encode(
        model: BaseModel, stock: torch.Tensor, values: Mapping[str, float], changed: frozenset[str]
    ) -> torch.Tensor:
        result = stock.clone()
        for index, name in enumerate(fields):
            if name in changed:
                result[:, index] = values[name]
        return result

    return encode


def _sdxl(model: BaseModel) -> Layout:
    fields = (*_SIZE, *_CROP, *_TARGET)
    return Layout("SDXL", "y", fields, _vector(fields))


def _refiner(model: BaseModel) -> Layout:
    fields = (*_SIZE, *_CROP, "aesthetic_score")
    return Layout("The SDXL refiner", "y", fields, _vector(fields))


def _pixart(model: BaseModel) -> Layout | None:
    if not model.diffusion_model.micro_conditioning:
        return None
    return Layout("PixArt-alpha", "c_size", _SIZE, _numbers(*_SIZE))


def _hunyuan_dit(model: BaseModel) -> Layout | None:
    if not model.diffusion_model.size_cond:
        return None
    fields = (*_SIZE, *_TARGET)
    return Layout("HunyuanDiT", "image_meta_size", fields, _numbers(*fields))


_LAYOUTS = {
    comfy.model_base.SDXL: _sdxl,
    comfy.model_base.SDXLRefiner: _refiner,
    comfy.model_base.PixArt: _pixart,
    comfy.model_base.HunyuanDiT: _hunyuan_dit,
}


class MetadataGuider(comfy.samplers.CFGGuider):
    """Guidance by text with strength λ (``cfg``) and by metadata with relative strength β.

    λ (β e(s, c) + (1 - β) e(s, r)) + (1 - λ) e(0, r): s the text, c the metadata requested, r the
    reference metadata. That is CFG with the condition e(s, r) + β (e(s, c) - e(s, r)), so that CFG
    patches on the MODEL see the guidance whole and nothing jumps at β = 0 or β = 1: there it is
    ComfyUI's own CFG against e(0, r), bit for bit, at its two evaluations. Without patches it is
    DualCFGGuider with cfg_conds = λβ and cfg_cond2_negative = λ.
    """

    def set_conds(self, positive: list, reference: list, negative: list) -> None:
        """(s, c), (s, r) and (0, r)."""
        self.inner_set_conds({"positive": positive, "reference": reference, "negative": negative})

    def set_strengths(self, cfg: float, metadata_strength: float) -> None:
        """λ and β."""
        self.cfg = cfg
        self.metadata_strength = metadata_strength

    def predict_noise(
        self,
        x: torch.Tensor,
        timestep: torch.Tensor,
        model_options: dict | None = None,
        seed: int | None = None,
    ) -> torch.Tensor:
        model = self.inner_model
        options = model_options or {}
        requested, reference, negative = (
            self.conds.get(name) for name in ("positive", "reference", "negative")
        )
        if self.metadata_strength in (0, 1) or self.cfg == 0:
            text = reference if self.metadata_strength == 0 else requested
            return comfy.samplers.sampling_function(
                model, x, timestep, negative, text, self.cfg, model_options=options, seed=seed
            )
        if self.cfg == 1 and not options.get("disable_cfg1_optimization", False):
            negative = None
        out = comfy.samplers.calc_cond_batch(
            model,
            conds=[negative, reference, requested],
            x_in=x,
            timestep=timestep,
            model_options=options,
        )
        conds = [requested, negative]
        predictions = [guided_by_metadata(out[2], out[1], self.metadata_strength), out[0]]
        for function in options.get("sampler_pre_cfg_function", []):
            predictions = function(
                {
                    "conds": conds,
                    "conds_out": predictions,
                    "cond_scale": self.cfg,
                    "timestep": timestep,
                    "input": x,
                    "sigma": timestep,
                    "model": model,
                    "model_options": options,
                }
            )
        return comfy.samplers.cfg_function(
            model,
            *predictions,
            self.cfg,
            x,
            timestep,
            model_options=options,
            cond=requested,
            uncond=negative,
        )
