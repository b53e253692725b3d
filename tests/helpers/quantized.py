"""A MODEL in the forms in which large models are shared: scaled fp8, mixed precision, and a custom
loader's own.

The scaled and mixed forms are loaded from a state dict as the ComfyUI at hand loads such a file:
older ones have layers for scaled fp8, newer ones (from 0.4 on) read it as mixed precision.
"""

from __future__ import annotations

import copy
import json
from types import SimpleNamespace

import torch
from torch import nn

KINDS = ("plain fp8", "scaled fp8", "mixed precision", "nvfp4", "int8", "custom loader")
_FP8 = torch.float8_e4m3fn
_FORMATS = {"mixed precision": "float8_e4m3fn", "nvfp4": "nvfp4", "int8": "int8_tensorwise"}


def known(kind: str) -> bool:
    """Whether this ComfyUI reads the form."""
    from comfy.quant_ops import QUANT_ALGOS

    return _FORMATS.get(kind, "float8_e4m3fn") in QUANT_ALGOS


@torch.inference_mode()  # as loaders run
def pair(patcher, kind: str) -> tuple:
    """A copy of a MODEL whose matrices are quantized, and one in float32 whose matrices have the
    same values.
    """
    small, exact = _copied(patcher), _copied(patcher)
    networks = [each.model.diffusion_model for each in (small, exact)]
    linears = [
        name for name, module in networks[0].named_modules() if isinstance(module, nn.Linear)
    ]
    stored = {}
    for name in linears:
        module, other = (network.get_submodule(name) for network in networks)
        stored[name], true = _stored(module.weight, kind)
        other.weight = nn.Parameter(true, requires_grad=False)
        if kind in ("plain fp8", "custom loader"):
            _put(module, kind, stored[name])
    if kind not in ("plain fp8", "custom loader"):
        _load(networks[0], stored, kind)
        for name in linears:  # scaled fp8 layers of older hosts have biases in fp8 too
            if (bias := networks[0].get_submodule(name).bias) is not None:
                networks[1].get_submodule(name).bias = nn.Parameter(
                    bias.float(), requires_grad=False
                )
    return _patcher_of(kind, small), exact


#: The most steps from zero that a value of a form can be: 16 of fp8's three bits, 127 of int8, 12
#: halves of nvfp4.
LEVELS = {"int8": 127, "nvfp4": 12}


@torch.inference_mode()
def loaded_weights(patcher, layers: list[str]) -> dict[str, torch.Tensor]:
    """The numbers float32 of some layers as they are in the network once the MODEL is loaded, with
    its LoRAs.
    """
    import comfy.model_management

    comfy.model_management.load_models_gpu([patcher], force_full_load=True)
    found = {}
    for name in layers:
        module = patcher.model.diffusion_model.get_submodule(name)
        weight, scale = module.weight, getattr(module, "scale_weight", None)
        if isinstance(module, _PackedLinear):
            weight = module.true_weight()
        elif hasattr(weight, "_qdata"):
            weight = weight.dequantize()
        found[name] = weight.float().clone() if scale is None else weight.float() * scale
    return found


def _stored(weight: torch.Tensor, kind: str) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """What a file holds of a matrix, by the end of its key, and the numbers that this means."""
    if kind == "nvfp4":
        from comfy.quant_ops import QuantizedTensor

        made = QuantizedTensor.from_float(weight.clone(), "TensorCoreNVFP4Layout")
        params = made._params
        parts = {
            "weight": made._qdata,
            "weight_scale": params.block_scale,
            "weight_scale_2": params.scale,
        }
        return parts, made.dequantize().clone()
    if kind == "int8":
        scale = weight.abs().amax(1, keepdim=True) / 127
        numbers = (weight / scale).round().to(torch.int8)
        return {"weight": numbers, "weight_scale": scale}, numbers * scale
    scale = torch.tensor(1.0) if kind == "plain fp8" else weight.abs().max() / torch.finfo(_FP8).max
    numbers = (weight / scale).to(_FP8)
    return {"weight": numbers, "weight_scale": scale}, numbers.float() * scale


