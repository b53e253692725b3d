"""The check of every input against its node's schema, before ``execute``."""

from __future__ import annotations

import contextlib
import functools
import inspect
import math
import re
from typing import Any

import torch
from comfy_api.latest import io

from . import progress

_LONGEST_TEXT = 1_000_000  # characters
_SHOWN_OPTIONS = 12
# What tells ComfyUI's types from other values: an attribute, or a type.
_PARTS = {
    "MODEL": "model_options",
    "CLIP": "tokenize",
    "VAE": "decode",
    "NOISE": "generate_noise",
    "GUIDER": "sample",
    "SAMPLER": "sample",
    "CLIP_VISION": "encode_image",
}
#: What a node may evaluate. Between evaluations Stop is looked at, and a look at every operation
#: would slow them down.
_EVALUATED = {"MODEL", "CLIP", "VAE", "CLIP_VISION"}
_TYPES = {"CONDITIONING": list, "SIGMAS": torch.Tensor, "LORA_MODEL": dict, "LOSS_MAP": dict}


class InputError(ValueError):
    """An input is outside of its schema; the message names the node, the input, the value and what
    is allowed.
    """


def with_checked_inputs(node: type[io.ComfyNode]) -> type[io.ComfyNode]:
    """The node class, whose ``execute`` now raises InputError for inputs outside of its schema.

    A node that has no model of any kind can also be stopped between any two operations of PyTorch,
    and so can one that takes a model to read it, to patch it or to split a prompt: its class says
    ``EVALUATES = False``. ComfyUI checks ranges of typed-in numbers alone: values that come by
    wire, options of combos (0.3.75), NaN, and literals in typed sockets reach a node unchecked.
    """
    execute = node.execute.__func__
    parameters = list(inspect.signature(execute).parameters)[1:]

    @functools.wraps(execute)
    def checked(cls: type[io.ComfyNode], *args: Any, **inputs: Any) -> Any:
        schema = node.define_schema()
        check_inputs(schema, {**dict(zip(parameters, args, strict=False)), **inputs})
        if (
            schema.is_input_list
        ):  # an optional socket that is given null counts as one without a wire
            inputs = {
                name: values
                for name, values in inputs.items()
                if any(value is not None for value in values)
            }
        evaluates = any(field.get_io_type() in _EVALUATED for field in schema.inputs) and getattr(
            cls, "EVALUATES", True
        )
        try:
            with contextlib.nullcontext() if evaluates else progress.stoppable():
                return execute(cls, *args, **inputs)
        except (MemoryError, RuntimeError) as error:
            if not isinstance(error, MemoryError) and not _REFUSED.search(str(error)):
                raise  # a GPU that is full too, for which ComfyUI unloads its models
            raise MemoryError(_memory_sentence(schema, str(error))) from error

    node.execute = classmethod(checked)
    return node


#: How PyTorch says that the computer has no such memory.
_REFUSED = re.compile(r"DefaultCPUAllocator: .*tried to allocate (\d+) bytes")


def _memory_sentence(schema: io.Schema, message: str) -> str:
    amount = _REFUSED.search(message)
    wanted = (
        f"{int(amount[1]) / 1e9:,.1f} GB in one piece" if amount else "more memory than there is"
    )
    return (
        f"{schema.display_name or schema.node_id} needs {wanted}, which the computer does not "
        "have: give it fewer or smaller inputs."
    )


def check_inputs(schema: io.Schema, inputs: dict) -> None:
    """Compare the inputs of a node by name with its schema; raises InputError."""
    for field in schema.inputs:
        if field.id not in inputs:
            continue
        values = inputs[field.id]
        if not schema.is_input_list:
            values = [values]
        elif not isinstance(values, list) or not values:
            raise _error(schema, field, "is an empty list: connect at least one")
        for value in values:
            if value is None and field.optional:
                continue
            if problem := _problem(field, value):
                raise _error(schema, field, problem)


def _error(schema: io.Schema, field: io.Input, problem: str) -> InputError:
    return InputError(f"{schema.display_name or schema.node_id}: {field.id} {problem}.")


def _problem(field: io.Input, value: Any) -> str | None:
    """What is wrong with a value, as the rest of a sentence that begins with the input's name; None
    for nothing.
    """
    if isinstance(field, io.Combo.Input):
        return _option_problem(field.options or [], value)
    if isinstance(field, io.Int.Input | io.Float.Input):
        return _number_problem(field, value)
    if isinstance(field, io.Boolean.Input):
        return None if isinstance(value, bool) else f"is {shown(value)}: it must be true or false"
    if isinstance(field, io.String.Input):
        if not isinstance(value, str):
            return f"is {shown(value)}: it must be text"
        long = len(value) > _LONGEST_TEXT
        return (
            f"has {len(value):,} characters: at most {_LONGEST_TEXT:,} are allowed"
            if long
            else None
        )
    return _socket_problem(field.get_io_type(), value)


def _option_problem(options: list, value: Any) -> str | None:
    if isinstance(value, str | int) and value in options:
        return None
    some = ", ".join(map(str, options[:_SHOWN_OPTIONS])) + (
        ", ..." if len(options) > _SHOWN_OPTIONS else ""
    )
    return (
        f"is {shown(value)}: choose one of {some}"
        if options
        else f"is {shown(value)}: there is none to choose from"
    )


def _number_problem(field: io.Int.Input | io.Float.Input, value: Any) -> str | None:
    whole = isinstance(field, io.Int.Input)
    if isinstance(value, bool) or not isinstance(value, int if whole else int | float):
        return f"is {shown(value)}: it must be {'a whole number' if whole else 'a number'}"
    if not math.isfinite(value):
        return f"is {value}: it must be finite"
    low = field.min
    high = field.max
    if (low is not None and value < low) or (high is not None and value > high):
        if high is None:
            allowed = f"at least {low}"
        elif low is None:
            allowed = f"at most {high}"
        else:
            allowed = f"from {low} to {high}"
        return f"is {value}: it must be {allowed}"
    return None


def _socket_problem(kind: str, value: Any) -> str | None:
    if value is None or isinstance(value, str | int | float):
        return f"is {shown(value)}: connect an output of type {kind}"
    if (
        (kind in _PARTS and not hasattr(value, _PARTS[kind]))
        or (kind in _TYPES and not isinstance(value, _TYPES[kind]))
        or (isinstance(value, dict | list) and kind not in (*_TYPES, "IMAGE", "MASK", "LATENT"))
    ):
        return f"is no {kind}: connect an output of that type"
    if kind == "IMAGE" and not (
        isinstance(value, torch.Tensor) and value.ndim == 4 and value.numel()
    ):
        return (
            "is no IMAGE: it must be a tensor of batch, height, width and channels, each at least 1"
        )
    if kind == "MASK" and not (
        isinstance(value, torch.Tensor) and value.ndim >= 2 and value.numel()
    ):
        return "is no MASK: it must be a tensor of batch, height and width, each at least 1"
    samples = value.get("samples") if isinstance(value, dict) else None
    # Latents of several parts (video with sound) are a class of ComfyUI's own with the same
    # attribute as tensors.
    if kind == "LATENT" and not hasattr(samples, "is_nested"):
        return "is no LATENT: it must hold a tensor of samples"
    return None


def shown(value: Any) -> str:
    """A value as a message quotes it: in one line of at most 60 characters."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
