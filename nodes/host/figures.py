"""Matplotlib figures as ComfyUI images."""

from __future__ import annotations

import numpy as np
import torch


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
