"""The image that the template browser shows for a workflow: what the demo run has generated.

A workflow for a checkpoint shows what the demo model makes of the same, and says so.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

from tools.launcher.errors import LaunchError
from tools.launcher.paths import write_atomically
from tools.workflows.titles import path_of

_SIDE = 400  # pixels of a thumbnail
_LOWEST = 200  # pixels from top to bottom at least
_MOST = 4  # images in one thumbnail, where none are chosen
_TITLE = 20  # pixels above an image
_BAND = 34  # pixels below the images of a demo that stands for a checkpoint
_BASES = {
    "flux": "Flux",
    "flux2": "FLUX.2 klein",
    "krea2": "Krea 2",
    "qwen": "Qwen-Image",
    "sd15": "SD1.5",
    "sd3": "SD3",
    "sdxl": "SDXL",
    "wan": "Wan",
    "zimage": "Z-Image",
}
#: The demos whose images stand for a workflow, where no demo has its name.
_TWINS = {
    "flux_weights_own_space": "demo_weights_edit",
    "sd15_weights_official_release": "demo_weights_sample",
    "sd3_conditioning_larger_images": "demo_conditioning_higher_resolution",
    "sdxl_weights_own_space": "demo_weights_edit",
    "wan_activations_edit_late_by_words": "demo_activations_edit_image_by_words",
}
#: Numbers of the images to show, where the first ones would not show what a workflow is about.
_CHOSEN = {
    "demo_activations_clusters": (1,),
    "demo_activations_compare": (1,),
    "demo_activations_edit_late_by_words": (1, 3, 5, 2, 4, 6),
    "demo_activations_patching": (1, 5, 9, 2, 6, 10),
    "demo_activations_point_similarity": (9, 10, 13, 14, 21, 22),
    "demo_activations_record": (1,),
    "demo_activations_score": (1, 2),
    "demo_activations_sparse_features": (2, 6, 3, 7),
    "demo_activations_steering": (1, 5, 2, 6),
    "demo_activations_steering_sliders": (1, 5, 2, 6),
    "demo_activations_correspondence": (2,),
    "demo_activations_token_heat_map": (1,),
    "demo_conditioning_guider_grid": (1, 3, 5, 2, 4, 6),
    "demo_conditioning_replicate_padding": (1, 3, 5, 7),
    "demo_conditioning_resolution_rescale": (1,),
    "demo_conditioning_size_sweep": (1,),
    "demo_neurons_baselines": (1, 3, 5, 7, 9),
    "demo_neurons_concept": (1, 2, 3, 9, 10, 11),
    "demo_neurons_find_and_mask": (1,),
    "demo_neurons_scan_and_mask": (2,),
    "demo_neurons_unlearning": (1, 5, 7, 13, 9, 10),
    "demo_noise_from_scratch": (1, 2),
    "demo_noise_portrait_desk": (2,),
    "demo_noise_train_lora": (2, 3, 4, 5),
    "demo_weights_label_members": (1, 2, 3, 4, 41, 42),
    "demo_weights_sweep": (1,),
    "demo_weights_train_slider": (4,),
    "demo_weights_train_space": (4,),
}


def write(name: str, images: Path) -> Path:
    """Write the thumbnail from NAME_1.png, NAME_2.png ... in the folder `images`; returns the file
    written.
    """
    base, _, rest = name.partition("_")
    demo = name if base not in _BASES else _TWINS.get(name, f"demo_{rest}")
    files = sorted(
        images.glob(f"{demo}_[0-9]*.png"), key=lambda file: int(file.stem.rsplit("_", 1)[1])
    )
    if not files:
        raise LaunchError(
            f"{images} has no image of {demo}: make it with python run.py demo --all --out "
            f"{images}."
        )
    named = images / f"{demo}_titles.json"
    titles = json.loads(named.read_text("utf-8")) if named.is_file() else {}
    page = tile(
        [files[number - 1] for number in _CHOSEN[demo]] if demo in _CHOSEN else files[:_MOST],
        titles,
    )
    content = io.BytesIO()
    (marked(page, _BASES[base]) if base in _BASES else page).save(content, "JPEG", quality=88)
    target = path_of(name).with_suffix(".jpg")
    write_atomically(target, content.getvalue())
    return target


def marked(page: Image.Image, base: str) -> Image.Image:
    """A page above a band that says what it needs, and whose images these are."""
    whole = Image.new("RGB", (page.width, page.height + _BAND), "#101418")
    whole.paste(page)
    text = f"For {base}. Images: the demo model"
    ImageDraw.Draw(whole).text((12, page.height + 8), text, "#ffa931", ImageFont.load_default(16))
    return whole


def tile(files: list[Path], titles: Mapping[str, str] | None = None) -> Image.Image:
    """One image that holds the given ones: a single one whole, up to four in two columns, more in
    three.

    ``titles``: of files by their names; where images of several nodes share the page, each has its
    own above it.
    """
    titles = titles or {}
    labeled = len({titles.get(file.name) for file in files}) > 1
    columns = 1 if len(files) == 1 else 2 if len(files) <= 4 else 3
    side, images = _SIDE // columns, []
    for file in files:
        with Image.open(file) as opened:
            image = opened.convert("RGB")
        scale = (side - _TITLE * labeled) / max(image.size)
        size = (max(round(image.width * scale), 1), max(round(image.height * scale), 1))
        image = image.resize(size, Image.Resampling.LANCZOS)
        images.append(_labeled(image, titles.get(file.name, ""), side) if labeled else image)
    rows = [images[first : first + columns] for first in range(0, len(images), columns)]
    heights = [max(image.height for image in row) for row in rows]
    page = Image.new("RGB", (_SIDE, max(sum(heights), _LOWEST)), "white")
    top = (page.height - sum(heights)) // 2
    for row, height in zip(rows, heights, strict=True):
        for column, image in enumerate(row):
            page.paste(
                image,
                (column * side + (side - image.width) // 2, top + (height - image.height) // 2),
            )
        top += height
    return page


def _labeled(image: Image.Image, title: str, width: int) -> Image.Image:
    """An image below its title, which is cut to the width of the page."""
    font, page = (
        ImageFont.load_default(_TITLE - 6),
        Image.new("RGB", (width, image.height + _TITLE), "white"),
    )
    left = (width - image.width) // 2
    page.paste(image, (left, _TITLE))
    draw = ImageDraw.Draw(page)
    while title and draw.textlength(title, font) > width - left:
        title = title[:-1].rstrip()
    draw.text((left, 3), title, "black", font)
    return page
