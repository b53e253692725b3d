"""Work on tensors where ComfyUI computes: on its device, after a request for memory, or else on the
CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import comfy.model_management
import torch

Result = TypeVar("Result")
#: Devices that take every type that the work uses; Apple's has no float64.
_DEVICES = {"cuda", "xpu"}
#: What work takes for each byte of its tensors in float32, and for itself.
_TIMES = 6
_BYTES = 1 << 28


def compute_device(*tensors: torch.Tensor, needed: int = 0) -> torch.device:
    """ComfyUI's device after it has made room for work on ``tensors`` and ``needed`` bytes; else
    the CPU.
    """
    device = comfy.model_management.get_torch_device()
    if device.type not in _DEVICES:
        return torch.device("cpu")
    bytes_ = needed + _BYTES + _TIMES * sum(4 * one.numel() for one in tensors)
    comfy.model_management.free_memory(bytes_, device)
    return device


def request_for_training(held: int) -> None:
    """Let ComfyUI make room for the bytes that a training will hold on its device, before it holds
    any of them.
    """
    compute_device(needed=held)


def trained_bytes(parameters: Iterable[torch.Tensor]) -> int:
    """What trained numbers hold, in bytes: themselves, gradients and Adam's two moments."""
    return 4 * sum(each.numel() * each.element_size() for each in parameters)


def on_device(work: Callable[..., Result], *tensors: torch.Tensor, needed: int = 0) -> Result:
    """``work(*tensors)`` on ComfyUI's device, with its tensors back on the CPU; on the CPU where
    there is no room.

    ``work`` returns a tensor, a tuple of tensors or what has a method ``to`` of its own. On the CPU
    the tensors are given as they are.
    """
    device = compute_device(*tensors, needed=needed)
    if device.type == "cpu":
        return work(*tensors)
    try:
        return _to(work(*(one.to(device) for one in tensors)), torch.device("cpu"))
    except comfy.model_management.OOM_EXCEPTION:
        comfy.model_management.soft_empty_cache()
    return work(*tensors)


def _to(result: Any, device: torch.device) -> Any:
    if isinstance(result, tuple):
        return tuple(one.to(device) for one in result)
    return result.to(device)
