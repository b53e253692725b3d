"""Whether a network's blocks can be computed again: what other packs have put on a MODEL.

This pack's own nodes say by ``network_call.in_call`` what holds during a call, and patches of
attention that come with ComfyUI need nothing but their arguments. A wrapper or hook of another
pack may set a state around the call, which cannot be restored.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from comfy.patcher_extension import WrappersMP
from torch import nn

if TYPE_CHECKING:
    from ..socket_types import ModelPatcher

_OWN = __name__.rpartition(".host.")[0]
_STOCK = ("comfy", "comfy_extras", "comfy_api", "torch")
#: Wrappers that have returned when the gradient is computed; those of whole runs are still there
#: then.
_AROUND_CALLS = (
    WrappersMP.PREDICT_NOISE,
    WrappersMP.CALC_COND_BATCH,
    WrappersMP.APPLY_MODEL,
    WrappersMP.DIFFUSION_MODEL,
)
_FUNCTIONS = ("model_function_wrapper", "sampler_calc_cond_batch_function")
_OVERRIDE = "optimized_attention_override"


def hindrance(patcher: ModelPatcher, conditions: Iterable[Mapping] = ()) -> str:
    """Why a MODEL's blocks cannot be computed again, as a clause; empty where they can.

    ``conditions``: the entries of all conditionings that the network will be called with.
    """
    for name, what in {
        "control": "a ControlNet takes part",
        "hooks": "weights change with the conditioning",
    }.items():
        if any(entry.get(name) is not None for entry in conditions):
            return what
    for place, function in _around_calls(patcher):
        if not _is_of(function, (_OWN, *_STOCK)):
            return f"another pack's {place} acts while the network is called ({_module(function)})"
    for place, function in _inside_blocks(patcher):
        if not _is_of(function, (_OWN, *_STOCK)):
            return f"another pack's {place} acts inside the network ({_module(function)})"
    return ""


def _around_calls(patcher: ModelPatcher) -> Iterator[tuple[str, Any]]:
    """Whatever is called around a call of the network, with a name for it."""
    options = patcher.model_options
    for kept in (patcher.wrappers, options.get("transformer_options", {}).get("wrappers", {})):
        for kind in _AROUND_CALLS:
            for functions in kept.get(kind, {}).values():
                yield from (("wrapper", function) for function in functions)
    for name in _FUNCTIONS:
        if name in options:
            yield "wrapper", options[name]
    for name, patched in patcher.object_patches.items():
        replaces_call = name.startswith("diffusion_model.") or name.endswith("apply_model")
        if replaces_call and callable(patched) and not isinstance(patched, nn.Module):
            yield "patch", patched


def _inside_blocks(patcher: ModelPatcher) -> Iterator[tuple[str, Any]]:
    """Whatever is called inside the network's blocks, with a name for it."""
    options = patcher.model_options.get("transformer_options", {})
    if _OVERRIDE in options:
        yield "attention", options[_OVERRIDE]
    for name, functions in options.get("patches", {}).items():
        if "attn" in name or name == "middle_patch":
            yield from (("patch", function) for function in functions)
    for name, functions in options.get("patches_replace", {}).items():
        if "attn" in name:
            yield from (("patch", function) for function in functions.values())
    for module in patcher.model.diffusion_model.modules():
        for hooks in (module._forward_hooks, module._forward_pre_hooks):
            yield from (("hook", function) for function in hooks.values())


def _is_of(function: Any, packages: tuple[str, ...]) -> bool:
    module = _module(function)
    return any(module == package or module.startswith(f"{package}.") for package in packages)


def _module(function: Any) -> str:
    """The module that a function, or an object's class, is written in."""
    while isinstance(function, functools.partial):
        function = function.func
    return getattr(function, "__module__", None) or type(function).__module__
