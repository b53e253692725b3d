"""The images of the help pages in web/docs, made from the demo run's images."""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from tools.launcher.errors import LaunchError
from tools.launcher.paths import ROOT, write_atomically

FOLDER = ROOT / "web" / "docs" / "images"
_WIDTH = 640  # pixels of the widest image
_TILE = 128  # pixels of a generated image beside others
_FIGURE = 250  # a drawn figure has no side shorter than this


@dataclass(frozen=True)
class Pick:
    """Files NAME_1.png, NAME_2.png ... of a workflow's demo run, in rows of so many; figures are
    shown large.
    """

    workflow: str
    numbers: tuple[int, ...]
    columns: int = 0
    figure: bool = False


def _figure(workflow: str, *numbers: int) -> Pick:
    return Pick(f"demo_{workflow}", numbers, figure=True)


def _generated(workflow: str, *numbers: int, columns: int = 0) -> Pick:
    return Pick(f"demo_{workflow}", numbers, columns)


IMAGES = {
    "space_slider": _figure("weights_train_slider", 4),
    "sliders_discovered": _figure("weights_discover_sliders", 1),
    "slider_pairs": _generated(
        "weights_train_slider_pairs", 1, 2, 3, 7, 8, 9, 13, 14, 15, columns=3
    ),
    "activation_map": _figure("activations_tap_and_pca", 3),
    "activation_sheet": _figure("activations_tap_and_pca", 2),
    "activation_colors": _figure("activations_tap_and_pca", 1),
    "activation_clusters": _figure("activations_clusters", 1),
    "activation_points": _figure("activations_correspondence", 2),
    "activation_parts": _figure("activations_few_shot_segmentation", 1),
    "activation_similarity": _generated("activations_point_similarity", 9, 10, 11, 12),
    "activation_quality": _figure("activations_quality", 1),
    "activation_record": _figure("activations_record", 1),
    "activation_file": _figure("activations_record", 2),
    "activation_words": _figure("activations_token_heat_map", 1),
    "activation_steering": _generated("activations_steering", *range(1, 9), columns=4),
    "flow_edit": _figure("activations_edit_image_by_words", 1),
    "image_to_noise": _figure("activations_edit_image_by_words", 1),
    "edit_by_words": _figure("activations_edit_image_by_words", 1),
    "activation_patching": _generated("activations_patching", *range(1, 13), columns=4),
    "activation_patching_map": _figure("activations_patching", 13),
    "activation_comparison": _figure("activations_compare", 1),
    "activation_scores": _figure("activations_score", 1),
    "metadata_sizes": _figure("conditioning_size_sweep", 1),
    "metadata_gate": _figure("conditioning_size_sweep", 2),
    "metadata_report": _figure("conditioning_size_sweep", 3),
    "metadata_guider": _generated("conditioning_guider_grid", 1, 3, 5),
    "padding": _generated("conditioning_replicate_padding", 1, 3, 5, 7),
    "noise_levels": _figure("conditioning_resolution_rescale", 2),
    "neurons_layers": _figure("neurons_which_layers", 1),
    "neurons_scan": _figure("neurons_scan_list", 1),
    "neurons_scan_report": _figure("neurons_scan_and_mask", 2),
    "neurons_threshold": _figure("neurons_scan_list", 2),
    "neurons_search": _figure("neurons_known_neurons", 11),
    "neurons_report": _figure("neurons_known_neurons", 9),
    "neurons_masked": _figure("neurons_find_and_mask", 1),
    "neurons_shared": _generated("neurons_share_mask", 1, 2, 3, 4),
    "neurons_baselines": _generated("neurons_baselines", 1, 3, 5, 7, 9),
    "neurons_concept": _generated("neurons_concept", *range(1, 17), columns=4),
    "neurons_unlearning": _generated("neurons_unlearning", 1, 5, 6, 7, 8),
    "neurons_audit": _figure("neurons_audit", 4),
    "noise_distances": _figure("noise_immiscible_gain", 1),
    "noise_from_scratch": _figure("noise_from_scratch", 3),
    "noise_gain": _figure("noise_immiscible_gain", 2),
    "noise_ksampler": _generated("noise_immiscible_stock_ksampler", 1, 2, 3, 4, 5),
    "noise_training": _figure("noise_train_lora", 1),
    "seed_scout": _figure("noise_seed_scout", 1),
    "noise_composition": _figure("noise_composition", 1),
    "size_sheet": _figure("conditioning_size_sheet", 1),
    "seed_variety": _figure("conditioning_seed_variety", 1),
    "space_people": _figure("weights_sample", 1),
    "space_built": _figure("weights_build_space", 1),
    "space_edits": _figure("weights_edit", 1),
    "space_sweep": _figure("weights_sweep", 1),
    "space_mix": _figure("weights_sweep", 2),
    "space_delayed": _generated("weights_delayed_injection", 1, 2, 3, 4),
    "space_inverted": _generated("weights_invert", 1, 2, 3, 4),
    "space_lora": _figure("weights_to_lora", 1),
    "demo_generated": _figure("world_text_to_image", 1),
    "demo_drawn": _generated("activations_point_similarity", 1, 2, 3, 4),
}


