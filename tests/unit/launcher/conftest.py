"""Offers a stand-in for ComfyUI that starts at once."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

_HERE = Path(__file__).resolve().parent


@pytest.fixture
def root() -> Path:
    """The repository's folder."""
    return _HERE.parents[2]


@pytest.fixture
def stand_in(tmp_path: Path) -> Path:
    """A folder that answers like ComfyUI's server, see stand_in_comfyui.py for what it does."""
    folder = tmp_path / "comfyui"
    folder.mkdir()
    shutil.copy(_HERE / "stand_in_comfyui.py", folder / "main.py")
    return folder
