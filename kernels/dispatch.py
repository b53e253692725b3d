"""Which backend runs: eager PyTorch, or the first kernel that takes the input and agrees with eager
on this GPU.

GLASSBOX_KERNELS or ``use`` choose: "auto" (the default), "eager", or one kernel backend, "triton"
or "cuda", of which then every kernel that takes the input runs without a comparison. Kernels run on
CUDA devices; Triton's also on the CPU in its interpreter.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import logging
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from . import checks, self_check
from .self_check import once
from .table import CUDA, TABLE, TRITON, unfit

AUTO = "auto"
EAGER = "eager"
SETTINGS = (AUTO, EAGER, TRITON, CUDA)
VARIABLE = "GLASSBOX_KERNELS"

_chosen: str | None = None


def use(backend: str | None) -> str | None:
    """See ``kernels.use``."""
    global _chosen
    if backend is not None and backend not in SETTINGS:
        raise ValueError(f"There is no backend {backend}: choose one of {', '.join(SETTINGS)}.")
    before = _chosen
    _chosen = backend
    return before


def setting() -> str:
    """The backend requested: by ``use``, else by the environment variable, else "auto"."""
    if _chosen is not None:
        return _chosen
    named = os.environ.get(VARIABLE, "").strip().lower() or AUTO
    if named not in SETTINGS:
        once(
            f"{VARIABLE} is {named}, which is none of {', '.join(SETTINGS)}: {AUTO} is used.",
            logging.WARNING,
        )
        return AUTO
    return named


def call(operation: str, **arguments: Any) -> Any:
    """Check the input, choose a backend and run it, in full precision even under autocast."""
    getattr(checks, operation)(**arguments)
    device = device_of(arguments)
    eager = function(EAGER, operation)
    with (
        torch.autocast(device.type, enabled=False)
        if _autocast(device)
        else contextlib.nullcontext()
    ):
        for backend in kernels_for(operation, arguments, device):
            kernel = function(backend, operation)
            if setting() == backend:
                return kernel(**arguments)
            result = self_check.run(
                backend, operation, kernel=kernel, eager=eager, arguments=arguments, device=device
            )
            if result is not None:
                return result
        return eager(**arguments)


def kernels_for(operation: str, arguments: Mapping, device: torch.device) -> Iterator[str]:
    """The backends whose kernel takes these arguments here, best first."""
    wanted = setting()
    if (
        wanted == EAGER
        or torch.compiler.is_compiling()
        or (wanted == AUTO and device.type != "cuda")
    ):
        return
    for backend, kernel in TABLE[operation].kernels.items():
        if wanted in (AUTO, backend):
            reason = missing(backend, device) or unfit(kernel, arguments)
            if not reason:
                yield backend
            elif wanted == backend:
                once(f"{operation} runs in eager PyTorch: {reason}.", logging.WARNING)
            else:
                once(f"The {backend} kernel of {operation} is left out: {reason}.")


@functools.cache
def function(backend: str, operation: str) -> Callable:
    """The function of a backend that does the operation; what an import raises, the call raises."""
    entry = TABLE[operation]
    module = entry.module if backend == EAGER else entry.kernels[backend].module
    if backend == EAGER:
        return getattr(importlib.import_module(f".eager.{module}", __package__), operation)

    def on_its_device(**arguments: Any) -> Any:
        found = getattr(importlib.import_module(f".{backend}.{module}", __package__), operation)
        with torch.cuda.device_of(
            next(iter(tensors(arguments)))
        ):  # kernels are launched on the current device
            return found(**arguments)

    return on_its_device


def tensors(arguments: Mapping) -> Iterator[torch.Tensor]:
    """The tensors among arguments, in their order."""
    return (value for value in arguments.values() if isinstance(value, torch.Tensor))


def device_of(arguments: Mapping) -> torch.device:
    """Where an operation runs: on the device of its first tensor."""
    return next(tensors(arguments)).device


def missing(backend: str, device: torch.device) -> str | None:
    """Why no kernel of a backend can run on a device, or None."""
    if backend == CUDA:
        return (
            None
            if device.type == "cuda" and torch.version.hip is None
            else "CUDA C++ needs an NVIDIA GPU"
        )
    if importlib.util.find_spec("triton") is None:
        package = "triton-windows" if sys.platform == "win32" else "triton"
        return f"Triton is not installed (pip install {package})"
    if device.type != "cuda":
        return None if _interpreted() else f"Triton needs a CUDA device, not {device.type}"
    if torch.version.hip is None and torch.cuda.get_device_capability(device) < (8, 0):
        return "Triton needs a GPU of compute capability 8.0 or above"
    return None


def _autocast(device: torch.device) -> bool:
    return torch.amp.is_autocast_available(device.type) and torch.is_autocast_enabled(device.type)


@functools.cache
def _interpreted() -> bool:
    """Whether the kernels run in Triton's interpreter, which is settled when they are first
    imported.
    """
    return importlib.import_module(".triton.common", __package__).INTERPRETED
