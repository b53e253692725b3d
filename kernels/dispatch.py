"""Which backend runs: eager PyTorch, or a Triton kernel where it has proved itself on this GPU.

GLASSBOX_KERNELS or ``use`` choose: "auto" (the default), "eager", or "triton", which runs every kernel that takes the
input without asking whether it is faster. Triton runs on CUDA devices; on the CPU only in its interpreter.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import logging
import os

import torch

from . import checks
from .table import TABLE, unfit

AUTO, EAGER, TRITON = BACKENDS = ("auto", "eager", "triton")
VARIABLE = "GLASSBOX_KERNELS"

log = logging.getLogger("glassbox.kernels")
_chosen: str | None = None
_told: set[str] = set()


def use(backend: str | None) -> str | None:
    """See ``kernels.use``."""
    global _chosen
    if backend is not None and backend not in BACKENDS:
        raise ValueError(f"There is no backend {backend}: choose one of {', '.join(BACKENDS)}.")
    before, _chosen = _chosen, backend
    return before


def setting() -> str:
    """The backend asked for: by ``use``, else by the environment variable, else "auto"."""
    if _chosen is not None:
        return _chosen
    named = os.environ.get(VARIABLE, "").strip().lower() or AUTO
    if named not in BACKENDS:
        once(f"{VARIABLE} is {named}, which is none of {', '.join(BACKENDS)}: {AUTO} it is.", logging.WARNING)
        return AUTO
    return named


def call(operation: str, **arguments):
    """Check the input, choose a backend and run it."""
    getattr(checks, operation)(**arguments)
    chosen = backend(operation, arguments)
    if chosen == EAGER or setting() == TRITON:
        return function(chosen, operation)(**arguments)
    try:
        return function(TRITON, operation)(**arguments)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # whatever a compiler, a driver or a launch may raise
        from . import proof

        if not proof.no_memory(error):
            proof.refute(operation, arguments, error)
        return function(EAGER, operation)(**arguments)


def backend(operation: str, arguments: dict) -> str:
    """The backend for this call."""
    if torch.compiler.is_compiling():
        return EAGER
    wanted = setting()
    device = arguments[next(iter(TABLE[operation].dtypes))].device
    if wanted == EAGER or (wanted == AUTO and device.type != "cuda"):
        return EAGER
    reason = _cannot_run(device) or unfit(operation, arguments)
    if reason:
        level = logging.WARNING if wanted == TRITON else logging.INFO
        once(f"{operation} runs in eager PyTorch: {reason}.", level)
        return EAGER
    if wanted == TRITON:
        return TRITON
    from . import proof

    return proof.winner(operation, arguments)


@functools.cache
def function(backend: str, operation: str):
    """The function of a backend that does the operation."""
    found = getattr(importlib.import_module(f".{backend}.{TABLE[operation].file}", __package__), operation)
    if backend == EAGER:
        return found

    # Triton launches on the current device, wherever its tensors are.
    def on_its_device(**arguments):
        with torch.cuda.device_of(arguments[next(iter(TABLE[operation].dtypes))]):
            return found(**arguments)

    return on_its_device


def once(line: str, level: int = logging.INFO) -> None:
    """Log a line the first time that it is told."""
    if line not in _told:
        _told.add(line)
        log.log(level, line)


def _cannot_run(device: torch.device) -> str | None:
    if not _triton_is_there():
        return "Triton is not installed"
    if device.type != "cuda":
        return None if _interpreted() else f"Triton needs a CUDA device, not {device.type}"
    # It supports no older one: where its compiler aborts there, no proof survives.
    if torch.version.hip is None and torch.cuda.get_device_capability(device) < (8, 0):
        return "Triton needs a GPU of compute capability 8.0 or above"
    return None


@functools.cache
def _triton_is_there() -> bool:
    return importlib.util.find_spec("triton") is not None


@functools.cache
def _interpreted() -> bool:
    """Whether the kernels run in Triton's interpreter, which is settled when they are first imported."""
    from .triton import common

    return common.INTERPRETED
