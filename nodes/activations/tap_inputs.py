"""Inputs that several nodes of the family share, as the keywords of ComfyUI's input classes."""

from __future__ import annotations

import math
from enum import StrEnum

import torch

from ..common.pil_images import rgb
from .activations import FRAMES, MAP_SIZES, Activations, Weighting
from .select_ids import Preset

CATEGORY = "Glassbox/Activations"
SEE, STEER, MEASURE, FILES, RESEARCH = (
    f"{CATEGORY}/{menu}" for menu in ("See", "Steer", "Measure", "Files", "Research")
)
PAPER = (
    "Not All Diffusion Model Activations Have Been Evaluated as Discriminative Features (arXiv "
    "2410.03558)"
)
# relative difference of aspect ratios beside a cell's, as of sides scaled to a VAE's multiple
_ASPECT = 0.03
PRECISIONS = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}


class NoiseUnit(StrEnum):
    """Values of the ``noise_unit`` input."""

    PAPER_T = "paper_t"
    PERCENT = "percent"
    SIGMA = "sigma"


class Rows(StrEnum):
    """Values of the ``rows`` inputs: rows of the positive conditioning, of the negative one, or of
    both.
    """

    CONDITIONAL = "conditional"
    UNCONDITIONAL = "unconditional"
    BOTH = "both"


PRESET = {
    "id": "preset",
    "options": [preset.value for preset in Preset],
    "default": Preset.RECOMMENDED.value,
    "tooltip": (
        "Activations to return. recommended: the paper's set for SD1.5, SD2.1 and SDXL, a "
        "similar set elsewhere. ours_* and legacy_*: the paper's sets. paper_filter and "
        "paper_pool: the paper's lists. general_filter: its rules on any U-Net. cross_attention: "
        "for Token Heat Map, as in DAAM. cross_attention_mean: mean of all layers. custom_ids: "
        "the IDs in the ids input."
    ),
}
#: Each of these holds activations that can be read but not changed.
_READ_ALONE = (
    *(Preset.ALL_FEATURES, Preset.CROSS_ATTENTION, Preset.CROSS_ATTENTION_MEAN),
    *(Preset.PAPER_POOL, Preset.OURS_XL_T_SD15),
)
#: The presets whose activations can be changed too.
EDITABLE_PRESET = {
    **PRESET,
    "options": [preset.value for preset in Preset if preset not in _READ_ALONE],
    "tooltip": (
        "Activations to return. recommended: the paper's set for SD1.5, SD2.1 and SDXL, a "
        "similar set elsewhere. ours_* and legacy_*: the paper's sets. paper_filter: the paper's "
        "list. general_filter: its rules on any U-Net. custom_ids: the IDs in the ids input."
    ),
}
IDS = {
    "id": "ids",
    "default": "",
    "multiline": True,
    "tooltip": (
        "For preset custom_ids: IDs or wildcards, separated by commas or line breaks, e.g. "
        "up-level1-*-cross-q. Activation Catalog lists all. IDs ending in -map are attention "
        "probabilities and need much memory."
    ),
}
NOISE_UNIT = {
    "id": "noise_unit",
    "options": [unit.value for unit in NoiseUnit],
    "tooltip": (
        "Unit of level. paper_t: the paper's timestep t, 0 to 999. percent: ComfyUI's fraction "
        "of a run, 0 is noise and 1 is clean. sigma: the noise level itself."
    ),
}
LEVEL = {
    "id": "level",
    "default": 50.0,
    "min": 0.0,
    "max": 100000.0,
    "step": 0.01,
    "tooltip": "Noise level. The paper uses t = 50.",
}
POOL_SIZE = {
    "id": "pool_size",
    "default": 1,
    "min": 1,
    "max": 64,
    "tooltip": (
        "Average-pool squares of this many positions per side. 2 needs a quarter of the memory."
    ),
}
PRECISION = {
    "id": "precision",
    "options": list(PRECISIONS),
    "tooltip": "Data type of the activations. The paper's code uses fp16.",
}
WEIGHTING = {
    "id": "weighting",
    "options": [weighting.value for weighting in Weighting],
    "tooltip": (
        "Concatenation of several IDs. equal: each normalized to unit length, so all count "
        "equally. raw: unscaled, as in the paper; the largest norm dominates."
    ),
}
START_PERCENT = {
    "id": "start_percent",
    "default": 0.0,
    "min": 0.0,
    "max": 1.0,
    "step": 0.01,
    "tooltip": "Start of steering, as a fraction of the run.",
}
END_PERCENT = {
    "id": "end_percent",
    "default": 1.0,
    "min": 0.0,
    "max": 1.0,
    "step": 0.01,
    "tooltip": "End of steering, as a fraction of the run.",
}
ROWS = {
    "id": "rows",
    "options": [rows.value for rows in Rows],
    "tooltip": (
        "Rows to steer: positive conditioning (CFG amplifies the effect), negative, or both."
    ),
}


def image_of(images: torch.Tensor, activations: Activations, row: int) -> torch.Tensor:
    """The image (H, W, 3) of a row, from the batch (B, H, W, C) that was tapped.

    Of a decoded video, which has more images than its latent has frames, the one at the same
    fraction of its length. Raises ValueError when the batch does not have it, or its images have
    another aspect ratio than the tapped ones.
    """
    count = len(images)
    number = activations.rows[row].image
    frames = activations.settings.get(FRAMES, 1)
    videos = -(-(max(row.image for row in activations.rows) + 1) // frames)
    length, rest = divmod(count, videos)
    if frames > 1 and not rest and length >= frames:
        video, frame = divmod(number, frames)
        number = video * length + round(frame * (length - 1) / (frames - 1))
    if number >= count:
        raise ValueError(
            f"The activations belong to at least {number + 1} images, and the image batch has "
            f"{count}. Connect the images that were tapped."
        )
    grid = _finest_grid(activations)
    size = images.shape[1:3]
    if (
        grid
        and abs(size[0] * grid[1] / (size[1] * grid[0]) - 1) > _ASPECT + 1 / grid[0] + 1 / grid[1]
    ):
        raise ValueError(
            f"The image has {size[1]} x {size[0]} pixels and the activations {grid[1]} x {grid[0]} "
            "positions, which is another aspect ratio. Connect the images that were tapped."
        )
    return rgb(images[number])


def _finest_grid(activations: Activations) -> tuple[int, int] | None:
    """Height and width of the positions of the finest activation; None where that is not known."""
    grids = [tuple(size) for size in activations.settings.get(MAP_SIZES, {}).values()]
    grids += [
        tuple(one.shape[-2:])
        for id_, one in activations.tensors.items()
        if not id_.endswith("-map")
    ]
    return max(grids, key=math.prod, default=None)


def images_of(images: torch.Tensor, activations: Activations) -> torch.Tensor:
    """The images (rows, H, W, 3) of all rows; raises ValueError as ``image_of`` does."""
    return torch.stack([image_of(images, activations, row) for row in range(len(activations.rows))])
