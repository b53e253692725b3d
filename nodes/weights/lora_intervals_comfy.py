"""Low-rank changes of a MODEL: as ordinary LoRA patches, or between two noise levels of the sampling run."""

from __future__ import annotations

import bisect
import uuid
from dataclasses import dataclass, field

import comfy.lora
import comfy.lora_convert
import torch
from comfy.patcher_extension import WrappersMP

from ...kernels import low_rank_apply
from ..host.evaluate import evaluating, levels_of
from ..host.quantized import as_used


@dataclass
class Interval:
    """Noise levels at which a change is in force: from ``start`` (percent 0 is pure noise) down to, without, ``end``.

    So that one change can take over from another: at the percent where one ends and the other starts, only the other
    is in force. An end of 100 % includes the last step.
    """

    start: float
    end: float
    now: float | None = field(default=None, repr=False)  # sigma of the call under way

    def active(self) -> bool:
        """Whether the change is in force at the noise level of the call under way."""
        return self.now is not None and self.holds(self.now)

    def holds(self, sigma: float) -> bool:
        """Whether the change is in force at a noise level."""
        return self.end < sigma <= self.start


def interval(patcher, start_percent: float, end_percent: float) -> Interval:
    """The noise levels of a MODEL between two percents of its sampling range, as ComfyUI's own nodes count them."""
    if not 0 <= start_percent < end_percent <= 1:
        raise ValueError(
            f"The change would start at {start_percent:g} and end at {end_percent:g}: it must start before it ends, "
            "between 0 and 1."
        )
    sampling = patcher.get_model_object("model_sampling")
    end = -1.0 if end_percent >= 1 else float(sampling.percent_to_sigma(end_percent))
    return Interval(float(sampling.percent_to_sigma(start_percent)), end)


def apply_lora(patcher, tensors: dict[str, torch.Tensor], strength: float, start_percent: float, end_percent: float):
    """A clone of a MODEL with a LoRA, by the keys of a LoRA file; the MODEL itself at strength 0.

    In force in the whole run it is what Load LoRA makes of the file. Else each layer's weight gets the change as it is
    used, at the noise levels of the interval alone. Raises ValueError when no key is of this model, and for an interval
    on a MODEL that a custom loader has quantized.
    """
    if strength == 0:
        return patcher
    if start_percent <= 0 and end_percent >= 1:
        clone, adapters = patcher.clone(), named_adapters(patcher, tensors)
        clone.add_patches(adapters, strength)
        return clone
    span = interval(patcher, start_percent, end_percent)
    clone, key = patcher.clone(), f"glassbox_interval_{uuid.uuid4().hex}"
    for target, adapter in named_adapters(patcher, tensors).items():
        name, part = (target, None) if isinstance(target, str) else (target[0], target[1])
        clone.add_weight_wrapper(name, as_used(patcher, name, Change(span, adapter.weights, strength, part)))

    def call(executor, x, t, *args, **kwargs):
        options = kwargs.get("transformer_options") or (args[3] if len(args) > 3 else {})
        before, span.now = span.now, levels_of(options.get("sigmas", t))[0]
        try:
            return executor(x, t, *args, **kwargs)
        finally:
            span.now = before

    def evaluate(executor, model, conds, x, timestep, *args):
        with evaluating(timestep):
            return executor(model, conds, x, timestep, *args)

    clone.add_wrapper_with_key(WrappersMP.CALC_COND_BATCH, key, evaluate)
    clone.add_wrapper_with_key(WrappersMP.APPLY_MODEL, key, call)
    return clone


def apply_text_lora(clip, tensors: dict[str, torch.Tensor], strength: float):
    """A clone of a CLIP with the text encoder layers of a LoRA, by the keys of a LoRA file; the CLIP itself without."""
    keys = comfy.lora.model_lora_keys_clip(clip.cond_stage_model, {})
    adapters = comfy.lora.load_lora(comfy.lora_convert.convert_lora(tensors), keys, log_missing=False)
    if not adapters or strength == 0:
        return clip
    clone = clip.clone()
    clone.add_patches(adapters, strength)
    return clone


def named_adapters(patcher, tensors: dict[str, torch.Tensor]) -> dict:
    """ComfyUI's adapters of a LoRA's tensors by weight name, or (name, part); ValueError when no key is the model's."""
    adapters = _adapters(patcher, tensors)
    if not adapters:
        raise ValueError("None of the layers of this LoRA is in the model: it is made for another base model.")
    return adapters


def _adapters(patcher, tensors: dict[str, torch.Tensor]) -> dict:
    tensors = comfy.lora_convert.convert_lora(tensors)
    names, ordered = comfy.lora.model_lora_keys_unet(patcher.model, {}), sorted(tensors)
    # each name is tried as a dozen kinds of adapters, and a model has ten times as many names as a LoRA has layers
    begun = {name: key for name, key in names.items() if _begins_one(name, ordered)}
    return comfy.lora.load_lora(tensors, begun, log_missing=False)


def _begins_one(name: str, ordered: list[str]) -> bool:
    """Whether a name is how one of some strings in order begins."""
    place = bisect.bisect_left(ordered, name)
    return place < len(ordered) and ordered[place].startswith(name)


class Change:
    """A weight function: the weight unchanged, or with up @ down added while ``span`` is active."""

    def __init__(self, span, weights: tuple, strength: float, part: tuple[int, int, int] | None):
        up, down, alpha = weights[:3]
        self._span, self._up, self._down, self._part = span, up, down, part
        self._strength = strength * (1.0 if alpha is None else alpha / down.shape[0])

    def __call__(self, weight: torch.Tensor) -> torch.Tensor:
        if not self._span.active():
            return weight
        if self._part is None:
            return low_rank_apply(weight, self._up, self._down, self._strength)
        changed = weight.clone()
        dimension, first, length = self._part
        target = changed.narrow(dimension, first, length)
        target.copy_(low_rank_apply(target, self._up, self._down, self._strength))
        return changed

    def move_to(self, device=None):
        """ComfyUI lets weight functions follow their layer; returns the bytes moved."""
        self._up, self._down = self._up.to(device), self._down.to(device)
        return self._up.nbytes + self._down.nbytes
