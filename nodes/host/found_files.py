"""Files that people name in a text field: in ComfyUI's input or output folder, and nowhere else."""

from __future__ import annotations

from pathlib import Path

import folder_paths

from . import model_folders


def find(name: str, what: str) -> Path:
    """A file or folder of the input or the output folder by its relative path; ``what`` says in messages what it is.

    Raises ValueError when the name leads elsewhere or nothing is there.
    """
    wanted = name.strip().strip('"')
    for root in (Path(folder_paths.get_input_directory()), Path(folder_paths.get_output_directory())):
        path = (root / wanted).resolve()
        if wanted and path.is_relative_to(root.resolve()) and path.exists():
            return path
    raise ValueError(f"There is no {what} '{wanted}' in ComfyUI's input or output folder: put it there, and give its "
                     "path from that folder on.")  # fmt: skip


def stamp(name: str | None, what: str) -> str:
    """Changes with what ``find`` finds: a file, or the files of a folder.

    "" where there is none, and for a linked name, which ComfyUI gives as None.
    """
    try:
        path = find(name or "", what)
    except ValueError:
        return ""
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    return "\n".join(f"{file.name} {model_folders.stamp(file)}" for file in files)


def find_if_named(name: str, what: str) -> Path | None:
    """As ``find``; None for an empty name."""
    return find(name, what) if name.strip() else None
