"""Which weight of a MODEL or CLIP each layer of a LoRA changes, by ComfyUI's own table of the names in LoRA files.

Names are compared in their one canonical form (nodes/common/lora_keys.py), so a layer is found by whichever of the
names that a trainer gives it; a file that is to be read by others takes the names of this table.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import comfy.lora
import comfy.utils

from ..common.lora_keys import TEXT, parse, usual_stem
from ..common.lora_reader import Factors

_NAMED = 3


@dataclass(frozen=True)
class Target:
    """The ``key`` of a weight, or a ``part`` of it as (dimension, first, length); ``name``: that in LoRA files."""

    name: str
    key: str
    part: tuple[int, int, int] | None
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Fit:
    """The layers of a LoRA that a MODEL or CLIP has, with the names that ComfyUI knows them by.

    ``missing``: why each of the others is left out; ``elsewhere``: how many layers the other of the two has.
    """

    layers: dict[str, Factors]
    stems: dict[str, str]
    missing: dict[str, str] = field(default_factory=dict)
    elsewhere: int = 0

    def report(self, owner: str) -> str:
        """A sentence on how many layers the model has and which it has not."""
        count = len(self.layers) + len(self.missing)
        if not self.missing:
            return f"All {count} layers are in the {owner}."
        return f"{len(self.layers)} of {count} layers are in the {owner}; left out: {name_some(self.missing)}."


def name_some(reasons: Mapping[str, str]) -> str:
    """Three names with their reasons, then a count."""
    shown = [f"{name} ({why})" for name, why in list(reasons.items())[:_NAMED]]
    return ", ".join(shown) + (f" and {len(reasons) - _NAMED} more" if len(reasons) > _NAMED else "")


def targets(model, stems: Mapping[str, str], *, of_text: bool = False) -> dict[str, Target]:
    """The targets in a model (BaseModel) or a CLIP's cond_stage_model of layers by their canonical names.

    ``stems``: each layer's name in the file that it comes from, "" where that is not known. It counts before all
    other names: U-Nets of other depths than Stable Diffusion's give one diffusers name to two layers.
    """
    names = (comfy.lora.model_lora_keys_clip if of_text else comfy.lora.model_lora_keys_unet)(model, {})
    table = {name: where for name, where in names.items() if _present(model, where)}
    found = {}
    for layer, stem in stems.items():  # then the usual one: canonical forms of all names of a large model take a second
        if name := next((one for one in (stem, usual_stem(layer)) if one in table), None):
            found[layer] = name
    if len(found) < len(stems):
        for name in table:
            meant = parse(f"{name}.alpha")
            if meant and meant.layer in stems and meant.text == of_text:
                found.setdefault(meant.layer, name)
    return {layer: _target(name, table[name], model) for layer, name in found.items()}


def all_targets(model) -> dict[str, Target]:
    """The targets of every layer name, in canonical form, that LoRA files may have for a model."""
    names = (parse(f"{name}.alpha") for name in comfy.lora.model_lora_keys_unet(model, {}))
    return targets(model, {found.layer: "" for found in names if found and not found.text})


def fit(patcher, layers: Mapping[str, Factors], stems: Mapping[str, str], *, of_text: bool = False) -> Fit:
    """The layers of the network (or of text encoders) that a MODEL (or a CLIP's patcher) has in their sizes.

    ``stems``: as for ``targets``, of some layers. The others are named in the log. Raises ValueError when a MODEL has
    none of them.
    """
    own = {layer: one for layer, one in layers.items() if layer.startswith(TEXT) == of_text}
    found = targets(patcher.model, {layer: stems.get(layer, "") for layer in own}, of_text=of_text)
    missing = {}
    for layer, factors in own.items():
        if layer not in found:
            missing[layer] = "no such layer"
        elif why := mismatch(found[layer], (len(factors.up), factors.down[0].numel())):
            missing[layer] = why
    result = Fit(
        {layer: one for layer, one in own.items() if layer not in missing},
        {layer: target.name for layer, target in found.items() if layer not in missing},
        missing,
        len(layers) - len(own),
    )
    if not result.layers and not of_text:
        raise ValueError("None of the layers of this LoRA is in the model: it is made for another base model.")
    if missing:
        logging.warning(result.report("CLIP" if of_text else "model"))
    return result


def mismatch(target: Target, sizes: Sequence[int]) -> str:
    """Why outputs and inputs do not fit a target; "" when they do."""
    outputs, inputs = target.shape[0], 1
    for side in target.shape[1:]:
        inputs *= side
    if (outputs, inputs) == tuple(sizes):
        return ""
    return f"{sizes[0]} x {sizes[1]} here, {outputs} x {inputs} in the model"


def _present(model, where) -> bool:
    """Whether a model has a weight: the table also names those that other sizes of the network have."""
    try:
        return comfy.utils.get_attr(model, where if isinstance(where, str) else where[0]) is not None
    except AttributeError:
        return False


def _target(name: str, where, model) -> Target:
    weight, part = (where, None) if isinstance(where, str) else (where[0], where[1])
    shape = list(comfy.utils.get_attr(model, weight).shape)
    if part is not None:
        shape[part[0]] = part[2]
    return Target(name, weight, part, tuple(shape))
