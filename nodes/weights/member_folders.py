"""A folder of folders of images, one for each member of a learned space: images, captions, and
where errors count.

A text file beside an image, with the same name, is its caption. Where an image is transparent its
error does not count.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from ..common.atomic_write import file_stamp
from ..common.pil_images import from_pil, in_8_bits, open_image

_LEAST = (2048, 2048)  # pixels that remain of a larger image, more than a training crops
ENDINGS = (".png", ".jpg", ".jpeg", ".webp", ".bmp")


@dataclass(frozen=True)
class MemberImage:
    """An image of a member and its caption."""

    path: Path
    caption: str

    def read(self) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Pixels float32 (H, W, 3), upright, and what is opaque (H, W), None where all is; raises
        ValueError.
        """
        upright = open_image(self.path, _LEAST)
        see_through = "A" in upright.getbands() or "transparency" in upright.info
        opaque = from_pil(upright.convert("RGBA").getchannel("A")) if see_through else None
        pixels = from_pil(in_8_bits(upright))
        if opaque is not None and not opaque.any():
            raise ValueError("is transparent everywhere")
        return pixels, None if opaque is None or bool((opaque == 1).all()) else opaque


@dataclass(frozen=True)
class MemberFolders:
    """``members``: name of each folder -> its images; ``skipped``: name of what was left out ->
    why.
    """

    members: dict[str, list[MemberImage]]
    skipped: dict[str, str] = field(default_factory=dict)


def find_members(folder: Path, caption: str) -> MemberFolders:
    """The members in a folder's folders, by name; images without a text file get ``caption``.

    Raises ValueError for a folder with fewer than two folders of images.
    """
    members = {}
    skipped = {}
    for each in sorted(
        one for one in folder.iterdir() if one.is_dir() and not one.name.startswith(".")
    ):
        paths = sorted(
            path for path in each.iterdir() if path.suffix.lower() in ENDINGS and path.is_file()
        )
        if paths:
            members[each.name] = [MemberImage(path, _caption(path) or caption) for path in paths]
        else:
            skipped[each.name] = "holds no image"
    if len(members) < 2:
        raise ValueError(
            f"The folder {folder.name} holds {len(members)} folders with images: give one with a "
            "folder of images for each of two people or more."
        )
    return MemberFolders(members, skipped)


def folder_stamp(folder: Path) -> str:
    """Changes with the images and captions of a folder's folders."""
    files = sorted(path for path in folder.glob("*/*") if path.suffix.lower() in (*ENDINGS, ".txt"))
    return "\n".join(f"{path.relative_to(folder)} {file_stamp(path)}" for path in files)


def captions(folder: Path) -> list[str]:
    """The texts beside the images of a folder's folders."""
    return [_caption(path) for path in sorted(folder.glob("*/*.txt"))]


def _caption(path: Path) -> str:
    try:
        return " ".join(path.with_suffix(".txt").read_text("utf-8", errors="replace").split())
    except OSError:
        return ""


def opaque_at(opaque: torch.Tensor, size: tuple[int, ...]) -> torch.Tensor:
    """What is opaque (H, W) averaged to a latent's (h, w), as weights (1, 1, h, w); raises
    ValueError where none is.
    """
    weights = torch.nn.functional.interpolate(opaque[None, None], size, mode="area")
    if not np.isfinite(float(weights.sum())) or not weights.any():
        raise ValueError("is transparent everywhere")
    return weights
