"""Aspect-ratio buckets: a few sizes of about the same area, each image resized to the one of the
nearest shape.

Batches contain images of one size, and a model is best trained near the area that it knows; a
square crop of every image would lose what stands at its sides. The sizes are those of NovelAI's
aspect ratio bucketing: for each width the largest height, in steps, within the area.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F

#: Of the longer side to the shorter one, as trainers commonly set it.
LARGEST_RATIO = 2.0


def bucket_sizes(side: int, step: int, largest_ratio: float) -> list[tuple[int, int]]:
    """Sizes (width, height) in multiples of `step` with at most side * side pixels and sides up to
    `largest_ratio`.

    Of each width the largest height, and the other way round; raises ValueError for a step larger
    than the side.
    """
    if step > side:
        raise ValueError(
            f"step {step} is larger than resolution {side}: set a smaller step, such as 64."
        )
    widths = range(step, math.floor(side * math.sqrt(largest_ratio)) + step, step)
    tall = [(width, side * side // width // step * step) for width in widths]
    sizes = {size for width, height in tall for size in ((width, height), (height, width))}
    return sorted(
        size for size in sizes if min(size) > 0 and max(size) <= largest_ratio * min(size)
    )


def nearest_bucket(width: int, height: int, sizes: list[tuple[int, int]]) -> tuple[int, int]:
    """The size of the nearest ratio of width and height, by its logarithm; of equal ones the
    largest.
    """
    ratio = math.log(width / height)
    return min(
        sizes,
        key=lambda size: (round(abs(math.log(size[0] / size[1]) - ratio), 9), -size[0] * size[1]),
    )


def resize_and_crop(image: torch.Tensor, size: tuple[int, int]) -> torch.Tensor:
    """An image (H, W, C), 0 to 1, scaled until it covers size = (width, height), and cut alike on
    both sides.
    """
    height, width = image.shape[:2]
    scale = max(size[0] / width, size[1] / height)
    covering = (max(round(height * scale), size[1]), max(round(width * scale), size[0]))
    pixels = image.movedim(-1, 0)[None].float()
    resized = F.interpolate(pixels, covering, mode="bicubic", antialias=True).clamp(0, 1)
    top = (covering[0] - size[1]) // 2
    left = (covering[1] - size[0]) // 2
    return resized[0, :, top : top + size[1], left : left + size[0]].movedim(0, -1)


def describe_buckets(before: list[tuple[int, int]], after: list[tuple[int, int]]) -> str:
    """How many images each size has, how much is cut off, and how many were enlarged; sizes as
    (width, height).
    """
    lines = [f"{size[0]} x {size[1]}: {after.count(size)} images" for size in sorted(set(after))]
    scales = [max(b[0] / a[0], b[1] / a[1]) for a, b in zip(before, after, strict=True)]
    kept = [
        b[0] * b[1] / (a[0] * a[1] * s * s) for a, b, s in zip(before, after, scales, strict=True)
    ]
    lines.append(f"Cut off: {100 * (1 - sum(kept) / len(kept)):.1f} % of an image on average.")
    larger = sum(scale > 1 for scale in scales)
    if larger:
        lines.append(
            f"{larger} images are smaller than their size and were enlarged: they are blurred."
        )
    return "\n".join(lines)
