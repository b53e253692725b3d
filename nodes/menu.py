"""The nodes of the pack in menu order. Only ``comfy_entrypoint`` imports this."""

from __future__ import annotations

from comfy_api.latest import ComfyExtension, io

from .demo.nodes import DemoPicture, LoadDemoModel

NODES: list[type[io.ComfyNode]] = [LoadDemoModel, DemoPicture]


class Glassbox(ComfyExtension):
    async def get_node_list(self) -> list[type[io.ComfyNode]]:
        return NODES
