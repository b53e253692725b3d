"""Scores of the images that a few steps make of a seed, and the sheet that shows which seeds go on.

Word coverage follows the cross-attention response of InitNO (arXiv 2404.04650): a prompt is covered as far as its
weakest word acts somewhere in the image. The smallest attention belongs to the same word for almost every seed, so each
word is compared with itself over the seeds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

import torch
from torch.nn import functional as F

from ..common.pil_images import rgb

_CELLS = 16  # a side: what is left of an image where its layout and colors are compared


class Ranking(StrEnum):
    """Values of the ``ranking`` input: what makes a seed good."""

    WORD_COVERAGE = "word_coverage"
    LAYOUT_LIKENESS = "layout_likeness"
    IMAGE_LIKENESS = "image_likeness"
    PROMPT_ALIGNMENT = "prompt_alignment"


@dataclass(frozen=True)
class Scores:
    """A number for each seed, higher is better: float32 (N,); what it is, and a note for each seed or nothing."""

    values: torch.Tensor
    what: str
    notes: tuple[str, ...] = ()

    def order(self) -> list[int]:
        """The seeds' numbers, best first; equal ones in the order in which they were scouted."""
        return self.values.argsort(descending=True, stable=True).tolist()


def word_coverage(maps: dict[str, torch.Tensor]) -> Scores:
    """Coverage of the words by their heat maps (N, H, W) of N seeds: the least focus among words, (N,).

    The focus of a word is its largest attention over its mean attention, in units of its mean over the seeds: below 1
    it acts less distinctly than usual. The note of a seed is the word of least focus.
    """
    flat = torch.stack([one.flatten(1) for one in maps.values()])  # (words, seeds, positions)
    focus = flat.amax(dim=2) / flat.mean(dim=2)
    values, weakest = (focus / focus.mean(dim=1, keepdim=True)).min(dim=0)
    words = list(maps)
    return Scores(values, "focus of the weakest word", tuple(words[index] for index in weakest.tolist()))


def layout_likeness(images: torch.Tensor, reference: torch.Tensor) -> Scores:
    """Pearson's correlation of the colors of images (N, H, W, 3) and of a reference (1, h, w, 3), at 16 x 16."""
    one, other = (
        F.interpolate(rgb(part).movedim(-1, 1).float(), size=(_CELLS, _CELLS), mode="area").flatten(1)
        for part in (images, reference)
    )
    centered = one - one.mean(dim=1, keepdim=True), other - other.mean(dim=1, keepdim=True)
    return Scores(torch.cosine_similarity(centered[0], centered[1], dim=1), "correlation of layout and colors")


def report(seeds: list[int], scores: Scores, keep: int) -> str:
    """One line per seed, best first: rank, seed, score, note, and which go on."""
    lines = [f"Ranked by {scores.what}; the first {keep} are selected."]
    for rank, index in enumerate(scores.order()):
        note = f"  {scores.notes[index]}" if scores.notes else ""
        lines.append(f"{rank + 1}. seed {seeds[index]}  {float(scores.values[index]):.4f}{note}")
    return "\n".join(lines)


def draw_sheet(figure, columns: int, images: torch.Tensor, seeds: list[int], scores: Scores, keep: int) -> None:
    """Images (N, H, W, 3) best first on a matplotlib figure, each with seed, score and note; those kept are framed."""
    order = scores.order()
    panels = figure.subplots(math.ceil(len(order) / columns), columns, squeeze=False).flatten()
    for axes in panels[len(order) :]:
        axes.set_axis_off()
    for rank, (axes, index) in enumerate(zip(panels, order, strict=False)):
        axes.imshow(rgb(images[index]).clamp(0, 1).float().numpy())
        note = f"\n{scores.notes[index]}" if scores.notes else ""
        axes.set(title=f"seed {seeds[index]}\n{float(scores.values[index]):.4g}{note}", xticks=[], yticks=[])
        for spine in axes.spines.values():
            spine.set(linewidth=4 if rank < keep else 1, color="tab:green" if rank < keep else "lightgray")
    figure.suptitle(f"Ranked by {scores.what}")
