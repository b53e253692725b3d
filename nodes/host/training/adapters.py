"""What core's Train LoRA trains: a low-rank adapter for each matrix of a MODEL, a difference for
each vector.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import comfy.sd
import folder_paths
import torch
from comfy.weight_adapter import adapter_maps, adapters
from torch import nn

from ...common.lora_keys import ALPHA, DOWN, TEXT, UP
from ...common.lora_reader import FileParts, LayerParts, adapter_parts, read_parts
from ..adapter_updates import ComfyAdapters
from ..evaluate import untouched
from ..folders import lora_path
from ..lora_targets import Target, mismatch, name_some, targets
from .layer_weights import trainable_layers

if TYPE_CHECKING:
    from ..socket_types import CLIP, ModelPatcher

ALGORITHMS = list(adapter_maps)
NO_LORA = "[None]"
_SAME_UPDATE = 1e-3  # relative: what a file in 16 bits may lose against its adapter in the trainer
_VECTORS = ("diff", "w_norm"), ("diff_b", "b_norm")
#: Goes before the names of a text encoder's layers in a LoRA file, as ComfyUI's loaders know them.
TEXT_PREFIX = "text_encoders."


@dataclass(frozen=True)
class Adapters:
    """Functions for `train.run`, and their parameters under the names that a LoRA file has.

    ``report``: which layers of an existing LoRA are continued, which are new, and why others are
    left out.
    """

    functions: dict[str, nn.Module]
    parameters: dict[str, nn.Parameter]
    report: str = ""

    def lora(self) -> dict[str, torch.Tensor]:
        """A copy of the parameters as LORA_MODEL."""
        return {
            name: parameter.detach().clone().cpu() for name, parameter in self.parameters.items()
        }


class Difference(nn.Module):
    """Adds a trainable vector to a bias or to the scale of a norm."""

    def __init__(self, value: torch.Tensor):
        super().__init__()
        self.value = nn.Parameter(value)

    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        return (weight.to(self.value) + self.value).to(weight.dtype)

    def move_to(self, device: torch.device) -> int:
        self.to(device=device)
        return self.value.nelement() * self.value.element_size()


def lora_names() -> list[str]:
    """The LoRA files that training can go on from, and the choice of none."""
    return [*folder_paths.get_filename_list("loras"), NO_LORA]


def read_lora(name: str) -> tuple[FileParts, int]:
    """What a LoRA file holds, and the steps in its name, as in "cat_200_steps_00001_.safetensors".

    Raises ValueError for a file that cannot be read.
    """
    if name == NO_LORA:
        return FileParts(), 0
    count = name.split("_steps_")[0].split("_")[-1]
    known = "_steps_" in name and count.isdigit()
    return read_parts(lora_path(name)), int(count) if known else 0


def create(
    patcher: ModelPatcher,
    algorithm: str,
    rank: int,
    dtype: torch.dtype,
    seed: int,
    existing: FileParts | None,
    alpha: float = 1.0,
    layers: str = "",
    *,
    of_text: bool = False,
) -> Adapters:
    """Adapters for the weights of a MODEL, new ones drawn from the seed, or taken from an existing
    LoRA.

    ``layers``: comma-separated words; layers with none of them in their name are left alone. Empty
    takes all. ``of_text``: the patcher is that of a CLIP, whose linear layers get adapters without
    biases. The global generators are left as they are. Raises ValueError for a LoRA that fits
    nothing of the MODEL or that cannot be continued as it is, and for words that no layer has.
    """
    prefix = TEXT_PREFIX if of_text else ""
    with torch.inference_mode(False), untouched():
        torch.manual_seed(seed)
        start = _Start(patcher, existing or FileParts(), of_text)
        functions: dict[str, nn.Module] = {}
        parameters: dict[str, nn.Parameter] = {}
        words = [word.strip() for word in layers.split(",") if word.strip()]
        for layer, kind, weight in _weights(patcher, of_text):
            if words and not any(word in layer for word in words):
                continue
            function = start.adapter(f"{layer}.{kind}", weight)
            if function is None and weight.ndim > 1:
                function = adapter_maps[algorithm].create_train(weight, rank=rank, alpha=alpha)
            elif function is None:
                function = Difference(torch.zeros(weight.shape))
            functions[f"{layer}.{kind}"] = function.to(dtype)
            parameters |= dict(_named(prefix + layer, kind, function))
    if not functions:
        raise ValueError(
            f"No layer of this MODEL has a name with one of {', '.join(words)}: choose other "
            "layers."
        )
    return Adapters(functions, parameters, start.report(len(functions)) if existing else "")


class _Start:
    """The adapters in which training goes on from what a file holds of the layers of a MODEL or
    CLIP.
    """

    def __init__(self, patcher: ModelPatcher, existing: FileParts, of_text: bool):
        self._patcher = patcher
        self._file = existing
        self._of_text = of_text
        mine = existing.text if of_text else existing.layers
        rest = {
            layer: one for layer, one in existing.rest.items() if layer.startswith(TEXT) == of_text
        }
        everything = {layer: one.stem for layer, one in {**mine, **rest}.items()}
        self._targets = targets(patcher.model, everything, of_text=of_text) if everything else {}
        if everything and not self._targets and not of_text:
            raise ValueError(
                "The existing LoRA was made for another model: none of its layers is in this MODEL."
            )
        self._left_out = {
            layer: "no such layer" for layer in everything if layer not in self._targets
        }
        self._matrices: dict[str, list[tuple[str, Target, LayerParts]]] = {}
        self._vectors: dict[str, tuple[str, torch.Tensor]] = {}
        for layer, one in mine.items():
            if layer in self._targets and set(one.parts) - {ALPHA}:
                self._matrices.setdefault(self._targets[layer].key, []).append(
                    (layer, self._targets[layer], one)
                )
        for layer, one in rest.items():
            if layer in self._targets:
                self._sort_vectors(layer, self._targets[layer].key, one)
        self._used: set[str] = set()
        self._continued = 0

    def adapter(self, key: str, weight: torch.Tensor) -> nn.Module | None:
        """The trainable form of what the file has of a weight; None where it has nothing."""
        if key in self._vectors:
            layer, value = self._vectors[key]
            if value.shape != weight.shape:
                raise ValueError(
                    f"The existing LoRA has {tuple(value.shape)} numbers for {key} and this MODEL "
                    f"{tuple(weight.shape)}: it is made for another base model."
                )
            self._used.add(key)
            self._continued += 1
            return Difference(value.float().clone())
        found = self._matrices.get(key, [])
        for layer, target, one in found:
            if one.kind == "LoRA" and (
                why := mismatch(target, (len(one.parts[UP]), one.parts[DOWN][0].numel()))
            ):
                raise ValueError(
                    f"The existing LoRA has {layer} of {why}: it is made for another base model."
                )
        self._used |= {layer for layer, _, _ in found}
        if not found:
            return None
        self._continued += 1
        if all(one.kind == "LoRA" for _, _, one in found):
            return self._low_rank(found, weight)
        if len(found) == 1 and found[0][1].part is None:
            return self._other(*found[0], weight)
        layer, _, one = next(entry for entry in found if entry[2].kind != "LoRA")
        raise ValueError(_cannot(layer, one.kind))

    def report(self, weights: int) -> str:
        """A sentence each for layers that are continued, that are new, and that are left out."""
        trained = "not among the layers that are trained"
        beyond = {
            layer: trained
            for entries in self._matrices.values()
            for layer, _, _ in entries
            if layer not in self._used
        }
        beyond |= {key: trained for key in self._vectors if key not in self._used}
        left_out = {**self._left_out, **beyond}
        what = "text encoder weights" if self._of_text else "weights"
        return (
            f"Existing LoRA: {self._continued} {what} go on from it, {weights - self._continued} "
            f"are new{f'; left out: {name_some(left_out)}' if left_out else ''}."
        )

    def _sort_vectors(self, layer: str, weight: str, one: LayerParts) -> None:
        bias = f"{weight.removesuffix('.weight')}.bias"
        for names, key in zip(_VECTORS, (weight, bias), strict=True):
            for name in names:
                if name in one.parts:
                    self._vectors[key] = layer, one.parts[name]
        if "set_weight" in one.parts:
            raise ValueError(_cannot(layer, "replaced weight"))

    def _low_rank(
        self, found: list[tuple[str, Target, LayerParts]], weight: torch.Tensor
    ) -> nn.Module:
        """One LoRA of a weight; layers that are parts of it, such as q, k and v, side by side,
        ranks added up.
        """
        ups = []
        downs = []
        for layer, target, one in found:
            up = one.parts[UP].float().flatten(1)
            down = one.parts[DOWN].float().flatten(1)
            scale = self._file.scale(layer, one.parts)
            if target.part is not None:
                dimension, first, length = target.part
                if dimension != 0:
                    raise ValueError(_cannot(layer, "LoRA of some inputs"))
                whole = up.new_zeros(len(weight), up.shape[1])
                whole[first : first + length] = up
                up = whole
            ups.append(up if len(found) == 1 else scale * up)
            downs.append(down)
        up = torch.cat(ups, 1)
        down = torch.cat(downs)
        strength = scale * len(down) if len(found) == 1 else float(len(down))
        tensors = {"x.lora_up.weight": up.clone(), "x.lora_down.weight": down.clone()}
        return adapter_maps["LoRA"].load("x", tensors, strength, None, set()).to_train()

    def _other(
        self, layer: str, target: Target, one: LayerParts, weight: torch.Tensor
    ) -> nn.Module:
        """An adapter of another kind, if ComfyUI trains it and gives the file's change in it at
        once.
        """
        if one.kind == "diff":
            if one.parts["diff"].shape != weight.shape:
                raise ValueError(
                    f"The existing LoRA has {layer} of another size: it is made for another base "
                    "model."
                )
            return Difference(one.parts["diff"].float().clone())
        parts = adapter_parts(layer, one.parts, self._file.config)
        named = {name: value.float().clone() for name, value in parts.items()}
        forms = [named]
        if "lokr_w2" in named and named["lokr_w2"].ndim > 2:
            # older trainers' product takes a kernel's window among the inputs
            forms.append({**named, "lokr_w2": named["lokr_w2"].flatten(1)})
        for form in forms:
            function = _for_training(one.kind, form)
            if function is not None and _is_same(function, layer, weight, form):
                return function
        raise ValueError(_cannot(layer, one.kind))


def _for_training(kind: str, named: dict[str, torch.Tensor]) -> nn.Module | None:
    """ComfyUI's adapter for training with these tensors; None where it trains no such kind."""
    tensors = {f"x.{name}": value for name, value in named.items()}
    strength = _strength(kind, named.get(ALPHA), named)
    for adapter in adapters if kind in adapter_maps else ():
        loaded = adapter.load("x", tensors, strength, dora_scale=None, loaded_keys=set())
        if loaded is None:
            continue
        try:
            return loaded.to_train()
        except (ValueError, RuntimeError, TypeError, AttributeError):
            return None
    return None


