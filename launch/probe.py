"""Run in the virtual environment: prints as JSON which packages have lost files, and where torch can compute.

A package has lost a file when one that pip has recorded is missing or shorter than recorded; a package
without any record was left half-installed.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
from pathlib import Path

_MUST_IMPORT = ("torch", "numpy", "aiohttp", "yaml", "PIL.Image", "safetensors")


def damaged_packages() -> list[str]:
    """`name==version` of every installed package with lost files."""
    return [
        f"{package.name}=={package.version}"
        for package in importlib.metadata.distributions()
        if package.files is None or any(_lost(file) for file in package.files)
    ]


def _lost(file: importlib.metadata.PackagePath) -> bool:
    if file.suffix == ".pyc":
        return False
    try:
        return Path(file.locate()).stat().st_size < (file.size or 0)
    except OSError:
        return True


def import_error() -> str | None:
    """Why one of the packages that everything needs does not import, or None."""
    for name in _MUST_IMPORT:
        try:
            importlib.import_module(name)
        except Exception as error:
            return f"{name} does not import: {' '.join(str(error).split())}"
    return None


def accelerator() -> str | None:
    """The kind of accelerator that torch finds (cuda, mps, xpu, ...), or None."""
    import torch

    return torch.accelerator.current_accelerator().type if torch.accelerator.is_available() else None


def main() -> None:
    """Print the findings as one line of JSON."""
    damaged = damaged_packages()
    error = None if damaged else import_error()
    device = None if damaged or error else accelerator()
    print(json.dumps({"damaged": damaged, "error": error, "accelerator": device}))


if __name__ == "__main__":
    main()
