"""The number format in which a trainer multiplies: what the device has units for, unless a person
chooses.
"""

from __future__ import annotations

import enum
import os

import torch


class Precision(enum.StrEnum):
    """Values of the input ``precision`` of trainers. ``AUTO`` becomes one of the others before
    anything runs.
    """

    AUTO = "auto"
    FP32 = "fp32"
    BF16 = "bf16"
    FP16 = "fp16"

    @property
    def dtype(self) -> torch.dtype:
        """The compute dtype. Raises KeyError for ``AUTO``, which has none until it is resolved."""
        return _DTYPES[self]


_DTYPES = {
    Precision.FP32: torch.float32,
    Precision.BF16: torch.bfloat16,
    Precision.FP16: torch.float16,
}
_UNITS = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
# oneDNN, which multiplies bf16 on CPUs, can be held to fewer instructions than there are.
_LIMITS = ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA")
_WITHOUT_BF16 = {
    "sse41",
    "avx",
    "avx2",
    "avx2_vnni",
    "avx2_vnni_2",
    "avx512_core",
    "avx512_core_vnni",
}


def resolve_precision(requested: str, device: torch.device) -> Precision:
    """The precision for a device: the requested one; for ``auto`` bf16 where the device multiplies
    it, else fp32.

    Kept work is identified by the result, so that a run which moves to another machine never mixes
    two of them.
    """
    if requested != Precision.AUTO:
        return Precision(requested)
    return Precision.BF16 if multiplies_bf16(device) else Precision.FP32


def multiplies_bf16(device: torch.device) -> bool:
    """Whether a device has units that multiply bf16; without them a product takes twenty times one
    in fp32.
    """
    if device.type == "cpu":
        return _cpu_multiplies_bf16()
    import comfy.model_management  # here: the answer of a CPU needs no ComfyUI

    return bool(comfy.model_management.should_use_bf16(device))


def describe_precision(requested: str, precision: Precision) -> str:
    """One line of a report."""
    chosen = ", chosen by auto for this device" if requested == Precision.AUTO else ""
    return f"Precision: {precision}{chosen}."


def _cpu_multiplies_bf16() -> bool:
    """AVX512-BF16 or AMX, where oneDNN may use them; False on other processors, and where PyTorch
    cannot say.
    """
    limit = next((os.environ[name] for name in _LIMITS if os.environ.get(name)), "")
    if limit.lower() in _WITHOUT_BF16 or not torch.backends.mkldnn.is_available():
        return False
    return any(getattr(torch.cpu, unit, bool)() for unit in _UNITS)
