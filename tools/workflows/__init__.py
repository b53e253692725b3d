"""The workflows that the pack ships and the code that they are made from: `python -P
tools/workflows/make.py`.

Every function here whose name is that of a workflow describes it: `demo_world_text_to_image(w)`
makes `demo_world_text_to_image.json`. A family adds a module of such functions; nothing else needs
to know of it.
"""

import importlib
import re
from collections.abc import Callable
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
_NAME = re.compile(r"(demo|sd15|sdxl|sd3|flux|zimage|qwen|flux2|krea2|wan)_[a-z0-9_]+")


def described() -> dict[str, Callable]:
    """The functions that describe workflows, by the name of their workflow."""
    found = {}
    for path in sorted(FOLDER.glob("*.py")):
        if path.stem in ("__init__", "make"):
            continue
        module = importlib.import_module(f"{__name__}.{path.stem}")
        for name, value in vars(module).items():
            if _NAME.fullmatch(name) and callable(value):
                found[name] = value
    return found
