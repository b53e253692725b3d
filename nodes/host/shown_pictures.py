"""Pictures in ComfyUI's temporary folder, for the pack's widgets to show."""

from __future__ import annotations

import uuid
from pathlib import Path

import folder_paths
import torch
from PIL import Image

_MOST = 16


def shown_pictures(images: torch.Tensor, number: int) -> list[dict]:
    """Save the pictures of an IMAGE (B, H, W, C) and say where each is: the first 16, else picture ``number`` alone.

    Each: ``number`` in the batch, ``width`` and ``height`` in pixels, and what ComfyUI's /view asks for.
    """
    numbers = range(len(images)) if len(images) <= _MOST else [number]
    return [_save(images[one], one) for one in numbers]


def _save(picture: torch.Tensor, number: int) -> dict:
    folder = Path(folder_paths.get_temp_directory())
    folder.mkdir(parents=True, exist_ok=True)
    pixels = (picture[..., :3].clamp(0, 1) * 255).round().to(torch.uint8).cpu().numpy()
    name = f"glassbox_{uuid.uuid4().hex}.png"
    Image.fromarray(pixels).save(folder / name, compress_level=1)
    height, width = pixels.shape[:2]
    return {"number": number, "width": width, "height": height, "filename": name, "subfolder": "", "type": "temp"}
