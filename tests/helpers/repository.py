"""Where the parts of the repository are, and the pack as a package named `glassbox`."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
TEMPLATES = sorted((ROOT / "workflows").glob("*.json"))
WORKFLOWS = TEMPLATES + sorted((ROOT / "workflows" / "further").glob("*.json"))
_OWN = {path: json.loads(path.read_text("utf-8"))["extra"]["glassbox"] for path in WORKFLOWS}
DEMOS, CHECKPOINT_WORKFLOWS = (
    [path for path in WORKFLOWS if _OWN[path]["kind"] == kind] for kind in ("demo", "checkpoint")
)
PACK = "glassbox"
LINKED_AS = "comfyui-glassbox"


def name_of(path: Path) -> str:
    """The short name of a workflow, whose file may have a title for its name."""
    return _OWN[path]["name"]


def named(name: str) -> Path:
    """The workflow with a short name."""
    return next(path for path, own in _OWN.items() if own["name"] == name)


def has_a_twin(path: Path) -> bool:
    """Whether the workflow of another network has the same nodes in it: SDXL's are those of SD1.5,
    and Z-Image's those of Qwen-Image and Krea 2.
    """
    names = {own["name"] for own in _OWN.values()}
    network, _, rest = name_of(path).partition("_")
    first = {"sdxl": "sd15", "qwen": "zimage", "krea2": "zimage"}.get(network)
    return f"{first}_{rest}" in names


def load_pack(name: str = PACK):
    """Import the pack's root as a package under a name of its own, as ComfyUI does, once."""
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(
            name, ROOT / "__init__.py", submodule_search_locations=[str(ROOT)]
        )
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
    return sys.modules[name]


def is_ours(info: dict) -> bool:
    """Whether a node class in ComfyUI's object_info comes from this pack."""
    return info.get("python_module") == f"custom_nodes.{LINKED_AS}"


def listed_ids() -> list[str]:
    """The committed ids of the pack's nodes."""
    return list(json.loads((ROOT / "tests" / "node_contract.json").read_text("utf-8")))


def tracked_files() -> list[Path]:
    """Every file that git tracks or would track."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout.decode()
    return [ROOT / name for name in listed.split("\0") if name and (ROOT / name).is_file()]
