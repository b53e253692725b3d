"""Sources of the members of a space: files in a folder, or LoRAs on wires."""

from __future__ import annotations

import functools
import hashlib
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import torch

from ..common import lora_reader
from ..common.atomic_write import file_stamp, sampled_digest
from ..common.lora_reader import SUFFIXES, AdapterReader, Lora
from .member_store import MemberSource

_PEFT_FILE = "adapter_model.safetensors"
_PEFT_INSIDE = {"unet", "transformer"}


def file_sources(folder: Path, adapters: AdapterReader | None = None) -> list[MemberSource]:
    """The LoRA files in a folder and below, by name; a PEFT adapter is named after its folder.

    ``adapters`` reads what is not a plain LoRA.

    Files that would share a name, such as ada.safetensors and ada.pt, keep their suffix.
    """
    files = _files(folder)
    names = [_name(path.relative_to(folder)) for path in files]
    counts = Counter(names)
    return [
        _file_source(
            path, name if counts[name] == 1 else path.relative_to(folder).as_posix(), adapters
        )
        for path, name in zip(files, names, strict=True)
    ]


def _files(folder: Path) -> list[Path]:
    paths = folder.rglob("*")
    return sorted(path for path in paths if path.suffix.lower() in SUFFIXES and path.is_file())


def folder_stamp(folder: Path) -> str:
    """Changes with the LoRA files in a folder and below."""
    return "\n".join(f"{path.relative_to(folder)} {file_stamp(path)}" for path in _files(folder))


def wire_sources(
    loras: list[dict[str, torch.Tensor]], adapters: AdapterReader | None = None
) -> list[MemberSource]:
    """LoRAs by the keys of LoRA files, numbered."""
    sources = []
    for number, tensors in enumerate(loras, 1):
        read = functools.partial(_parse_wire, f"LoRA {number}", tensors, adapters)
        header = functools.partial(lambda read: lora_reader.header_of(read()), read)
        sources.append(
            MemberSource(name=f"wire {number}", stamp=_digest(tensors), header=header, read=read)
        )
    return sources


def _name(inside: Path) -> str:
    if inside.name == _PEFT_FILE and len(inside.parts) > 1:
        owner = inside.parent.parent if inside.parent.name in _PEFT_INSIDE else inside.parent
        if owner.name:
            return owner.as_posix()
    return inside.with_suffix("").as_posix()


def _file_source(path: Path, name: str, adapters: AdapterReader | None) -> MemberSource:
    try:
        content = sampled_digest(path)
    except OSError:  # its header says why, when it is read
        content = f"unreadable {name}"
    header = functools.partial(lora_reader.read_header, path, adapters)
    keep_open = functools.partial(lora_reader.keep_open, path, adapters=adapters)
    read = functools.partial(lora_reader.read, path, adapters)
    return MemberSource(
        name=name, stamp=content, header=header, read=read, path=path, keep_open=keep_open
    )


def _parse_wire(
    name: str,
    tensors: dict[str, torch.Tensor],
    adapters: AdapterReader | None,
    wanted: Callable[[str], bool] | None = None,
) -> Lora:
    """The LoRA of a wire, whichever layers are wanted: it is in memory."""
    try:
        return lora_reader.parse_tensors(tensors, adapters=adapters)
    except ValueError as error:
        raise ValueError(f"{name} {error}") from None


def _digest(tensors: dict[str, torch.Tensor]) -> str:
    digest = hashlib.sha256()
    for key in sorted(tensors):
        digest.update(key.encode())
        digest.update(tensors[key].detach().float().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()
