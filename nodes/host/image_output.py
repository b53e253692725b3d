"""Matplotlib figures as ComfyUI images."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from pathlib import Path

import folder_paths
import numpy as np
import torch
from PIL import Image


def new_figure(width: int = 800, height: int = 500):
    """An empty matplotlib figure of that many pixels; it belongs to no window and to no global list of figures."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise RuntimeError("Drawing figures needs matplotlib: pip install matplotlib") from error
    return Figure(figsize=(width / 100, height / 100), dpi=100, layout="constrained")


def to_image(figure) -> torch.Tensor:
    """A figure as an IMAGE: (1, height, width, 3), values 0 to 1."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    pixels = np.asarray(canvas.buffer_rgba())[..., :3]
    return torch.from_numpy(pixels.astype(np.float32) / 255).unsqueeze(0)


_MOST = 16


def save_preview_images(images: torch.Tensor, number: int) -> list[dict]:
    """Save the images of an IMAGE (B, H, W, C) and list the files: up to 16 images, else image ``number`` alone.

    Each: ``number`` in the batch, ``width`` and ``height`` in pixels, and the parameters of ComfyUI's /view.
    """
    numbers = range(len(images)) if len(images) <= _MOST else [number]
    return [_save(images[one], one) for one in numbers]


def to_compare(images: Sequence[torch.Tensor], labels: Sequence[str], shown: tuple[int, int]) -> dict:
    """What a node hands to its compare panel: up to 16 images (H, W, C), two of which show first."""
    saved = [{**_save(image, number), "label": labels[number]} for number, image in enumerate(images[:_MOST])]
    return {"glassbox_compare": [{"images": saved, "shown": [range(len(saved))[number] for number in shown]}]}


def _save(image: torch.Tensor, number: int) -> dict:
    folder = Path(folder_paths.get_temp_directory())
    folder.mkdir(parents=True, exist_ok=True)
    pixels = (image[..., :3].clamp(0, 1) * 255).round().to(torch.uint8).cpu().numpy()
    name = f"glassbox_{uuid.uuid4().hex}.png"
    Image.fromarray(pixels).save(folder / name, compress_level=1)
    height, width = pixels.shape[:2]
    return {"number": number, "width": width, "height": height, "filename": name, "subfolder": "", "type": "temp"}
