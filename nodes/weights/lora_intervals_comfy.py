"""Low-rank changes of a MODEL: as ordinary LoRA patches, or between two noise levels of the
sampling run.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from comfy.patcher_extension import WrappersMP
from comfy.weight_adapter.lora import LoRAAdapter

from ...kernels import low_rank_apply
from ..common.lora_reader import Factors
from ..common.network_call import in_call
from ..host.evaluate import evaluating, levels_of
from ..host.lora_targets import Target
from ..host.quantized import as_used

if TYPE_CHECKING:
    from ..host.socket_types import CLIP, BaseModel, ModelPatcher, WrapperExecutor


@dataclass
class Interval:
    """Noise levels at which a change is in force: from ``start`` (percent 0 is pure noise) down to,
    without, ``end``.

    So that one change can take over from another: at the percent where one ends and the other
    starts, only the other is in force. An end of 100 % includes the last step.
    """

    start: float
    end: float
    now: float | None = field(default=None, repr=False)  # sigma of the call under way

    @contextmanager
    def at(self, sigma: float) -> Iterator[None]:
        """The call under way is at a noise level while the block runs."""
        before = self.now
        self.now = sigma
        try:
            yield
        finally:
            self.now = before

    def active(self) -> bool:
        """Whether the change is in force at the noise level of the call under way."""
        return self.now is not None and self.holds(self.now)

    def holds(self, sigma: float) -> bool:
        """Whether the change is in force at a noise level."""
        return self.end < sigma <= self.start


def interval(patcher: ModelPatcher, start_percent: float, end_percent: float) -> Interval:
    """The noise levels of a MODEL between two percents of its sampling range, as ComfyUI's own
    nodes count them.
    """
    if not 0 <= start_percent < end_percent <= 1:
        raise ValueError(
            f"The change would start at {start_percent:g} and end at {end_percent:g}: it must "
            "start before it ends, between 0 and 1."
        )
    sampling = patcher.get_model_object("model_sampling")
    end = -1.0 if end_percent >= 1 else float(sampling.percent_to_sigma(end_percent))
    return Interval(float(sampling.percent_to_sigma(start_percent)), end)


def adapters(
    layers: Mapping[str, Factors], targets: Mapping[str, Target]
) -> dict[str | tuple, LoRAAdapter]:
    """ComfyUI's adapters of low-rank factors, by the keys of its patches; ``targets``: where each
    layer lies.
    """
    return {target.patch_key: _LazyAdapter(layers, layer) for layer, target in targets.items()}


class _LazyAdapter(LoRAAdapter):
    """ComfyUI's adapter of a LoRA file, whose tensors are made when a weight is patched with them.

    Which is when the model is sampled: a slider that moves makes none, and those of all layers
    never lie in memory at once.
    """

    def __init__(self, layers: Mapping[str, Factors], layer: str):
        self.loaded_keys: set[str] = set()
        self._layers = layers
        self._layer = layer

    @property
    def weights(self) -> tuple:
        """As ComfyUI's loader of LoRA files makes them: up, down, alpha, then three kinds of extras
        that are absent.
        """
        factors = self._layers[self._layer]
        return factors.up, factors.down, factors.scale * factors.rank, None, None, None


def apply_changes(
    patcher: ModelPatcher,
    changes: Mapping[str | tuple, LoRAAdapter],
    strength: float,
    start_percent: float,
    end_percent: float,
) -> ModelPatcher:
    """A clone of a MODEL with adapters by the keys of its patches; the MODEL itself at strength 0.

    In force in the whole run it is what Load LoRA makes of a file with them. Else each layer's
    weight gets the change as it is used, at the noise levels of the interval alone. Raises
    ValueError for an interval on a MODEL that a custom loader has quantized.
    """
    if strength == 0:
        return patcher
    if start_percent <= 0 and end_percent >= 1:
        clone = patcher.clone()
        clone.add_patches(changes, strength)
        return clone
    span = interval(patcher, start_percent, end_percent)
    clone = patcher.clone()
    key = f"glassbox_interval_{uuid.uuid4().hex}"
    for target, adapter in changes.items():
        name, part = (target, None) if isinstance(target, str) else (target[0], target[1])
        clone.add_weight_wrapper(
            name, as_used(patcher, name, Change(span, adapter.weights, strength, part))
        )

    def call(
        executor: WrapperExecutor, x: torch.Tensor, t: torch.Tensor, *args: Any, **kwargs: Any
    ) -> Any:
        options = kwargs.get("transformer_options") or (args[3] if len(args) > 3 else {})
        with in_call(partial(span.at, levels_of(options.get("sigmas", t))[0])):
            return executor(x, t, *args, **kwargs)

    def evaluate(
        executor: WrapperExecutor,
        model: BaseModel,
        conds: list,
        x: torch.Tensor,
        timestep: torch.Tensor,
        *args: Any,
    ) -> Any:
        with evaluating(timestep):
            return executor(model, conds, x, timestep, *args)

    clone.add_wrapper_with_key(WrappersMP.CALC_COND_BATCH, key, evaluate)
    clone.add_wrapper_with_key(WrappersMP.APPLY_MODEL, key, call)
    return clone


def apply_to_text(clip: CLIP, changes: Mapping[str | tuple, LoRAAdapter], strength: float) -> CLIP:
    """A clone of a CLIP with adapters by the keys of its patches; the CLIP itself without any."""
    if not changes or strength == 0:
        return clip
    clone = clip.clone()
    clone.add_patches(changes, strength)
    return clone


class Change:
    """A weight function: the weight unchanged, or with up @ down added while ``span`` is active."""

    def __init__(
        self, span: Any, weights: tuple, strength: float, part: tuple[int, int, int] | None
    ):
        up, down, alpha = weights[:3]
        self._span = span
        self._up = up
        self._down = down
        self._part = part
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

    def move_to(self, device: torch.device | None = None) -> int:
        """ComfyUI lets weight functions follow their layer; returns the bytes moved."""
        self._up = self._up.to(device)
        self._down = self._down.to(device)
        return self._up.nbytes + self._down.nbytes
