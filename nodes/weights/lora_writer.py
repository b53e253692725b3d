"""Low-rank factors as the tensors of a LoRA file that stock loaders read."""

from __future__ import annotations

from pathlib import Path

import torch

from ..common.atomic_write import atomic_write
from ..common.lora_keys import keys
from .lora_reader import Factors


def to_tensors(layers: dict[str, Factors]) -> dict[str, torch.Tensor]:
    """Tensors by key, alpha written for every layer: without it a loader would take a scale of 1."""
    tensors = {}
    for layer, factors in layers.items():
        down, up, alpha = keys(layer)
        tensors[down] = factors.down.contiguous().clone()
        shape = (*factors.up.shape[:2], *(1,) * (factors.down.ndim - 2))
        tensors[up] = factors.up.reshape(shape).contiguous().clone()
        tensors[alpha] = torch.tensor(float(factors.scale * factors.rank))
    return tensors


def write(tensors: dict[str, torch.Tensor], path: Path, about: str) -> None:
    """Write a LoRA file, whole or not at all."""
    from safetensors.torch import save_file

    with atomic_write(path) as temporary:
        save_file(tensors, temporary, {"format": "pt", "glassbox": about})
