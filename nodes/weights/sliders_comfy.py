"""LoRA files on a MODEL and a CLIP, as ComfyUI's own Load LoRA puts them on."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING

import comfy.sd
import comfy.utils
import torch

from ..common.atomic_write import file_stamp
from ..common.failures import is_out_of_memory
from ..common.headers import unreadable

if TYPE_CHECKING:
    from ..host.socket_types import CLIP, ModelPatcher

_FILES = 8


def apply_file(
    patcher: ModelPatcher, clip: CLIP | None, path: Path, strength: float
) -> tuple[ModelPatcher, CLIP | None]:
    """The MODEL and the CLIP with a LoRA file at a strength, on clones.

    Raises ValueError for a file that cannot be read, or that changes no layer of either.
    """
    try:
        lora = _read(path, file_stamp(path))
        patched, text = comfy.sd.load_lora_for_models(patcher, clip, lora, strength, strength)
    except Exception as error:  # whatever a damaged file makes its parser raise
        if is_out_of_memory(error):
            raise
        raise unreadable(path, error, "remove it or download it again") from None
    if _patches(patched, text) == _patches(patcher, clip):
        raise ValueError(
            f"{path.name} changes no layer of this MODEL"
            f"{'' if clip is None else ' or CLIP'}: choose a LoRA that was trained on it."
        )
    return patched, text


def _patches(patcher: ModelPatcher, clip: CLIP | None) -> int:
    patchers = [patcher] if clip is None else [patcher, clip.patcher]
    return sum(len(patches) for each in patchers for patches in each.patches.values())


@functools.lru_cache(_FILES)
def _read(path: Path, _stamp: str) -> dict[str, torch.Tensor]:
    """The tensors of a file, read again only when it changes: sliders are moved often."""
    return comfy.utils.load_torch_file(str(path), safe_load=True)
