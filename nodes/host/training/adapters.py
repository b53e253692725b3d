"""What core's Train LoRA trains: a low-rank adapter for each matrix of a MODEL, a difference for each vector."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import comfy.lora
import comfy.sd
import comfy.utils
import folder_paths
import torch
from comfy.weight_adapter import adapter_maps, adapters
from torch import nn

from ..evaluate import untouched
from .layer_weights import trainable_layers

ALGORITHMS = list(adapter_maps)
NO_LORA = "[None]"
_ALPHA = 1.0
#: Goes before the names of a text encoder's layers in a LoRA file, as ComfyUI's loaders know them.
TEXT_PREFIX = "text_encoders."


@dataclass(frozen=True)
class Adapters:
    """Functions for `train.run`, and their parameters under the names that a LoRA file has."""

    functions: dict[str, nn.Module]
    parameters: dict[str, nn.Parameter]

    def lora(self) -> dict[str, torch.Tensor]:
        """A copy of the parameters as LORA_MODEL."""
        return {name: parameter.detach().clone().cpu() for name, parameter in self.parameters.items()}


class Difference(nn.Module):
    """Adds a trainable vector to a bias or to the scale of a norm."""

    def __init__(self, value: torch.Tensor):
        super().__init__()
        self.value = nn.Parameter(value)

    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        return (weight.to(self.value) + self.value).to(weight.dtype)

    def move_to(self, device) -> int:
        self.to(device=device)
        return self.value.nelement() * self.value.element_size()


def lora_names() -> list[str]:
    """The LoRA files that training can go on from, and the choice of none."""
    return [*folder_paths.get_filename_list("loras"), NO_LORA]


def read_lora(name: str) -> tuple[dict[str, torch.Tensor], int]:
    """The tensors of a LoRA file, and the steps in its name, as in "cat_200_steps_00001_.safetensors".

    Raises ValueError for a file that cannot be read.
    """
    if name == NO_LORA:
        return {}, 0
    count = name.split("_steps_")[0].split("_")[-1]
    known = "_steps_" in name and count.isdigit()
    path = folder_paths.get_full_path_or_raise("loras", name)
    try:
        return comfy.utils.load_torch_file(path), int(count) if known else 0
    except Exception as error:  # a damaged file makes the readers raise nearly anything
        raise ValueError(f"{name} cannot be read ({type(error).__name__}): choose another LoRA.") from None


def create(
    patcher,
    algorithm: str,
    rank: int,
    dtype: torch.dtype,
    seed: int,
    existing: Mapping[str, torch.Tensor],
    alpha: float = 1.0,
    layers: str = "",
    *,
    of_text: bool = False,
) -> Adapters:
    """Adapters for the weights of a MODEL, new ones drawn from the seed, or taken from an existing LoRA.

    ``layers``: comma-separated words; layers with none of them in their name are left alone. Empty takes all.
    ``of_text``: the patcher is that of a CLIP, whose linear layers get adapters without biases. The global generators
    are left as they are. Raises ValueError for a LoRA that fits nothing of the MODEL, and for words that no layer has.
    """
    prefix = TEXT_PREFIX if of_text else ""
    with torch.inference_mode(False), untouched():
        torch.manual_seed(seed)
        names = _lora_names_of(patcher.model, of_text)
        functions: dict[str, nn.Module] = {}
        parameters: dict[str, nn.Parameter] = {}
        used: set[str] = set()
        words = [word.strip() for word in layers.split(",") if word.strip()]
        for layer, kind, weight in _weights(patcher, of_text):
            if words and not any(word in layer for word in words):
                continue
            key = f"{layer}.{kind}"
            called = (prefix + layer, *names.get(key, ()))
            known = [name for name in called if any(k.startswith(f"{name}.") for k in existing)]
            make = _matrix if weight.ndim > 1 else _vector
            function, taken = make(weight, kind, algorithm, rank, alpha, existing, known)
            used |= taken
            functions[key] = function.to(dtype)
            parameters |= dict(_named(prefix + layer, kind, function))
    if not functions:
        raise ValueError(f"No layer of this MODEL has a name with one of {', '.join(words)}: choose other layers.")
    if existing and not used and not of_text:
        raise ValueError("The existing LoRA was made for another model: none of its layers is in this MODEL.")
    return Adapters(functions, parameters)


def applied(patcher, lora: dict[str, torch.Tensor]):
    """The MODEL with a LORA_MODEL at strength 1, as Load LoRA Model applies it."""
    return comfy.sd.load_lora_for_models(patcher, None, lora, 1.0, 0)[0]


def applied_to_text(clip, lora: dict[str, torch.Tensor]):
    """The CLIP with the text encoder's part of a LORA_MODEL at strength 1, as Load LoRA applies it."""
    return comfy.sd.load_lora_for_models(None, clip, lora, 0, 1.0)[1]


def _weights(patcher, of_text: bool) -> Iterator[tuple[str, str, torch.Tensor]]:
    for name, module in trainable_layers(patcher).items():
        if of_text and not isinstance(module, nn.Linear):
            continue
        for kind in ("weight",) if of_text else ("weight", "bias"):
            weight = getattr(module, kind, None)
            if weight is not None:
                yield name, kind, weight


def _lora_names_of(model, of_text: bool) -> dict[str, list[str]]:
    """For each weight the names by which LoRA files call it."""
    names: dict[str, list[str]] = {}
    keys = comfy.lora.model_lora_keys_clip if of_text else comfy.lora.model_lora_keys_unet
    for name, key in keys(model, {}).items():
        if isinstance(key, str):
            names.setdefault(key, []).append(name)
    return names


def _matrix(weight, kind, algorithm, rank, alpha, existing, known) -> tuple[nn.Module, set[str]]:
    for name in known:
        taken: set[str] = set()
        for adapter in adapters:
            found = adapter.load(name, existing, _alpha(existing, name), existing.get(f"{name}.dora_scale"), taken)
            if found is not None:
                return found.to_train(), taken
    return adapter_maps[algorithm].create_train(weight, rank=rank, alpha=alpha), set()


def _vector(weight, kind, algorithm, rank, alpha, existing, known) -> tuple[nn.Module, set[str]]:
    for name in known:
        value = existing.get(f"{name}.{_suffix(kind)}")
        if value is not None and value.shape == weight.shape:
            return Difference(value.clone()), {f"{name}.{_suffix(kind)}"}
    return Difference(torch.zeros(weight.shape)), set()


def _alpha(existing: Mapping[str, torch.Tensor], name: str) -> float:
    """A file without alpha means strength 1: alpha equal to the rank."""
    if f"{name}.alpha" in existing:
        return float(existing[f"{name}.alpha"])
    down = existing.get(f"{name}.lora_down.weight")
    return _ALPHA if down is None else float(down.shape[0])


def _named(layer: str, kind: str, function: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    if isinstance(function, Difference):
        yield f"{layer}.{_suffix(kind)}", function.value
    else:
        yield from ((f"{layer}.{name}", parameter) for name, parameter in function.named_parameters())


def _suffix(kind: str) -> str:
    return "diff" if kind == "weight" else "diff_b"
