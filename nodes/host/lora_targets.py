"""Which weight of a MODEL or CLIP each layer of a LoRA changes, by ComfyUI's own table of the names
in LoRA files.

Names are compared in their one canonical form (nodes/common/lora_keys.py), so a layer is found by
whichever of the names that a trainer gives it; a file that is to be read by others takes the names
of this table.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import comfy.lora
import comfy.utils
from torch import nn

from ..common.lora_keys import TEXT, parse, usual_stem
from ..common.lora_reader import Factors

if TYPE_CHECKING:
    from .socket_types import ModelPatcher

_NAMED = 3


@dataclass(frozen=True)
class Target:
    """The ``key`` of a weight, or a ``part`` of it as (dimension, first, length); ``name``: that in
    LoRA files.

    ``patch_key``: what ComfyUI's ``add_patches`` calls it: the key, or the key with the part and
    what follows it.
    """

    name: str
    key: str
    part: tuple[int, int, int] | None
    shape: tuple[int, ...]
    patch_key: str | tuple


@dataclass(frozen=True)
class Fit:
    """Which layers of a LoRA a MODEL or CLIP has, and where.

    ``missing``: why each of the others is left out; ``elsewhere``: how many layers the other of the
    two has.
    """

    targets: dict[str, Target]
    missing: dict[str, str] = field(default_factory=dict)
    elsewhere: int = 0

    @property
    def stems(self) -> dict[str, str]:
        """The names of the layers that ComfyUI knows."""
        return {layer: target.name for layer, target in self.targets.items()}

    def report(self, owner: str) -> str:
        """A sentence on how many layers the model has and which it has not."""
        count = len(self.targets) + len(self.missing)
        if not self.missing:
            return f"All {count} layers are in the {owner}."
        return (
            f"{len(self.targets)} of {count} layers are in the {owner}; left out: "
            f"{name_some(self.missing)}."
        )


def name_some(reasons: Mapping[str, str]) -> str:
    """Three names with their reasons, then a count."""
    shown = [f"{name} ({why})" for name, why in list(reasons.items())[:_NAMED]]
    return ", ".join(shown) + (
        f" and {len(reasons) - _NAMED} more" if len(reasons) > _NAMED else ""
    )


def targets(
    model: nn.Module, stems: Mapping[str, str], *, of_text: bool = False
) -> dict[str, Target]:
    """The targets in a model (BaseModel) or a CLIP's cond_stage_model of layers by their canonical
    names.

    ``stems``: each layer's name in the file that it comes from, "" where that is not known. It
    counts before all other names: U-Nets of other depths than Stable Diffusion's give one diffusers
    name to two layers.
    """
    table = _NameTable.of(model, of_text)
    result = {}
    for layer, stem in stems.items():
        name = next((name for name in (stem, usual_stem(layer)) if _has(model, table, name)), None)
        if name is None:  # canonical forms of all names of a large model take a second
            name = next(
                (name for name in table.canonical.get(layer, ()) if _has(model, table, name)), None
            )
        if name is not None:
            result[layer] = _target(name, table.names[name], model)
    return result


def all_targets(model: nn.Module) -> dict[str, Target]:
    """The targets of every layer name, in canonical form, that LoRA files may have for a model."""
    return targets(model, dict.fromkeys(_NameTable.of(model, of_text=False).canonical, ""))


@dataclass(frozen=True)
class _NameTable:
    """ComfyUI's table of a model: the key of a weight, or (key, part, ...), by each of its names in
    LoRA files.

    It also names weights that other sizes of the network have. ``modules``: what the model was made
    of at that time.
    """

    names: dict[str, str | tuple]
    of_text: bool
    modules: int

    @classmethod
    def of(cls, model: nn.Module, of_text: bool) -> _NameTable:
        """The table of a model, made once as long as its modules and their parameters stay the
        same.
        """
        tables = _TABLES.setdefault(model, {})
        modules = _fingerprint(model)
        if of_text not in tables or tables[of_text].modules != modules:
            make = comfy.lora.model_lora_keys_clip if of_text else comfy.lora.model_lora_keys_unet
            tables[of_text] = cls(make(model, {}), of_text, modules)
        return tables[of_text]

    @cached_property
    def canonical(self) -> dict[str, list[str]]:
        """The names of each layer in canonical form, in the table's order."""
        result: dict[str, list[str]] = {}
        for name in self.names:
            meant = parse(f"{name}.alpha")
            if meant and meant.text == self.of_text:
                result.setdefault(meant.layer, []).append(name)
        return result


_TABLES: weakref.WeakKeyDictionary[nn.Module, dict[bool, _NameTable]] = weakref.WeakKeyDictionary()


def _fingerprint(model: nn.Module) -> int:
    """A number that changes when modules or parameters of a model come or go."""
    return hash(tuple((id(module), *module._parameters) for module in model.modules()))


