"""Files in ComfyUI's output folder: names as its own Save nodes give them, and no way out of the folder."""

from __future__ import annotations

from pathlib import Path

import folder_paths


def next_file(prefix: str, suffix: str) -> Path:
    """Where the next file of a prefix goes, such as output/glassbox/name_00001_.safetensors; makes the folder.

    The prefix may hold folders and ComfyUI's %date% marks; raises ComfyUI's error when it leads out of the folder.
    """
    folder, name, counter, _, _ = folder_paths.get_save_image_path(prefix, folder_paths.get_output_directory())
    return Path(folder) / f"{name}_{counter:05}_{suffix}"


def named_file(name: str, suffix: str) -> Path:
    """The file of that name in the output folder, there or not; raises ValueError when the name leads elsewhere."""
    path = (_root() / f"{name.strip()}{suffix}").resolve()
    if not path.is_relative_to(_root()) or path.name == suffix:
        raise ValueError(f"'{name}' names no file in ComfyUI's output folder: give a name such as glassbox/training.")
    return path


def relative(path: Path) -> str:
    """A path as people write it: from the output folder on, with forward slashes."""
    return path.resolve().relative_to(_root()).as_posix()


def existing_file(name: str) -> Path:
    """A file of the output folder by its relative path; raises ValueError when it leads elsewhere or is not there."""
    path = (_root() / name.strip().strip('"')).resolve()
    if not path.is_relative_to(_root()):
        raise ValueError(f"'{name}' leads out of ComfyUI's output folder: give a path inside it.")
    if not path.is_file():
        raise ValueError(f"There is no file '{name}' in ComfyUI's output folder: give the path that Save gives.")
    return path


def _root() -> Path:
    return Path(folder_paths.get_output_directory()).resolve()