def _is_same(
    function: nn.Module, layer: str, weight: torch.Tensor, named: dict[str, torch.Tensor]
) -> bool:
    """Whether an adapter for training changes a weight as the file's tensors do."""
    start = weight.detach().float()
    try:
        before = ComfyAdapters.of_weight(layer, weight).update(layer, named)
        change = function(start.clone()).detach() - start
        error = float((change - before.to(change)).norm())
    except (ValueError, RuntimeError, TypeError, AttributeError):
        return False
    return error <= _SAME_UPDATE * float(before.norm())


def _cannot(layer: str, kind: str) -> str:
    return (
        f"Training cannot go on from {layer}, which is of the kind {kind}: use a LoRA, or a LoHa, "
        "LoKr or OFT as this node writes them."
    )


def _strength(kind: str, alpha: torch.Tensor | None, parts: Mapping[str, torch.Tensor]) -> float:
    """The alpha with which the trainer's adapter has the strength of a file, which may have
    none.
    """
    if alpha is not None:
        return float(alpha)
    inner = ("hada_w1_b", "lokr_w2_b", "lokr_w1_b")
    return (
        0.0
        if kind == "OFT"
        else next((float(len(parts[name])) for name in inner if name in parts), 1.0)
    )


def applied(patcher: ModelPatcher, lora: dict[str, torch.Tensor]) -> ModelPatcher:
    """The MODEL with a LORA_MODEL at strength 1, as Load LoRA Model applies it."""
    return comfy.sd.load_lora_for_models(patcher, None, lora, 1.0, 0)[0]


def applied_to_text(clip: CLIP, lora: dict[str, torch.Tensor]) -> CLIP:
    """The CLIP with the text encoder's part of a LORA_MODEL at strength 1, as Load LoRA applies
    it.
    """
    return comfy.sd.load_lora_for_models(None, clip, lora, 0, 1.0)[1]


def _weights(patcher: ModelPatcher, of_text: bool) -> Iterator[tuple[str, str, torch.Tensor]]:
    for name, module in trainable_layers(patcher).items():
        if of_text and not isinstance(module, nn.Linear):
            continue
        for kind in ("weight",) if of_text else ("weight", "bias"):
            weight = getattr(module, kind, None)
            if weight is not None:
                yield name, kind, weight


def _named(layer: str, kind: str, function: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    if isinstance(function, Difference):
        yield f"{layer}.{_suffix(kind)}", function.value
    else:
        yield from (
            (f"{layer}.{name}", parameter) for name, parameter in function.named_parameters()
        )


def _suffix(kind: str) -> str:
    return "diff" if kind == "weight" else "diff_b"
