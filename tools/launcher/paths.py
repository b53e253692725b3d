"""Paths of the repository and of its git-ignored folders."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
VENV = ROOT / ".venv"
CACHE = ROOT / ".cache"
HOST = CACHE / "host"
OUT = CACHE / "out"
LOGS = CACHE / "logs"
DURATIONS = CACHE / "durations.json"  # of the last runs
WORKFLOWS = ROOT / "workflows"  # those of the template browser
FURTHER_WORKFLOWS = WORKFLOWS / "further"  # those that it does not show
STUDIES = ROOT / "studies"
BENCHMARKS = ROOT / "benchmarks"


def venv_python() -> Path:
    """The Python interpreter of the virtual environment."""
    return VENV / "Scripts" / "python.exe" if os.name == "nt" else VENV / "bin" / "python"


def inside_venv() -> bool:
    """Whether the running interpreter belongs to the virtual environment."""
    return Path(sys.prefix).resolve() == VENV.resolve()


def remove_leftovers(folder: Path) -> None:
    """Delete what an interrupted `unpack` or `write_atomically` left in a folder."""
    for leftover in folder.glob("*.partial"):
        if leftover.is_dir() and not leftover.is_symlink():
            shutil.rmtree(leftover)
        else:
            leftover.unlink()


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write a file under a temporary name and rename it, so that it is either whole or absent."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    partial.write_bytes(content.encode() if isinstance(content, str) else content)
    partial.replace(path)
