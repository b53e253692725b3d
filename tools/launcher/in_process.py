"""ComfyUI inside of this process, on the CPU, with the pack loaded by ComfyUI's own loader."""

from __future__ import annotations

import asyncio
import importlib
import json
from pathlib import Path
from types import ModuleType

from . import boot, paths
from .comfyui import PACK_NAME


class Comfy:
    """A prepared ComfyUI: its node classes, the pack's modules as ComfyUI has loaded them, and a
    way to run a node.
    """

    def __init__(self, nodes: ModuleType, package: str):
        self.classes = nodes.NODE_CLASS_MAPPINGS
        self._package = package

    def module(self, name: str) -> ModuleType:
        """A module of the loaded pack, such as `nodes.host.evaluate`."""
        return importlib.import_module(f"{self._package}.{name}")

    def run(self, node_id: str, **inputs) -> tuple:
        """Run one node as the queue does, under inference mode, and return its outputs."""
        import torch

        node = self.classes[node_id]
        with torch.inference_mode():
            if hasattr(node, "GET_SCHEMA"):
                return tuple(node.EXECUTE_NORMALIZED(**inputs).args)
            return tuple(getattr(node(), node.FUNCTION)(**inputs))


def describe(name: str, node) -> dict:
    """What the fuzzer's generator reads of a node class, as in ComfyUI's /object_info."""
    if hasattr(node, "GET_NODE_INFO_V1"):
        info = node.GET_NODE_INFO_V1()
    else:
        outputs = node.RETURN_TYPES
        info = {"input": node.INPUT_TYPES(), "output": outputs}
        info["output_is_list"] = getattr(node, "OUTPUT_IS_LIST", [False] * len(outputs))
    plain = json.loads(json.dumps(info, default=str))  # as the server sends it
    return plain | {
        "python_module": f"custom_nodes.{PACK_NAME}" if name.startswith("GBX_") else "nodes"
    }


def start(comfyui: Path, base: Path) -> Comfy:
    """Prepare ComfyUI from its folder with `base` for its files, and load the pack. Once in a
    process.
    """
    boot.prepare(comfyui, cpu=True)
    import folder_paths

    import nodes

    _own_folders(folder_paths, base)
    asyncio.run(nodes.init_extra_nodes(init_custom_nodes=False, init_api_nodes=False))
    if not asyncio.run(nodes.load_custom_node(str(paths.ROOT), module_parent="custom_nodes")):
        raise RuntimeError("ComfyUI could not load the pack: see its output above.")
    return Comfy(nodes, str(paths.ROOT).replace(".", "_x_"))


def _own_folders(folder_paths: ModuleType, base: Path) -> None:
    for name in ("output", "input", "temp", "user"):
        (base / name).mkdir(exist_ok=True)
        getattr(folder_paths, f"set_{name}_directory")(str(base / name))