def write(name: str, generated: Path) -> Path:
    """Write NAME.jpg for the help pages from the demo's images in the folder `generated`; returns
    the file written.
    """
    pick = IMAGES[name]
    files = [generated / f"{pick.workflow}_{number}.png" for number in pick.numbers]
    missing = next((file for file in files if not file.is_file()), None)
    if missing:
        raise LaunchError(
            f"{missing} is missing: make it with python run.py demo --all --out {generated}."
        )
    images = [Image.open(file).convert("RGB") for file in files]
    if any(_is_figure(image) != pick.figure for image in images):
        raise LaunchError(
            f"{pick.workflow} makes other images than {name} expects: look at them and correct it."
        )
    page = images[0] if pick.figure else _tiled(images, pick.columns or len(images))
    page.thumbnail((_WIDTH, 2 * _WIDTH), Image.Resampling.LANCZOS)
    content = io.BytesIO()
    page.save(content, "JPEG", quality=85, optimize=True)
    target = FOLDER / f"{name}.jpg"
    write_atomically(target, content.getvalue())
    return target


def write_positions() -> Path:
    """Write positions.jpg: where SD3's patches of 1536 pixels lie as the model comes, and
    resampled.
    """
    from matplotlib.figure import Figure

    trained, wanted, spacing = (
        64,
        96,
        0.25,
    )  # patches a side at 1024 and 1536 pixels, and the table's step
    stock = [(patch - (wanted - trained) / 2) * spacing for patch in range(wanted)]
    resampled = [patch * trained / wanted * spacing for patch in range(wanted)]
    figure = Figure(figsize=(6.4, 2.4), layout="constrained")
    axes = figure.add_subplot(
        xlabel="position that a patch is given",
        yticks=[0, 1],
        yticklabels=["resampled", "stock"],
        ylim=(-0.6, 1.6),
    )
    axes.axvspan(0, (trained - 1) * spacing, color="tab:green", alpha=0.15, label="trained range")
    axes.plot(stock, [1] * wanted, "|", color="tab:gray", markersize=14)
    axes.plot(resampled, [0] * wanted, "|", color="tab:blue", markersize=14)
    axes.legend(loc="center right", fontsize=8)
    content = io.BytesIO()
    figure.savefig(content, format="jpeg", dpi=100, pil_kwargs={"quality": 85})
    write_atomically(FOLDER / "positions.jpg", content.getvalue())
    return FOLDER / "positions.jpg"


def _is_figure(image: Image.Image) -> bool:
    """Whether it is drawn and not generated: figures are wide or high, paintings square."""
    return min(image.size) >= _FIGURE and image.width != image.height


def _tiled(images: list[Image.Image], columns: int) -> Image.Image:
    rows = -(-len(images) // columns)
    page = Image.new("RGB", (columns * _TILE, rows * _TILE), "white")
    for index, image in enumerate(images):
        row, column = divmod(index, columns)
        page.paste(
            image.resize((_TILE, _TILE), Image.Resampling.LANCZOS), (column * _TILE, row * _TILE)
        )
    return page
