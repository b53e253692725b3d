"""The picture that the template browser shows for a workflow: made from what the demo run has painted."""

from __future__ import annotations

import io
from pathlib import Path

from PIL import Image

from launch.errors import LaunchError
from launch.paths import write_atomically

from . import FOLDER

_SIDE = 400  # pixels of a thumbnail
_MOST = 4  # pictures in one thumbnail


def write(name: str, pictures: Path) -> Path:
    """Write NAME.jpg from NAME_1.png, NAME_2.png ... in the folder `pictures`; returns the file written."""
    files = sorted(pictures.glob(f"{name}_[0-9]*.png"), key=lambda file: int(file.stem.rsplit("_", 1)[1]))
    if not files:
        raise LaunchError(f"{pictures} has no picture of {name}: make it with python run.py demo --out {pictures}.")
    content = io.BytesIO()
    tile(files[:_MOST]).save(content, "JPEG", quality=88)
    target = FOLDER / f"{name}.jpg"
    write_atomically(target, content.getvalue())
    return target


def tile(files: list[Path]) -> Image.Image:
    """One picture that holds the given ones: a single one whole, two side by side, up to four in the quarters."""
    columns = 1 if len(files) == 1 else 2
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
