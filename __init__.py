"""ComfyUI-Glassbox: a diffusion model's weights, activations, conditioning, noise and neurons, to
see and to steer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .nodes.menu import Glassbox

WEB_DIRECTORY = "./web"


async def comfy_entrypoint() -> Glassbox:
    """ComfyUI asks here for the pack's nodes; nothing is imported before."""
    from .nodes.menu import Glassbox

    return Glassbox()


__all__ = ["WEB_DIRECTORY", "comfy_entrypoint"]
