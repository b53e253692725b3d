"""Matplotlib figures as ComfyUI images."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import folder_paths
import numpy as np
import torch

from .progress import check_stop, interruptible

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def new_figure(width: int = 800, height: int = 500) -> Figure:
    """An empty matplotlib figure of that many pixels; it belongs to no window and to no global list
    of figures.
    """
    try:
        figure = interruptible(_import_figure)
    except ImportError as error:
        from ..common.packages import missing_package

        raise RuntimeError(missing_package("Drawing figures", "matplotlib", error)) from error
    return figure(figsize=(width / 100, height / 100), dpi=100, layout="constrained")


def _import_figure() -> type:
    from matplotlib.figure import Figure

    return Figure


# characters in a figure: of a few 10,000 matplotlib draws for minutes, and cannot be stopped
_LONGEST_TEXT = 300


def to_image(figure: Figure) -> torch.Tensor:
    """A figure as an IMAGE: (1, height, width, 3), values 0 to 1. Dollar signs in its texts are
    just that.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.text import Text

    from ..common.fonts import families
    from ..common.pil_images import from_pil

    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            axis.get_ticklabels(which="both")  # makes them
    for text in figure.findobj(Text):
        content = text.get_text()
        if content and "\\mathdefault" not in content:  # matplotlib's own powers of 10
            text.set_parse_math(False)
            text.set_text(
                content if len(content) <= _LONGEST_TEXT else f"{content[: _LONGEST_TEXT - 3]}..."
            )
            if not content.isascii():
                text.set_fontfamily(families(text.get_text()))
    canvas = FigureCanvasAgg(figure)
    renderer = canvas.get_renderer()  # which the canvas then draws with
    for name in _DRAWN:
        setattr(renderer, name, _stoppable(getattr(renderer, name)))
    # In a thread also because matplotlib leaves circles of exceptions behind when it parses, which
    # keep all callers.
    interruptible(canvas.draw)
    return from_pil(np.asarray(canvas.buffer_rgba())[..., :3]).unsqueeze(0)


#: What matplotlib calls for each thing that it measures or draws.
_DRAWN = ("draw_path", "draw_markers", "draw_image", "draw_text", "get_text_width_height_descent")


def _stoppable(draw: Callable) -> Callable:
    def drawn(*args: Any, **kwargs: Any) -> Any:
        check_stop()
        return draw(*args, **kwargs)

    return drawn


_MOST = 16


def save_preview_images(images: torch.Tensor, number: int) -> list[dict]:
    """Save the images of an IMAGE (B, H, W, C) as ``save_previews`` does: up to 16 images, else
    image ``number`` alone.
    """
    return save_previews(images, range(len(images)) if len(images) <= _MOST else [number])


def save_previews(images: torch.Tensor, numbers: Iterable[int]) -> list[dict]:
    """Save images of an IMAGE (B, H, W, C) for a panel, and list the files.

    Each: ``number`` in the batch, ``width`` and ``height`` in pixels, and the parameters of
    ComfyUI's /view.
    """
    return [_save(images[number], number) for number in numbers]


def to_compare(
    images: Sequence[torch.Tensor], labels: Sequence[str], shown: tuple[int, int]
) -> dict:
    """What a node hands to its compare panel: up to 16 images (H, W, C), two of which show
    first.
    """
    saved = [
        {**_save(image, number), "label": labels[number]}
        for number, image in enumerate(images[:_MOST])
    ]
    return {
        "glassbox_compare": [
            {"images": saved, "shown": [range(len(saved))[number] for number in shown]}
        ]
    }


def _save(image: torch.Tensor, number: int) -> dict:
    from ..common.pil_images import to_pil

    folder = Path(folder_paths.get_temp_directory())
    folder.mkdir(parents=True, exist_ok=True)
    name = f"glassbox_{uuid.uuid4().hex}.png"
    saved = to_pil(image)
    saved.save(folder / name, compress_level=1)
    width, height = saved.size
    return {
        "number": number,
        "width": width,
        "height": height,
        "filename": name,
        "subfolder": "",
        "type": "temp",
    }
