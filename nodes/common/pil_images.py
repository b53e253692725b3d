"""ComfyUI's images, floats from 0 to 1, as PIL's and back: the one place that rounds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageOps

_ROWS = 512
_REDUCED = (
    "L",
    "LA",
    "RGB",
    "RGBA",
    "RGBa",
    "La",
    "CMYK",
    "YCbCr",
)  # modes whose pixels can be averaged


def rgb(images: torch.Tensor) -> torch.Tensor:
    """Images (..., C) with their three colors: without alpha, and gray ones with their one channel
    thrice.
    """
    return (
        images[..., :3] if images.shape[-1] >= 3 else images[..., :1].expand(*images.shape[:-1], 3)
    )


def to_pil(image: torch.Tensor) -> Image.Image:
    """An image (H, W, C) of any number of channels, see ``rgb``; values are clamped to 0..1."""
    return Image.fromarray((rgb(image).clamp(0, 1) * 255).round().to(torch.uint8).cpu().numpy())


def in_8_bits(image: Image.Image) -> Image.Image:
    """A PIL image in RGB; gray ones of 16 bits keep their shades, where ``convert`` makes what is
    above 255 white.
    """
    if image.mode.startswith("I"):
        image = Image.fromarray(
            (np.asarray(image, np.float32) / 257).round().clip(0, 255).astype(np.uint8)
        )
    return image.convert("RGB")


def open_image(path: Path, least: tuple[int, int] | None = None) -> Image.Image:
    """The upright image of a file, in memory; raises ValueError with the reason for one that cannot
    be read.

    ``least``: height and width that are needed; a much larger image is reduced by a whole factor
    while it is decoded (JPEG) or right after, before anything makes floats of it.
    """
    try:
        with Image.open(path) as image:
            if least is not None:
                image.draft(None, (least[1], least[0]))
            upright = ImageOps.exif_transpose(image)
            upright.load()
            factor = (
                1 if least is None else min(upright.width // least[1], upright.height // least[0])
            )
            if factor > 1:
                if upright.mode not in _REDUCED:  # palettes, one bit, 16 bits
                    see_through = "A" in upright.getbands() or "transparency" in upright.info
                    upright = upright.convert("RGBA") if see_through else in_8_bits(upright)
                upright = upright.reduce(factor)
            return upright
    except Exception as error:  # Pillow's readers of damaged files raise nearly anything
        from .failures import is_out_of_memory

        if is_out_of_memory(error):
            raise
        raise ValueError(f"cannot be read ({type(error).__name__})") from None


def from_pil(image: Image.Image | np.ndarray) -> torch.Tensor:
    """float32 (H, W) or (H, W, C) in 0..1 on the CPU, of an image or of pixels of 8 bits."""
    pixels = np.asarray(image)
    result = torch.empty(pixels.shape)
    for first in range(0, len(pixels), _ROWS):  # each of a large sheet takes less than a moment
        result[first : first + _ROWS] = torch.from_numpy(
            pixels[first : first + _ROWS].astype(np.float32) / 255
        )
    return result
