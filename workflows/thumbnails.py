"""The picture that the template browser shows for a workflow: made from what the demo run has painted."""

from __future__ import annotations

import io
from pathlib import Path

from PIL import Image

from launch.errors import LaunchError
from launch.paths import write_atomically

from . import FOLDER

_SIDE = 400  # pixels of a thumbnail
_MOST = 4  # pictures in one thumbnail, where none are chosen
#: Numbers of the pictures to show, where the first ones would not show what a workflow is about.
_CHOSEN = {
    "demo_conditioning_guider_grid": (1, 3, 5, 2, 4, 6),
    "demo_conditioning_replicate_padding": (1, 3, 5, 7),
    "demo_conditioning_resolution_rescale": (1, 2, 4, 5),
    "demo_conditioning_size_sweep": (1, 3, 5, 7, 9, 11),
    "demo_neurons_baselines": (1, 3, 5, 7, 9),
    "demo_neurons_find_and_mask": (1, 2, 3, 5, 6, 7, 9, 10, 11),
    "demo_neurons_known_neurons": (1, 2, 3, 5, 6, 7),
    "demo_weights_sample": (1, 2, 3, 4, 5, 6),
}


def write(name: str, pictures: Path) -> Path:
    """Write NAME.jpg from NAME_1.png, NAME_2.png ... in the folder `pictures`; returns the file written."""
    files = sorted(pictures.glob(f"{name}_[0-9]*.png"), key=lambda file: int(file.stem.rsplit("_", 1)[1]))
    if not files:
        raise LaunchError(f"{pictures} has no picture of {name}: make it with python run.py demo --out {pictures}.")
    shown = [files[number - 1] for number in _CHOSEN[name]] if name in _CHOSEN else files[:_MOST]
    content = io.BytesIO()
    tile(shown).save(content, "JPEG", quality=88)
    target = FOLDER / f"{name}.jpg"
    write_atomically(target, content.getvalue())
    return target


def tile(files: list[Path]) -> Image.Image:
    """One picture that holds the given ones: a single one whole, up to four in two columns, more in three."""
    columns = 1 if len(files) == 1 else 2 if len(files) <= 4 else 3
    side = _SIDE // columns
    rows = -(-len(files) // columns)
    page = Image.new("RGB", (_SIDE, side * rows), "white")
    for index, file in enumerate(files):
        row, column = divmod(index, columns)
        with Image.open(file) as opened:
            picture = opened.convert("RGB")
        scale = side / max(picture.size)
        size = (max(round(picture.width * scale), 1), max(round(picture.height * scale), 1))
        picture = picture.resize(size, Image.Resampling.LANCZOS)
        page.paste(picture, (column * side + (side - size[0]) // 2, row * side + (side - size[1]) // 2))
    return page
