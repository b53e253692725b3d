"""The image that the template browser shows for a workflow: what the demo run has generated, or else its graph."""

from __future__ import annotations

import io
import json
import textwrap
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

from tools.launcher.errors import LaunchError
from tools.launcher.paths import WORKFLOWS, write_atomically

_SIDE = 400  # pixels of a thumbnail
_MOST = 4  # images in one thumbnail, where none are chosen
#: Numbers of the images to show, where the first ones would not show what a workflow is about.
_CHOSEN = {
    "demo_activations_compare": (1,),
    "demo_activations_patching": (1, 2, 3, 5, 6, 7, 9, 10, 11),
    "demo_activations_point_similarity": (9, 10, 13, 14, 21, 22),
    "demo_activations_record": (1, 5, 9, 2, 6, 10),
    "demo_activations_score": (1, 2),
    "demo_activations_sparse_features": (2, 6, 3, 7),
    "demo_activations_steering": (1, 5, 2, 6),
    "demo_activations_steering_sliders": (1, 5, 2, 6),
    "demo_activations_token_heat_map": (1,),
    "demo_conditioning_guider_grid": (1, 3, 5, 2, 4, 6),
    "demo_conditioning_replicate_padding": (1, 3, 5, 7),
    "demo_conditioning_size_sweep": (1, 3, 5, 7, 9, 11),
    "demo_neurons_baselines": (1, 3, 5, 7, 9),
    "demo_neurons_concept": (1, 2, 3, 9, 10, 11),
    "demo_neurons_find_and_mask": (1, 2, 3, 5, 6, 7, 9, 10, 11),
    "demo_neurons_scan_and_mask": (2,),
    "demo_neurons_unlearning": (1, 5, 7, 13, 9, 10),
    "demo_neurons_known_neurons": (1, 2, 3, 5, 6, 7),
    "demo_noise_composition": (5, 6, 7, 1, 2, 3),
    "demo_noise_from_scratch": (1, 2),
    "demo_noise_seed_scout": (3, 4, 5, 10, 11, 12),
    "demo_weights_edit": (1, 2),
    "demo_weights_label_members": (1, 2, 3, 4, 41, 42),
    "demo_weights_sample": (1, 2, 3, 4, 5, 6),
}


def write(name: str, images: Path) -> Path:
    """Write NAME.jpg from NAME_1.png, NAME_2.png ... in the folder `images`; returns the file written."""
    files = sorted(images.glob(f"{name}_[0-9]*.png"), key=lambda file: int(file.stem.rsplit("_", 1)[1]))
    if not files:
        raise LaunchError(f"{images} has no image of {name}: make it with python run.py demo --out {images}.")
    shown = [files[number - 1] for number in _CHOSEN[name]] if name in _CHOSEN else files[:_MOST]
    content = io.BytesIO()
    tile(shown).save(content, "JPEG", quality=88)
    target = WORKFLOWS / f"{name}.jpg"
    write_atomically(target, content.getvalue())
    return target


def tile(files: list[Path]) -> Image.Image:
    """One image that holds the given ones: a single one whole, up to four in two columns, more in three."""
    columns = 1 if len(files) == 1 else 2 if len(files) <= 4 else 3
    side = _SIDE // columns
    rows = -(-len(files) // columns)
    page = Image.new("RGB", (_SIDE, side * rows), "white")
    for index, file in enumerate(files):
        row, column = divmod(index, columns)
        with Image.open(file) as opened:
            image = opened.convert("RGB")
        scale = side / max(image.size)
        size = (max(round(image.width * scale), 1), max(round(image.height * scale), 1))
        image = image.resize(size, Image.Resampling.LANCZOS)
        page.paste(image, (column * side + (side - size[0]) // 2, row * side + (side - size[1]) // 2))
    return page


#: Colors of wires by type, as the canvas draws them.
_WIRES = {
    "MODEL": "#b39ddb",
    "CLIP": "#ffd500",
    "VAE": "#ff6e6e",
    "CONDITIONING": "#ffa931",
    "LATENT": "#ff9cf9",
    "IMAGE": "#64b5f6",
}
_NOTE = "#665533"
_BASES = {"sd15": "SD1.5", "sdxl": "SDXL", "sd3": "SD3", "flux": "Flux"}


def write_graph(path: Path) -> Path:
    """Write NAME.jpg for a workflow that needs a checkpoint: its graph, the checkpoint and the title of its note."""
    saved = json.loads(path.read_text("utf-8"))
    content = io.BytesIO()
    draw_graph(saved, _BASES[path.stem.partition("_")[0]]).save(content, "JPEG", quality=88)
    target = path.with_suffix(".jpg")
    write_atomically(target, content.getvalue())
    return target


def draw_graph(saved: dict, base: str) -> Image.Image:
    """Nodes, groups and wires of a saved canvas, 400 x 400, above a band that names the checkpoint and the subject."""
    scale, band = 3, 84  # drawn larger and brought down, for smooth wires
    page = Image.new("RGB", (_SIDE * scale, _SIDE * scale), "#1e1e1e")
    pen = ImageDraw.Draw(page)
    nodes = {node["id"]: (*node["pos"], *node["size"]) for node in saved["nodes"]}
    right = max(left + width for left, _, width, _ in nodes.values())
    bottom = max(top + height for _, top, _, height in nodes.values())
    zoom = min((_SIDE - 20) / right, (_SIDE - band - 20) / bottom) * scale
    shift = (page.width - right * zoom) / 2, (page.height - band * scale - bottom * zoom) / 2

    def place(x: float, y: float) -> tuple[float, float]:
        return shift[0] + x * zoom, shift[1] + y * zoom

    for group in saved["groups"]:
        left, top, width, height = group["bounding"]
        pen.rectangle((*place(left, top), *place(left + width, top + height)), "#263a44")
    for _, source, slot, target, socket, kind in saved["links"]:
        (left, top, width, _), (end_left, end_top, _, _) = nodes[source], nodes[target]
        start, end = place(left + width, top + 10 + 20 * slot), place(end_left, end_top + 10 + 20 * socket)
        pen.line((start, end), _WIRES.get(kind, "#9aa0a6"), width=3)
    for node in saved["nodes"]:
        left, top, width, height = nodes[node["id"]]
        body = "#3d4a63" if node["type"].startswith("GBX_") else _NOTE if node["type"] == "MarkdownNote" else "#3a3a3a"
        pen.rounded_rectangle((*place(left, top - 30), *place(left + width, top + height)), 8, body, "#777", 2)
    title = next(node["title"] for node in saved["nodes"] if node["type"] == "MarkdownNote")
    pen.rectangle((0, page.height - band * scale, page.width, page.height), "#101418")
    top = page.height - band * scale + 8 * scale
    pen.text((12 * scale, top), base, "#ffa931", ImageFont.load_default(20 * scale))
    lines = textwrap.wrap(title, 44)[:2]
    pen.multiline_text((12 * scale, top + 28 * scale), "\n".join(lines), "#fff", ImageFont.load_default(16 * scale))
    return page.resize((_SIDE, _SIDE), Image.Resampling.LANCZOS)
