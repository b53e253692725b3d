"""ComfyUI's classes and the pack's own modules inside a study's process."""

from __future__ import annotations

import importlib
import importlib.util
import os
import runpy
import sys
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[2]


def prepare() -> None:
    """Let this process import ComfyUI, the one that `run.py` has set up or that COMFYUI_DIR
    names.
    """
    if "comfy" in sys.modules:
        return
    boot = runpy.run_path(str(ROOT / "tools" / "launcher" / "boot.py"))
    import torch

    named = os.environ.get("COMFYUI_DIR")
    comfyui = Path(named) if named else next(iter(sorted((ROOT / ".cache").glob("comfyui-*"))))
    boot["prepare"](comfyui, cpu=not torch.cuda.is_available())


def pack(module: str) -> ModuleType:
    """A module of the pack, for example ``pack("nodes.demo.architecture")``, without importing the
    pack's nodes.
    """
    if "glassbox_pack" not in sys.modules:
        spec = importlib.util.spec_from_file_location(
            "glassbox_pack", ROOT / "__init__.py", submodule_search_locations=[str(ROOT)]
        )
        package = importlib.util.module_from_spec(spec)
        sys.modules["glassbox_pack"] = package
        spec.loader.exec_module(package)
    return importlib.import_module(f"glassbox_pack.{module}")


def default_inputs(node: type) -> dict[str, object]:
    """The default of every input of a node that has one; of a combo its first option."""
    defaults = {}
    for item in node.GET_SCHEMA().inputs:
        options = getattr(item, "options", None) or ()
        value = getattr(item, "default", None)
        if value is None and options:
            value = options[0]
        if value is not None:
            defaults[item.id] = str(value) if options else value
    return defaults
