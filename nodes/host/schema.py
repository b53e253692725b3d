"""Node schemas that every supported ComfyUI understands, and inputs that many nodes have."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Collection
from typing import Any

from comfy_api.latest import io

_KNOWN = {field.name for field in dataclasses.fields(io.Schema)}


def schema(advanced: Collection[str] = (), **fields: Any) -> io.Schema:
    """``io.Schema`` without the fields that the running ComfyUI does not know yet.

    An unknown field, such as ``search_aliases`` on 0.3.75, raises TypeError there and takes every
    later node of the pack down with it. ``advanced``: inputs that front ends which know the mark
    show on request.
    """
    fields["inputs"] = [
        _as_advanced(field) if field.id in advanced else field for field in fields["inputs"]
    ]
    return io.Schema(**{name: value for name, value in fields.items() if name in _KNOWN})


#: Menus of nodes that share no file of inputs.
CONDITIONING, DEMO, IMAGES, NOISE = (
    f"Glassbox/{menu}" for menu in ("Conditioning", "Demo", "Images", "Noise")
)
#: The largest seed that ComfyUI's samplers take.
SEED_MAX = 0xFFFFFFFFFFFFFFFF


def seed(tooltip: str, default: int = 0, control: bool = True) -> io.Int.Input:
    """The input ``seed``; with ``control`` front ends show beside it what becomes of it after a
    run.
    """
    return io.Int.Input(
        "seed",
        default=default,
        min=0,
        max=SEED_MAX,
        control_after_generate=control or None,
        tooltip=tooltip,
    )


def int_input(
    name: str, default: int, bounds: tuple[int, ...], tooltip: str, **further: Any
) -> io.Int.Input:
    """An integer from a least to a largest value, in steps where ``bounds`` has a third number."""
    return io.Int.Input(name, default=default, tooltip=tooltip, **_bounds(bounds), **further)


def float_input(
    name: str, default: float, bounds: tuple[float, ...], tooltip: str, **further: Any
) -> io.Float.Input:
    """As ``int_input``."""
    return io.Float.Input(name, default=default, tooltip=tooltip, **_bounds(bounds), **further)


#: Of the input ``precision`` of trainers: the values of `precision.Precision`.
PRECISIONS = ("auto", "fp32", "bf16", "fp16")


def precision_input(also: str = "", **further: Any) -> io.Combo.Input:
    """The input ``precision`` of a node that computes gradients; ``also``: a further sentence of
    the tooltip.
    """
    tooltip = (
        "Precision of the model. auto: bf16 where the device multiplies it, else fp32. fp16: for "
        f"GPUs without bf16; the smallest gradients are lost. {also}"
    )
    tooltip = tooltip.strip()
    return io.Combo.Input(
        "precision", options=list(PRECISIONS), default=PRECISIONS[0], tooltip=tooltip, **further
    )


def scheduler_input(tooltip: str) -> io.Combo.Input:
    """One of ComfyUI's schedulers."""
    import comfy.samplers

    options = list(comfy.samplers.SCHEDULER_NAMES)
    return io.Combo.Input("scheduler", options=options, default="normal", tooltip=tooltip)


def _bounds(bounds: tuple) -> dict:
    return dict(zip(("min", "max", "step"), bounds, strict=False))


def later_seed(seed: int, number: int) -> int:
    """The seed so many after another: after the largest one comes 0."""
    return (seed + number) % (SEED_MAX + 1)


def _as_advanced(field: io.Input) -> io.Input:
    marked = copy.copy(field)  # several nodes may share the input
    marked.extra_dict = {
        **field.extra_dict,
        "advanced": True,
    }  # 0.3.75 has no argument for it, newer ones read both
    return marked
