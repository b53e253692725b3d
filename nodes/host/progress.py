"""A long run's progress bar with pictures of its own, and ComfyUI's Stop button."""

from __future__ import annotations

import comfy.model_management
import comfy.utils
import torch
from PIL import Image

#: What stops a run when the user presses Stop; whoever catches it goes on, and ComfyUI with the nodes that follow.
Stopped = comfy.model_management.InterruptProcessingException

_PREVIEW_SIDE = 512


class Progress:
    """ComfyUI's progress bar over so many steps."""

    def __init__(self, total: int):
        self._bar, self._total = comfy.utils.ProgressBar(total), total

    def show(self, done: int, pictures: torch.Tensor | None = None) -> None:
        """Move the bar, and show an IMAGE (B, H, W, 3) under the node, its pictures side by side."""
        preview = None if pictures is None else ("JPEG", _strip(pictures), _PREVIEW_SIDE)
        self._bar.update_absolute(done, self._total, preview)


def nothing_to_show():
    """An output that lets the nodes behind it rest, without an error."""
    from comfy_execution.graph import ExecutionBlocker

    return ExecutionBlocker(None)


def _strip(pictures: torch.Tensor) -> Image.Image:
    row = torch.cat(list(pictures), dim=1)
    return Image.fromarray((row.clamp(0, 1) * 255).round().to(torch.uint8).cpu().numpy())
