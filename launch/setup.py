"""Everything that must stand before a command can run; every step is skipped when it is done."""

from __future__ import annotations

from pathlib import Path

from . import comfyui, environment, paths
from .errors import LaunchError


def ensure(developer: bool) -> Path:
    """Set up the environment, for `developer` with what tests and studies need, and return ComfyUI's folder."""
    paths.CACHE.mkdir(parents=True, exist_ok=True)
    paths.remove_leftovers(paths.CACHE)
    folder = _set_up(developer)
    trouble = environment.check()
    if trouble:
        environment.discard(f"The environment in .venv does not work ({trouble})")
        folder = _set_up(developer)
        if trouble := environment.check():
            raise LaunchError(f"The environment in .venv does not work, though it is new ({trouble}).")
    comfyui.prepare_base()
    return folder


def _set_up(developer: bool) -> Path:
    environment.make_venv()
    folder = comfyui.locate()
    environment.install(folder, developer)
    return folder
