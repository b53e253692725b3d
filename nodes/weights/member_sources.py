"""Sources of the members of a space: files in a folder, or LoRAs on wires."""

from __future__ import annotations

import functools
import hashlib
from collections import Counter
from pathlib import Path

import torch

from . import lora_reader
from .lora_reader import SUFFIXES
from .space_builder import MemberSource

_PEFT_FILE = "adapter_model.safetensors"
_PEFT_INSIDE = {"unet", "transformer"}


def file_sources(folder: Path) -> list[MemberSource]:
    """The LoRA files in a folder and below, by name; a PEFT adapter is named after its folder.

    Files that would share a name, such as ada.safetensors and ada.pt, keep their suffix.
    """
    files = sorted(path for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES and path.is_file())
    names = [_name(path.relative_to(folder)) for path in files]
    counts = Counter(names)
    return [
        _file_source(path, name if counts[name] == 1 else path.relative_to(folder).as_posix())
        for path, name in zip(files, names, strict=True)
    ]


def wire_sources(loras: list[dict[str, torch.Tensor]]) -> list[MemberSource]:
    """LoRAs by the keys of LoRA files, numbered."""
    sources = []
    for number, tensors in enumerate(loras, 1):
        read = functools.partial(_parse_wire, f"LoRA {number}", tensors)
        sources.append(
            MemberSource(f"wire {number}", _digest(tensors), lambda read=read: lora_reader.layer_shapes(read()), read)
        )
    return sources


def _name(inside: Path) -> str:
    if inside.name == _PEFT_FILE and len(inside.parts) > 1:
        owner = inside.parent.parent if inside.parent.name in _PEFT_INSIDE else inside.parent
        if owner.name:
            return owner.as_posix()
    return inside.with_suffix("").as_posix()


def _file_source(path: Path, name: str) -> MemberSource:
    status = path.stat()
    stamp = f"{name} {status.st_size} {status.st_mtime_ns}"
    return MemberSource(
        name, stamp, functools.partial(lora_reader.read_shapes, path), functools.partial(lora_reader.read, path)
    )


def _parse_wire(name: str, tensors: dict[str, torch.Tensor]) -> lora_reader.Lora:
    try:
        return lora_reader.parse_tensors(tensors)
    except ValueError as error:
        raise ValueError(f"{name} {error}") from None


def _digest(tensors: dict[str, torch.Tensor]) -> str:
    digest = hashlib.sha256()
    for key in sorted(tensors):
        digest.update(key.encode())
        digest.update(tensors[key].detach().float().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()
