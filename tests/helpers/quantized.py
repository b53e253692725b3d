"""A MODEL in the forms in which large models are shared: scaled fp8, mixed precision, and a custom loader's own."""

from __future__ import annotations

import copy

import torch
from torch import nn

KINDS = ("plain fp8", "scaled fp8", "mixed precision", "custom loader")
_FP8 = torch.float8_e4m3fn


@torch.inference_mode()  # as loaders run
def pair(patcher, kind: str) -> tuple:
    """A copy of a MODEL whose matrices are quantized, and one in float32 whose matrices have the same values."""
    import comfy.ops

    small, exact = _copied(patcher), _copied(patcher)
    linears = [name for name, module in small.model.diffusion_model.named_modules() if isinstance(module, nn.Linear)]
    classes = {
        "scaled fp8": lambda: comfy.ops.scaled_fp8_ops().Linear,
        "mixed precision": lambda: comfy.ops.mixed_precision_ops({}, torch.float32, True).Linear,
        "custom loader": lambda: _PackedLinear,
    }
    layer_class = classes[kind]() if kind in classes else None
    for name in linears:
        module, other = (each.model.diffusion_model.get_submodule(name) for each in (small, exact))
        scale = torch.tensor(1.0) if kind == "plain fp8" else module.weight.abs().max() / torch.finfo(_FP8).max
        numbers = (module.weight / scale).to(_FP8)
        other.weight = nn.Parameter(numbers.float() * scale, requires_grad=False)
        if layer_class is not None:
            module.__class__ = layer_class
        module.comfy_cast_weights = True
        _STORE[kind](module, numbers, scale)
    return _patcher_of(kind, small), exact


def model_copy(model):
    """A model with weights of its own and the same configuration, which newer versions of ComfyUI cannot copy."""
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
    """The copy in the patcher class of its loader: custom loaders bring their own, which give LoRAs to their layers."""
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


def _plain(module, numbers, scale):
    module.weight = nn.Parameter(numbers, requires_grad=False)


def _scaled(module, numbers, scale):
    module.scale_weight, module.scale_input = nn.Parameter(scale, requires_grad=False), None
    _plain(module, numbers, scale)


def _mixed(module, numbers, scale):
    from comfy.quant_ops import QuantizedTensor

    module.layout_type, module.tensor_class, module._full_precision_mm = "TensorCoreFP8Layout", None, True
    layout = {"scale": scale, "orig_dtype": torch.float32, "block_size": None}
    module.weight = nn.Parameter(QuantizedTensor(numbers, module.layout_type, layout), requires_grad=False)


def _packed(module, numbers, scale):
    module.scale = scale
    module.weight = nn.Parameter(numbers.view(torch.uint8).as_subclass(PackedTensor), requires_grad=False)


_STORE = {"plain fp8": _plain, "scaled fp8": _scaled, "mixed precision": _mixed, "custom loader": _packed}


class PackedTensor(torch.Tensor):
    """Bytes that only their own layer can read, as in loaders of GGUF files."""


class _PackedLinear(nn.Linear):
    """Unpacks its weight at every call and, as such loaders' layers do, calls no weight functions."""

    weight_function = bias_function = ()
    patches = None

    def forward(self, x):
        import comfy.lora

        weight = self.weight.as_subclass(torch.Tensor).view(_FP8).float() * self.scale
        if self.patches:
            weight = comfy.lora.calculate_weight(self.patches, weight, "")
        return nn.functional.linear(x, weight.to(x), None if self.bias is None else self.bias.to(x))
