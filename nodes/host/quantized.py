"""Weights that are stored in a quantized form, and functions that change a weight as it is used."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import comfy.model_management
import torch
from comfy.quant_ops import QuantizedTensor
from torch import nn

if TYPE_CHECKING:
    from .socket_types import ModelPatcher

WeightFunction = Callable[[torch.Tensor], torch.Tensor]


def as_used(patcher: ModelPatcher, name: str, function: WeightFunction) -> WeightFunction:
    """What ComfyUI is given so that ``function`` gets a weight ("diffusion_model.out.2.weight") in
    its true numbers.

    ComfyUI dequantizes its own tensors before it calls functions, and multiplies in full precision
    then. Newer versions read scaled fp8 as such tensors; the layers of older ones multiply by their
    scale afterwards. Raises ValueError for the forms of custom loaders (GGUF), whose layers call no
    functions, and for layers of older versions that multiply fp8 by fp8, whose result has no
    gradient and no room for a small change.
    """
    path, _, kind = name.rpartition(".")
    layer = patcher.model.get_submodule(path)
    weight = getattr(layer, kind)
    scale = getattr(layer, "scale_weight", None)
    refuse_packed(name, weight)
    scaled_input = getattr(layer, "scale_input", None) is not None
    if scaled_input and comfy.model_management.supports_fp8_compute(patcher.load_device):
        raise _refusal(name)
    return function if scale is None or kind != "weight" else _Scaled(function, float(scale))


def refuse_packed(name: str, weight: torch.Tensor) -> None:
    """Raise ValueError for a weight in a form that ComfyUI itself does not read."""
    plain = type(weight) in (torch.Tensor, nn.Parameter) and weight.is_floating_point()
    if not plain and not isinstance(weight, QuantizedTensor):
        raise _refusal(name)


def _refusal(name: str) -> ValueError:
    return ValueError(
        f"This MODEL is quantized ({name}) in a form whose weights cannot be changed while they "
        "are used: load the fp16, bf16 or plain fp8 file of the model."
    )


class _Scaled:
    """A weight function between the numbers of scaled fp8 and the true ones."""

    def __init__(self, function: WeightFunction, scale: float):
        self._function = function
        self._scale = scale

    def __call__(self, weight: torch.Tensor) -> torch.Tensor:
        true = weight * self._scale
        changed = self._function(true)
        return weight if changed is true else changed / self._scale

    def move_to(self, device: torch.device | None = None) -> int:
        """ComfyUI lets weight functions follow their layer; returns the bytes moved."""
        move = getattr(self._function, "move_to", None)
        return move(device=device) if move else 0