def _load(network: nn.Module, stored: dict[str, dict[str, torch.Tensor]], kind: str) -> None:
    """Give a network this ComfyUI's layers for a form, and load a file in that form into them."""
    import comfy.ops
    import comfy.utils

    state = {
        key: value
        for key, value in network.state_dict().items()
        if key.rpartition(".")[0] not in stored
    }
    for name, parts in stored.items():
        module = network.get_submodule(name)
        parts = parts if module.bias is None else parts | {"bias": module.bias}
        state |= {
            f"{name}.{_old(end) if kind == 'scaled fp8' else end}": value
            for end, value in parts.items()
        }
    metadata = {}
    if kind == "scaled fp8":
        state["scaled_fp8"] = torch.zeros(
            2, dtype=_FP8
        )  # of two numbers: not to be multiplied in fp8
    else:
        layers = {name: {"format": _FORMATS[kind]} for name in stored}
        metadata["_quantization_metadata"] = json.dumps({"format_version": "1.0", "layers": layers})

    config, older = SimpleNamespace(quant_config=None, layer_quant_config=None), {}
    if hasattr(comfy.utils, "convert_old_quants"):
        state, _ = comfy.utils.convert_old_quants(state, "", metadata=metadata)
        config.quant_config = comfy.utils.detect_layer_quantization(state, "")
    elif kind == "scaled fp8":
        older = {"scaled_fp8": state.pop("scaled_fp8").dtype}
    else:
        from comfy.model_detection import detect_layer_quantization

        config.layer_quant_config = detect_layer_quantization(metadata)
    classes = comfy.ops.pick_operations(None, torch.float32, model_config=config, **older)
    for name in stored:
        old = network.get_submodule(name)
        layer = classes.Linear(
            old.in_features, old.out_features, bias=old.bias is not None, dtype=torch.float32
        )
        network.set_submodule(name, layer)
    network.load_state_dict(state)
    network.requires_grad_(False)


def _old(end: str) -> str:
    """The name in scaled fp8 files."""
    return {"weight_scale": "scale_weight"}.get(end, end)


def _put(module: nn.Module, kind: str, stored: dict[str, torch.Tensor]) -> None:
    numbers = stored["weight"]
    if kind == "custom loader":
        module.__class__, module.scale = _PackedLinear, stored["weight_scale"]
        numbers = numbers.view(torch.uint8).as_subclass(PackedTensor)
    module.comfy_cast_weights = True
    module.weight = nn.Parameter(numbers, requires_grad=False)


def model_copy(model):
    """A model with weights of its own and the same configuration, which newer versions of ComfyUI
    cannot copy.
    """
    return copy.deepcopy(model, {id(model.model_config): model.model_config})


def _copied(patcher):
    """A MODEL with weights of its own."""
    clone = patcher.clone()
    clone.model = model_copy(patcher.model)
    for module in clone.model.modules():  # as a loader leaves it: nothing of a run that was before
        if hasattr(module, "weight_function"):
            module.weight_function, module.bias_function = [], []
    clone.backup, clone.object_patches_backup = {}, {}
    return clone


def _patcher_of(kind: str, patcher):
    """The copy in the patcher class of its loader: custom loaders bring their own, which give LoRAs
    to their layers.
    """
    if kind != "custom loader":
        return patcher

    class PackedPatcher(type(patcher)):
        def patch_weight_to_device(self, key, *args, **kwargs):
            path, _, name = key.rpartition(".")
            layer = self.model.get_submodule(path)
            if name == "weight" and isinstance(layer, _PackedLinear):
                layer.patches = self.patches.get(key)
                return None
            return super().patch_weight_to_device(key, *args, **kwargs)

        def unpatch_model(self, *args, **kwargs):
            for layer in self.model.modules():
                if isinstance(layer, _PackedLinear):
                    layer.patches = None
            return super().unpatch_model(*args, **kwargs)

    patcher.__class__ = PackedPatcher
    return patcher


class PackedTensor(torch.Tensor):
    """Bytes that only their own layer can read, as in loaders of GGUF files."""


class _PackedLinear(nn.Linear):
    """Unpacks its weight at every call and, as such loaders' layers do, calls no weight
    functions.
    """

    weight_function = bias_function = ()
    patches = None

    def true_weight(self):
        """The numbers of the weight, with the LoRAs on it."""
        import comfy.lora

        weight = self.weight.as_subclass(torch.Tensor).view(_FP8).float() * self.scale
        return comfy.lora.calculate_weight(self.patches, weight, "") if self.patches else weight

    def forward(self, x):
        weight = self.true_weight()
        return nn.functional.linear(x, weight.to(x), None if self.bias is None else self.bias.to(x))
