"""ComfyUI-Glassbox: a diffusion model's weights, activations, conditioning, noise and neurons, to see and to steer."""

WEB_DIRECTORY = "./web"


async def comfy_entrypoint():
    """ComfyUI asks here for the pack's nodes; nothing is imported before."""
    from .nodes.menu import Glassbox

    return Glassbox()


__all__ = ["WEB_DIRECTORY", "comfy_entrypoint"]
