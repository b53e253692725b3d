"""Updates dW of adapters that are not a plain LoRA (LoHa, LoKr, DoRA, OFT, GLoRA), by ComfyUI's own
adapter classes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from comfy import weight_adapter
from comfy.model_patcher import get_key_weight

from ..common.lora_keys import ALPHA, canonical
from .lora_targets import Target, all_targets
from .quantized import refuse_packed

if TYPE_CHECKING:
    from .socket_types import ModelPatcher

_NAME = "layer"


class ComfyAdapters:
    """Reads adapters of a base MODEL's layers; without one those alone whose update does not depend
    on the weight.

    Raises ValueError for a MODEL that a custom loader has quantized.
    """

    def __init__(self, model: Any = None):
        self._weights = {}
        self._model = model
        if model is None:
            return
        # Not by get_key_patches: it fails on the scales that a quantized layer saves and has not as
        # attributes.
        for name in model.model_state_dict("diffusion_model."):
            if name.endswith(".weight"):
                weight, in_true_numbers = _base_weight(model, name)
                if weight.ndim >= 2:
                    refuse_packed(name, weight)
                    self._weights[canonical(name.removesuffix(".weight"))] = weight, in_true_numbers

    @classmethod
    def of_weight(cls, layer: str, weight: torch.Tensor) -> ComfyAdapters:
        """The same with the weight (out, in, ...) of one layer in place of a MODEL."""
        reader = cls()
        reader._weights[layer] = weight, lambda stored: stored
        return reader

    def shape(
        self, layer: str, tensors: Mapping[str, tuple[int, ...]]
    ) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
        """Inputs (in, ...) and outputs (out,) of a layer, from the shapes of its tensors; None
        where they do not say.

        Those of LoHa and LoKr say it for linear layers and for kernels with a Tucker core.
        """
        if self._knows(layer):
            weight, _ = self._weights[layer]
            return tuple(weight.shape[1:]), (weight.shape[0],)
        if {"dora_scale", "oft_blocks", "rescale", "a1.weight", "set_weight"} & set(tensors):
            return None
        if "hada_w1_a" in tensors:
            return _product(tensors, "hada_w1_a", "hada_w1_b", "hada_t1")
        if "lokr_w1" in tensors or "lokr_w1_a" in tensors:
            first = _product(
                tensors, "lokr_w1_a", second="lokr_w1_b", core="", whole=tensors.get("lokr_w1")
            )
            second = _product(
                tensors,
                "lokr_w2_a",
                second="lokr_w2_b",
                core="lokr_t2",
                whole=tensors.get("lokr_w2"),
            )
            return (first[0][0] * second[0][0], *second[0][1:]), (first[1][0] * second[1][0],)
        return None

    def _knows(self, layer: str) -> bool:
        """Whether the MODEL has a weight of this name, or a part of one by another name of its
        layers.
        """
        if layer not in self._weights and self._others:
            target = self._others.get(layer)
            if target is not None:
                stored, in_true_numbers = _base_weight(self._model, target.key)
                refuse_packed(target.key, stored)
                weight = in_true_numbers(stored.detach()).narrow(
                    *(target.part or (0, 0, len(stored)))
                )
                self._weights[layer] = weight, lambda same: same
        return layer in self._weights

    @cached_property
    def _others(self) -> dict[str, Target]:
        return all_targets(self._model.model) if self._model is not None else {}

    def update(self, layer: str, tensors: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """dW float32 (out, in, ...) of a layer; raises ValueError where ComfyUI cannot make it."""
        shape = self.shape(layer, {part: tuple(value.shape) for part, value in tensors.items()})
        if shape is None:
            raise ValueError(f"needs the base model for {layer}: connect model.")
        if layer in self._weights:
            stored, in_true_numbers = self._weights[layer]
            weight = in_true_numbers(stored.detach()).cpu().float()
        else:
            weight = torch.zeros(shape[1][0], *shape[0])
        if "set_weight" in tensors:
            return tensors["set_weight"].float() - weight
        named = {f"{_NAME}.{part}": value for part, value in tensors.items() if part != ALPHA}
        alpha = float(tensors[ALPHA]) if ALPHA in tensors else None
        scale = tensors.get("dora_scale")
        if scale is not None:
            scale = scale.reshape(-1, *[1] * (weight.ndim - 1)) if scale.ndim == 1 else scale
        for kind in weight_adapter.adapters:
            if (adapter := kind.load(_NAME, named, alpha, scale, set())) is not None:
                break
        else:
            raise ValueError(
                f"has an adapter of {layer} that ComfyUI does not read: convert it to a LoRA first."
            )
        changed = adapter.calculate_weight(
            weight.clone(),
            _NAME,
            strength=1.0,
            strength_model=1.0,
            offset=None,
            function=lambda change: change,
            original_weight=weight,
        )
        if torch.equal(changed, weight):  # ComfyUI logs what fails, and gives the weight back
            raise ValueError(f"changes nothing in {layer}, or does not fit it: remove it.")
        return changed - weight


def _base_weight(
    patcher: ModelPatcher, name: str
) -> tuple[torch.Tensor, Callable[[torch.Tensor], torch.Tensor]]:
    """A weight as it is stored, without the LoRAs that may lie on it in the network, and what makes
    true numbers.
    """
    weight, _, convert = get_key_weight(patcher.model, name)
    if name in patcher.backup:
        weight, _ = patcher.backup[name]
    if name in patcher.hook_backup:
        weight, _ = patcher.hook_backup[name]
    return weight, convert or (lambda stored: stored)


def _product(
    tensors: Mapping, first: str, second: str, core: str, whole: tuple[int, ...] | None = None
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Inputs and outputs of a matrix that is given whole, as a product, or as a kernel with a
    Tucker core.
    """
    if whole is not None:
        return tuple(whole[1:]), whole[:1]
    a = tensors[first]
    b = tensors[second]
    if core in tensors:
        return (b[1], *tensors[core][2:]), (a[1],)
    return (b[1],), (a[0],)
