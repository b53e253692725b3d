"""What the paper publishes about single activations (arXiv 2410.03558): its pools, filter, sets and scores."""

from __future__ import annotations

import csv
from functools import cache
from pathlib import Path

from .entries import Entry

_DATA = Path(__file__).resolve().parent / "data"
#: Architectures of the paper, with the number of IDs that such a U-Net has.
ARCHITECTURES = {"sd15": 197, "sdxl": 612}
FLAGS = ("pool", "filter", "ours", "legacy")

#: The sets of section 5 and appendix C, each in the architecture that it is for. Ours-XL-t joins features of several
#: models: here are the parts that one model gives. ``attn`` is its attention feature, 77 tokens in two sizes.
SETS = {
    "Ours-v1.5": ("sd15", (
        "up-level1-repeat1-vit-block0-cross-q", "up-level1-repeat2-res-out", "up-level2-repeat1-vit-block0-cross-q",
        "up-level3-repeat0-vit-block0-self-k")),
    "Ours-XL": ("sdxl", (
        "up-level0-repeat0-vit-block5-out", "up-level0-repeat0-vit-block7-out", "up-level1-repeat0-vit-block0-cross-q",
        "up-level1-repeat0-vit-block0-out")),
    "Ours-XL-t, part of SD1.5": ("sd15", (
        "up-level1-repeat1-vit-block0-cross-q", "up-level2-repeat1-vit-block0-cross-q", "up-level2-upsampler-out",
        "up-level3-repeat0-vit-block0-self-k", "attn")),
    "Ours-XL-t, part of Playground v2": ("sdxl", ("up-level0-repeat0-vit-block3-out",)),
    "Legacy-v1.5": ("sd15", (
        "up-level0-upsampler-out", "up-level1-upsampler-out", "up-level2-upsampler-out", "up-level3-repeat2-vit-out")),
    "Legacy-XL": ("sdxl", ("up-level0-upsampler-out", "up-level1-upsampler-out", "up-level2-repeat2-res-out")),
}  # fmt: skip


@cache
def table(architecture: str) -> dict[str, dict[str, str]]:
    """The published rows of "sd15" or "sdxl" by ID: the flags of ``FLAGS`` ("1" or "0") and mIoU, "" where none."""
    with (_DATA / f"{architecture}.csv").open(encoding="utf-8", newline="") as file:
        return {row.pop("id"): row for row in csv.DictReader(file)}


def flagged(architecture: str, flag: str) -> list[str]:
    """IDs of the pool, filter, "ours" or "legacy" set of an architecture, in forward order."""
    return [id_ for id_, row in table(architecture).items() if row[flag] == "1"]


def architecture(entries: list[Entry]) -> str | None:
    """Which of the paper's architectures a catalog is of: "sd15" (SD2.1 too), "sdxl" (Playground v2 too) or None."""
    ids = {entry.id for entry in entries if not entry.members}
    for name, count in ARCHITECTURES.items():
        if len(ids) == count and ids.issuperset(table(name)):
            return name
    return None