def _has(model: nn.Module, table: _NameTable, name: str) -> bool:
    return name in table.names and _present(model, table.names[name])


#: Outputs and inputs of layers by canonical name; a kernel's window counts as inputs.
Sizes = Mapping[str, tuple[int, int]]


def sizes_of(layers: Mapping[str, Factors]) -> dict[str, tuple[int, int]]:
    """The sizes of low-rank factors."""
    return {layer: (len(factors.up), factors.down[0].numel()) for layer, factors in layers.items()}


def fit(
    patcher: ModelPatcher,
    sizes: Sizes,
    stems: Mapping[str, str],
    *,
    of_text: bool = False,
    in_use: bool = False,
) -> Fit:
    """The layers of the network (or of text encoders) that a MODEL (or a CLIP's patcher) has in
    these sizes; ``in_use``: of these, the layers whose weights can change while they are used.

    ``stems``: as for ``targets``, of some layers. The others are named in the log. Raises
    ValueError when a MODEL has none of them.
    """
    sides = {layer: size for layer, size in sizes.items() if layer.startswith(TEXT) == of_text}
    names = {layer: stems.get(layer, "") for layer in sides}
    fitting = {}
    missing = {}
    for layer, target in targets(patcher.model, names, of_text=of_text).items():
        if why := mismatch(target, sides[layer]):
            missing[layer] = why
        elif in_use and not changes_in_use(patcher.model, target):
            missing[layer] = "its weight cannot change while it is used"
        else:
            fitting[layer] = target
    for layer in sides.keys() - fitting.keys() - missing.keys():
        missing[layer] = "no such layer"
    missing = {layer: missing[layer] for layer in sides if layer in missing}
    result = Fit(fitting, missing, len(sizes) - len(sides))
    if not fitting and not of_text:
        raise ValueError(
            "None of the layers of this LoRA is in the model: it is made for another base model."
        )
    if missing:
        logging.warning(result.report("CLIP" if of_text else "model"))
    return result


def changes_in_use(model: nn.Module, target: Target) -> bool:
    """Whether the layer of a target is an operation of ComfyUI's, which computes with a changed
    weight; embeddings and plain parameters of some networks are none.
    """
    path = target.key.rpartition(".")[0]
    return hasattr(model.get_submodule(path), "weight_function")


#: Names of base models by the class of ComfyUI's configuration, where they are other ones.
_BASES = {
    "SD15": "SD1.x", "SD15_instructpix2pix": "SD1.x", "SD20": "SD2.x", "SD21UnclipL": "SD2.x",
    "SD21UnclipH": "SD2.x", "SDXL_instructpix2pix": "SDXL", "FluxSchnell": "Flux",
    "FluxInpaint": "Flux", "Flux2": "FLUX.2", "ZImage": "Z-Image", "QwenImage": "Qwen-Image",
    "Lumina2": "Lumina 2", "LTXV": "LTX-Video", "LTXAV": "LTX-2", "Krea2": "Krea 2",
    "MiniMaxH3": "MiniMax H3", "MageFlow": "Mage-Flow", "PixArtAlpha": "PixArt",
    "PixArtSigma": "PixArt",
}  # fmt: skip


def base_name(patcher: ModelPatcher) -> str:
    """The name of a MODEL's architecture, as ``common.lora_keys.base_of`` has it for layers."""
    kind = type(patcher.model.model_config).__name__
    return _BASES.get(kind, "Wan" if kind.startswith("WAN2") else kind)


def mismatch(target: Target, sizes: Sequence[int]) -> str:
    """Why outputs and inputs do not fit a target; "" when they do."""
    outputs = target.shape[0]
    inputs = 1
    for side in target.shape[1:]:
        inputs *= side
    if (outputs, inputs) == tuple(sizes):
        return ""
    return f"{sizes[0]} x {sizes[1]} here, {outputs} x {inputs} in the model"


def _present(model: nn.Module, where: Any) -> bool:
    """Whether a model has a weight, and in it the part: the table also names those that other sizes
    of the network have, and cuts grouped keys and values (Lumina 2) as if they were none.
    """
    key, part = (where, None) if isinstance(where, str) else (where[0], where[1])
    try:
        weight = comfy.utils.get_attr(model, key)
    except AttributeError:
        return False
    if weight is None or part is None:
        return weight is not None
    dimension, first, length = part
    return first + length <= weight.shape[dimension]


def _target(name: str, where: Any, model: nn.Module) -> Target:
    weight, part = (where, None) if isinstance(where, str) else (where[0], where[1])
    shape = list(comfy.utils.get_attr(model, weight).shape)
    if part is not None:
        shape[part[0]] = part[2]
    return Target(name=name, key=weight, part=part, shape=tuple(shape), patch_key=where)
