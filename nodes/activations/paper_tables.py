"""What the paper publishes about single activations (arXiv 2410.03558): pools, filter, sets,
scores, timestep.
"""

from __future__ import annotations

import csv
from functools import cache
from pathlib import Path

from .activation_spec import ActivationSpec

_DATA = Path(__file__).resolve().parent / "data"
#: Architectures of the paper, with the number of IDs of their U-Nets.
ARCHITECTURES = {"sd15": 197, "sdxl": 612}
FLAGS = ("pool", "filter", "ours", "legacy")
#: SD1.5's text width; SD2.1 has the same IDs and another width.
_SD15_CONTEXT = 768
_LAST_TIMESTEP = 999

#: The sets of section 5 and appendix C by preset, each with its architecture. Ours-XL-t joins
#: features of several models: here are the parts from each single model. ``attn`` is the attention
#: feature, 77 tokens at two sizes.
SETS = {
    "ours_v1_5": (
        "sd15",
        (
            "up-level1-repeat1-vit-block0-cross-q",
            "up-level1-repeat2-res-out",
            "up-level2-repeat1-vit-block0-cross-q",
            "up-level3-repeat0-vit-block0-self-k",
        ),
    ),
    "ours_xl": (
        "sdxl",
        (
            "up-level0-repeat0-vit-block5-out",
            "up-level0-repeat0-vit-block7-out",
            "up-level1-repeat0-vit-block0-cross-q",
            "up-level1-repeat0-vit-block0-out",
        ),
    ),
    "ours_xl_t_sd15": (
        "sd15",
        (
            "up-level1-repeat1-vit-block0-cross-q",
            "up-level2-repeat1-vit-block0-cross-q",
            "up-level2-upsampler-out",
            "up-level3-repeat0-vit-block0-self-k",
            "attn",
        ),
    ),
    "ours_xl_t_playground_v2": ("sdxl", ("up-level0-repeat0-vit-block3-out",)),
    "ours_xl_t_segmentation_sdxl": (
        "sdxl",
        (
            "up-level0-repeat0-vit-block5-out",
            "up-level0-repeat0-vit-block7-out",
            "up-level1-repeat0-vit-block0-cross-q",
            "up-level1-repeat0-vit-block0-out",
            "up-level1-upsampler-out",
        ),
    ),
    "ours_xl_t_segmentation_playground_v2": (
        "sdxl",
        (
            "up-level0-repeat0-vit-block5-out",
            "up-level1-repeat0-vit-block0-cross-q",
            "up-level1-upsampler-out",
        ),
    ),
    "legacy_v1_5": (
        "sd15",
        (
            "up-level0-upsampler-out",
            "up-level1-upsampler-out",
            "up-level2-upsampler-out",
            "up-level3-repeat2-vit-out",
        ),
    ),
    "legacy_xl": (
        "sdxl",
        ("up-level0-upsampler-out", "up-level1-upsampler-out", "up-level2-repeat2-res-out"),
    ),
}


@cache
def table(architecture: str) -> dict[str, dict[str, str]]:
    """The published rows of "sd15" or "sdxl" by ID: the flags of ``FLAGS`` ("1" or "0") and mIoU,
    "" where none.
    """
    with (_DATA / f"{architecture}.csv").open(encoding="utf-8", newline="") as file:
        return {row.pop("id"): row for row in csv.DictReader(file)}


def flagged(architecture: str, flag: str) -> list[str]:
    """IDs of the pool, filter, "ours" or "legacy" set of an architecture, in forward order."""
    return [id_ for id_, row in table(architecture).items() if row[flag] == "1"]


def architecture(specs: list[ActivationSpec]) -> str | None:
    """The paper's architecture that a catalog belongs to: "sd15" (also SD2.1), "sdxl" (also
    Playground v2) or None.
    """
    ids = {spec.id for spec in specs if not spec.members}
    for name, count in ARCHITECTURES.items():
        if len(ids) == count and ids.issuperset(table(name)):
            return name
    return None


def timestep_for(t: float, architecture: str | None, context_width: int | None) -> float:
    """The timestep that the official code evaluates for the paper's ``t``.

    It uses each model's own scheduler: SD1.5's PNDM ends up one step later (t = 50 is timestep 51),
    SDXL's Euler does not. For models outside the paper, t is the timestep.
    """
    if architecture == "sd15" and context_width == _SD15_CONTEXT:
        t += 1
    return min(t, _LAST_TIMESTEP)
