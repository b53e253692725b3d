"""Model folders: the pack's own `models/w2w`, ComfyUI's `models/loras`, and files that the pack brings along."""

from __future__ import annotations

import os
import re
from pathlib import Path

import folder_paths

ASSETS = Path(__file__).resolve().parents[2] / "assets"
SPACES = "w2w"
_NAME = re.compile(r"[\w][\w .()+-]*")

folder_paths.add_model_folder_path(SPACES, os.path.join(folder_paths.models_dir, SPACES))
folder_paths.folder_names_and_paths[SPACES][1].add(".safetensors")


def space_names() -> list[str]:
    """The weight spaces to choose from: those of models/w2w, then those that come with the pack."""
    own = [name for name in folder_paths.get_filename_list(SPACES) if ".building" not in name]
    return own + [path.name for path in sorted(ASSETS.glob("*.safetensors")) if path.name not in own]


def space_path(name: str) -> Path:
    """The file of a weight space; raises ValueError when it is neither in models/w2w nor with the pack."""
    found = folder_paths.get_full_path(SPACES, name)
    if found:
        return Path(found)
    if name in {path.name for path in ASSETS.glob("*.safetensors")}:
        return ASSETS / name
    raise ValueError(f"There is no weight space '{name}' in models/w2w: build or save one, or choose another.")


def new_space(name: str) -> Path:
    """Where a weight space of this name goes in models/w2w; raises ValueError for a name that is no plain file name."""
    name = name.strip().removesuffix(".safetensors")
    if not _NAME.fullmatch(name):
        raise ValueError(f"'{name}' is no name for a file: use letters, digits, spaces, '-' and '_'.")
    return Path(folder_paths.get_folder_paths(SPACES)[0]) / f"{name}.safetensors"


def lora_names() -> list[str]:
    """ComfyUI's LoRA files."""
    return folder_paths.get_filename_list("loras")


def lora_path(name: str) -> Path:
    """The file of a LoRA in ComfyUI's folders; raises ValueError when it is not there."""
    found = folder_paths.get_full_path("loras", name)
    if not found:
        raise ValueError(f"There is no LoRA '{name}' in models/loras: choose one of the list.")
    return Path(found)


def lora_folder(name: str) -> Path:
    """A folder inside ComfyUI's LoRA folders ("" is the first of them itself), or inside its output or input folder.

    Raises ValueError when it leads elsewhere or is not there.
    """
    return _folder(name, [*folder_paths.get_folder_paths("loras"), folder_paths.get_output_directory(),
                          folder_paths.get_input_directory()], "models/loras, output or input")  # fmt: skip


def spaces_folder(name: str) -> Path:
    """A folder inside models/w2w or ComfyUI's input folder; errors as ``lora_folder``."""
    roots = [*folder_paths.get_folder_paths(SPACES), folder_paths.get_input_directory()]
    return _folder(name, roots, "models/w2w or input")


def input_file(name: str) -> Path:
    """A file of ComfyUI's input folder; raises ValueError when it leads elsewhere or is not there."""
    root = Path(folder_paths.get_input_directory()).resolve()
    path = (root / name.strip()).resolve()
    if not path.is_relative_to(root) or not path.is_file():
        raise ValueError(f"There is no file '{name}' in ComfyUI's input folder: put it there, or paste its text.")
    return path


def stamp(path: Path) -> str:
    """What tells that a file has changed: its size and time; "absent" when it is not there."""
    try:
        about = path.stat()
    except OSError:
        return "absent"
    return f"{about.st_size} {about.st_mtime_ns}"


def lora_stamp(name: str | None) -> str:
    """``stamp`` of a LoRA of ComfyUI's list; "" for a name that is not known yet."""
    found = folder_paths.get_full_path("loras", name) if name else None
    return stamp(Path(found)) if found else ""


def _folder(name: str, roots: list[str], where: str) -> Path:
    name = name.strip().strip('"')
    for root in (Path(root).resolve() for root in roots):
        path = (root / name).resolve()
        if path.is_relative_to(root) and path.is_dir():
            return path
    raise ValueError(f"There is no folder '{name}' in {where}: give the path of one inside them.")
