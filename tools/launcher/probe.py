"""Run in the virtual environment: prints as JSON which packages have lost files, and where torch
can compute.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
from pathlib import Path

_MUST_IMPORT = ("torch", "numpy", "aiohttp", "yaml", "PIL.Image", "safetensors")


def damaged_packages() -> list[str | None]:
    """Installed packages without a record, or with a file that is missing or shorter than
    recorded.
    """
    return [
        package.name
        for package in importlib.metadata.distributions()
        if package.files is None or any(_is_lost(file) for file in package.files)
    ]


def _is_lost(file: importlib.metadata.PackagePath) -> bool:
    if file.suffix == ".pyc":
        return False
    try:
        return Path(file.locate()).stat().st_size < (file.size or 0)
    except OSError:
        return True


def main() -> None:
    """Print the damaged packages, the first import error, and the kind of accelerator (cuda, mps,
    ... or None).
    """
    found = {"damaged": damaged_packages(), "error": None, "accelerator": None}
    if not found["damaged"]:
        try:
            for name in _MUST_IMPORT:
                importlib.import_module(name)
            import torch

            if torch.accelerator.is_available():
                found["accelerator"] = torch.accelerator.current_accelerator().type
        except Exception as error:
            found["error"] = f"{name} does not import: {' '.join(str(error).split())}"
    print(json.dumps(found))


if __name__ == "__main__":
    main()
