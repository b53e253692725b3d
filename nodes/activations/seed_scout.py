"""Scores of the images that a few steps make of a seed, and the sheet that shows which seeds go on.

Word coverage follows the cross-attention response of InitNO (arXiv 2404.04650): a prompt is covered
as far as its weakest word acts somewhere in the image. The smallest attention belongs to the same
word for almost every seed, so each word is compared with itself over the seeds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

import torch
from torch.nn import functional as F

from ..common.pil_images import rgb

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_CELLS = 16  # a side: what is left of an image where its layout and colors are compared


class Ranking(StrEnum):
    """Values of the ``ranking`` input: what makes a seed good."""

    WORD_COVERAGE = "word_coverage"
    LAYOUT_LIKENESS = "layout_likeness"
    IMAGE_LIKENESS = "image_likeness"
    PROMPT_ALIGNMENT = "prompt_alignment"
    DIVERSITY = "diversity"


@dataclass(frozen=True)
class Scores:
    """A number for each seed, higher is better: float32 (N,); what it is, and a note for each seed
    or nothing.
    """

    values: torch.Tensor
    what: str
    notes: tuple[str, ...] = ()

    def order(self) -> list[int]:
        """The seeds' numbers, best first; equal ones in the order in which they were scouted."""
        return self.values.argsort(descending=True, stable=True).tolist()


def word_coverage(maps: dict[str, torch.Tensor]) -> Scores:
    """Coverage of the words by their heat maps (N, ..., H, W) of N seeds: the least focus among
    words, (N,).

    The focus of a word is its largest attention over its mean attention, in units of its mean over
    the seeds: below 1 it acts less distinctly than usual. The note of a seed is the word of least
    focus.
    """
    flat = torch.stack([one.flatten(1) for one in maps.values()])  # (words, seeds, positions)
    focus = flat.amax(dim=2) / flat.mean(dim=2)
    values, weakest = (focus / focus.mean(dim=1, keepdim=True)).min(dim=0)
    words = list(maps)
    return Scores(
        values, "focus of the weakest word", tuple(words[index] for index in weakest.tolist())
    )


def layout_likeness(images: torch.Tensor, reference: torch.Tensor) -> Scores:
    """Pearson's correlation of the colors of images (N, H, W, 3) and of a reference (1, h, w, 3),
    at 16 x 16.
    """
    likeness = torch.cosine_similarity(layout_vectors(images), layout_vectors(reference), dim=1)
    return Scores(likeness, "correlation of layout and colors")


def layout_vectors(images: torch.Tensor) -> torch.Tensor:
    """The colors of images (N, H, W, 3) at 16 x 16, less their mean: (N, 768). Their cosine is
    Pearson's correlation.
    """
    channels_first = rgb(images).movedim(-1, 1).float()
    colors = F.interpolate(channels_first, size=(_CELLS, _CELLS), mode="area").flatten(1)
    return colors - colors.mean(dim=1, keepdim=True)


def diversity(vectors: torch.Tensor, what: str) -> Scores:
    """How far each of N images is from those before it in the order that keeps the images of the
    first k as different as can be, for every k; ``vectors`` (N, D), compared by cosine.

    Farthest-point order (Gonzalez, 1985): it begins with the two that differ most, and each next
    one has the largest distance to the nearest before it. The least distance among the first k is
    at least half of what any k images reach (Ravi, Rosenkrantz and Tayi, 1994), for distances that
    keep the triangle inequality; the chord of the angle does.
    """
    unit = F.normalize(vectors.float(), dim=1)
    distances = torch.cdist(unit, unit, compute_mode="donot_use_mm_for_euclid_dist")
    first, second = divmod(int(distances.argmax()), len(unit))
    values = torch.full((len(unit),), float(distances[first, second]))
    nearest = torch.minimum(distances[first], distances[second])
    left = torch.ones(len(unit), dtype=torch.bool)
    left[[first, second]] = False
    while bool(left.any()):
        place = int(nearest.masked_fill(~left, -1).argmax())
        values[place] = nearest[place]
        nearest = torch.minimum(nearest, distances[place])
        left[place] = False
    return Scores(values, f"distance to the nearest seed above, by {what}")


def report(seeds: list[int], scores: Scores, keep: int) -> str:
    """One line per seed, best first: rank, seed, score, note, and which go on."""
    lines = [f"Ranked by {scores.what}; the first {keep} are selected."]
    for rank, index in enumerate(scores.order()):
        note = f"  {scores.notes[index]}" if scores.notes else ""
        lines.append(f"{rank + 1}. seed {seeds[index]}  {float(scores.values[index]):.4f}{note}")
    return "\n".join(lines)


def draw_sheet(
    figure: Figure, columns: int, images: torch.Tensor, seeds: list[int], scores: Scores, keep: int
) -> None:
    """Images (N, H, W, 3) best first on a matplotlib figure, each with seed, score and note; those
    kept are framed.
    """
    order = scores.order()
    panels = figure.subplots(math.ceil(len(order) / columns), columns, squeeze=False).flatten()
    for axes in panels[len(order) :]:
        axes.set_axis_off()
    for rank, (axes, index) in enumerate(zip(panels, order, strict=False)):
        axes.imshow(rgb(images[index]).clamp(0, 1).float().numpy())
        note = f"\n{scores.notes[index]}" if scores.notes else ""
        axes.set(
            title=f"seed {seeds[index]}\n{float(scores.values[index]):.4g}{note}",
            xticks=[],
            yticks=[],
        )
        for spine in axes.spines.values():
            spine.set(
                linewidth=4 if rank < keep else 1, color="tab:green" if rank < keep else "lightgray"
            )
    figure.suptitle(f"Ranked by {scores.what}")
