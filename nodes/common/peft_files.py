"""PEFT's adapter folders and configurations: which file has the weights, and what they say of alpha and rank."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

STEM = "adapter_model"


class MissingPeftError(RuntimeError):
    """A PEFT adapter cannot be read without the package peft."""


def weights(folder: Path) -> Path:
    """The weights of a PEFT folder, such as NAME/unet/adapter_model.safetensors."""
    for inside in (".", "unet", "transformer"):
        if (path := folder / inside / "adapter_model.safetensors").is_file():
            return path
    raise ValueError(f"{folder.name} is a folder without adapter_model.safetensors: give LoRA files.")


def config(path: Path) -> dict:
    """The configuration beside the weights of a PEFT adapter; empty for other files."""
    if not path.name.startswith(STEM) or not (path.parent / "adapter_config.json").is_file():
        return {}
    return package().PeftConfig.from_pretrained(str(path.parent)).to_dict()


def package():
    """The package peft; raises MissingPeftError without it."""
    try:
        import peft
    except ImportError as error:
        raise MissingPeftError("A PEFT adapter folder needs the package peft: pip install peft") from error
    return peft


def embedded_config(metadata: Mapping[str, str]) -> dict:
    """The configuration that newer diffusers writes into the header of a LoRA file."""
    try:
        about = json.loads(metadata.get("lora_adapter_metadata", "{}"))
    except ValueError:
        return {}
    of_network = ((*key.partition("."), value) for key, value in about.items())
    return {name: value for owner, _, name, value in of_network if owner in ("unet", "transformer")}
