"""What the layers of a loaded network compute with while gradients run, chosen for each layer.

Loaders make inference tensors, which no gradient crosses. Plain weights get a second Parameter on
the same memory; quantized, offloaded or patched ones a weight function, for which ComfyUI copies
them. A low-rank change of a plain weight is added to what the layer puts out, x W + (x A) B, so
that no gradient of the whole weight is made.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import comfy.model_patcher
import torch
import torch.nn.functional as F
from comfy.weight_adapter.lora import LoraDiff
from torch import nn

from ..quantized import WeightFunction, as_used

if TYPE_CHECKING:
    from ..socket_types import ModelPatcher

_PLAIN = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
_KINDS = ("weight", "bias")
_CONVOLUTIONS = {nn.Conv1d: F.conv1d, nn.Conv2d: F.conv2d, nn.Conv3d: F.conv3d}


def trainable_layers(patcher: ModelPatcher) -> dict[str, nn.Module]:
    """The modules of a MODEL whose weights functions can change, by name:
    "diffusion_model.out.2".
    """
    return {
        name: module
        for name, module in patcher.model.named_modules()
        if hasattr(module, "weight_function")
    }


class LayerWeights:
    """The weights of a clone of a MODEL or CLIP, changed by ``functions`` (see `trainer.run`).

    Make it before the clone is loaded, enter ``crossed`` afterwards. Raises ValueError for a name
    that is none of its weights, and for a quantized weight that cannot be changed.
    """

    def __init__(self, patcher: ModelPatcher, functions: Mapping[str, WeightFunction]):
        self.patcher = patcher
        self._low_rank: dict[str, WeightFunction] = {}
        self._hooks: dict[str, torch.utils.hooks.RemovableHandle] = {}
        self._shared: list[tuple[dict, str]] = []
        left = dict(functions)
        for name, layer in trainable_layers(patcher).items():
            for kind in _kinds(layer):
                key = f"{name}.{kind}"
                function = as_used(patcher, key, left.pop(key, _unchanged))
                if kind == "weight" and _has_low_rank(layer, function):
                    self._low_rank[key] = function
                elif function is not _unchanged:
                    patcher.add_weight_wrapper(key, function)
        if left:
            raise ValueError(
                f"This MODEL has no weight {next(iter(left))}: it is of another architecture."
            )

    @contextlib.contextmanager
    def crossed(self) -> Iterator[None]:
        """Let gradients cross the weights of the loaded model; what was an inference tensor is one
        again afterwards.
        """
        try:
            self.renew()
            yield
        finally:
            for hook in self._hooks.values():
                hook.remove()
            self._hooks.clear()
            with torch.inference_mode():
                _share(
                    (table, name) for table, name in self._shared if not table[name].is_inference()
                )
            self._shared.clear()

    def renew(self) -> None:
        """Choose for each layer; again after the model was loaded again, as what has moved is an
        inference tensor.
        """
        shared = []
        for path, module in self.patcher.model.named_modules():
            is_layer = hasattr(module, "weight_function")
            plain = is_layer and all(self._is_plain(module, kind) for kind in _kinds(module))
            for kind in _kinds(module) if is_layer else ():
                self._choose(module, kind, f"{path}.{kind}", plain)
            for table in (module._parameters, module._buffers):
                for name, tensor in table.items():
                    copied = is_layer and name in _KINDS and getattr(module, f"{name}_function")
                    if tensor is not None and tensor.is_inference() and not copied:
                        shared.append((table, name))
        _share(shared)
        self._shared += shared

    def remove(self) -> None:
        """Take the functions off the layers: ComfyUI leaves them, and the next partial load would
        use them.
        """
        for layer in trainable_layers(self.patcher).values():
            comfy.model_patcher.wipe_lowvram_weight(layer)

    def _is_plain(self, layer: nn.Module, kind: str) -> bool:
        """Whether a weight lies on the model's device in numbers that gradients may be computed
        with.
        """
        tensor = getattr(layer, kind)
        return (
            type(tensor) in (torch.Tensor, nn.Parameter)
            and tensor.layout == torch.strided
            and tensor.dtype in _PLAIN
            and tensor.device == self.patcher.load_device
            and getattr(layer, "scale_weight", None) is None
        )

    def _choose(self, layer: nn.Module, kind: str, key: str, plain: bool) -> None:
        """A function for a weight that needs one, or a hook for its low-rank change; nothing for a
        plain weight.
        """
        functions = getattr(layer, f"{kind}_function")
        change = self._low_rank.get(key)
        if plain and not functions:
            if change is not None and key not in self._hooks:
                self._move(change)  # ComfyUI moves functions only
                self._hooks[key] = layer.register_forward_hook(_adding(change))
        elif change is not None or not functions:
            function = self._low_rank.pop(key, None) or as_used(self.patcher, key, _unchanged)
            if key in self._hooks:
                self._hooks.pop(key).remove()
            self.patcher.add_weight_wrapper(key, function)
            setattr(layer, f"{kind}_function", [*functions, function])
            self._move(function)

    def _move(self, function: WeightFunction) -> None:
        if (move := getattr(function, "move_to", None)) is not None:
            move(self.patcher.load_device)


def _kinds(layer: nn.Module) -> list[str]:
    return [kind for kind in _KINDS if getattr(layer, kind, None) is not None]


def _unchanged(weight: torch.Tensor) -> torch.Tensor:
    return weight


def _share(places: Iterable[tuple[dict, str]]) -> None:
    """Replace tensors in the tables of modules by ones on the same memory, made in inference mode
    or not, as it is.
    """
    made: dict[
        int, tuple[torch.Tensor, torch.Tensor]
    ] = {}  # by id, so that tied weights stay tied; ids need the old
    for table, name in places:
        old = table[name]
        if id(old) not in made:
            new = torch.empty(0, dtype=old.dtype, device=old.device)
            new.set_(old.untyped_storage(), old.storage_offset(), old.shape, old.stride())
            made[id(old)] = (
                old,
                nn.Parameter(new, requires_grad=False) if isinstance(old, nn.Parameter) else new,
            )
        table[name] = made[id(old)][1]


Factors = tuple[torch.Tensor, torch.Tensor, float]


def low_rank(function: WeightFunction) -> Callable[[], Factors | None] | None:
    """What gives the factors (out, rank), (rank, in) whose product a function adds to a weight, and
    what it is times.

    None for any other function. One says so by a method ``factors``, which may return None while
    nothing is to be added.
    """
    if isinstance(function, LoraDiff) and function.lora_mid is None:
        up, down = (next(side.parameters()) for side in (function.lora_up, function.lora_down))
        scale = float(function.alpha) / function.rank
        return lambda: (up, down, scale)
    return getattr(function, "factors", None)


def _has_low_rank(layer: nn.Module, function: WeightFunction) -> bool:
    return is_addable(layer) and low_rank(function) is not None


def _adding(function: WeightFunction) -> Callable:
    """A forward hook that adds a low-rank change of the weight to what the layer puts out."""
    factors = low_rank(function)
    assert factors is not None

    def add(layer: Any, args: tuple[torch.Tensor, ...], output: torch.Tensor) -> torch.Tensor:
        if (found := factors()) is None:
            return output
        up, down, scale = found
        up = up.to(args[0].dtype)
        down = down.to(args[0].dtype)
        if isinstance(layer, nn.Linear):
            inner = F.linear(args[0], down)
            return torch.addmm(
                output.flatten(0, -2), inner.flatten(0, -2), up.t(), alpha=scale
            ).view(output.shape)
        return output.add(added_output(layer, args[0], down, up), alpha=scale)

    return add


def is_addable(layer: nn.Module) -> bool:
    """Whether a layer is linear in its weight, and each output reads every input channel."""
    return isinstance(layer, (nn.Linear, *_CONVOLUTIONS)) and getattr(layer, "groups", 1) == 1


def added_output(layer: Any, x: torch.Tensor, down: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """What W + B A adds to x W^T for inputs ``x``: (x A^T) B^T, with ``down`` A (rank, in, ...),
    ``up`` B (out, rank).

    A kernel's window counts as inputs: A has the layer's kernel, stride and padding, B is a 1 x 1
    kernel.
    """
    if isinstance(layer, nn.Linear):
        return F.linear(F.linear(x, down.flatten(1)), up.flatten(1))
    kernel = down.view(len(down), x.shape[1], *layer.weight.shape[2:])
    inner = layer._conv_forward(x, kernel, None)
    pointwise = next(call for kind, call in _CONVOLUTIONS.items() if isinstance(layer, kind))
    return pointwise(inner, up.reshape(len(up), len(down), *[1] * (inner.ndim - 2)))
