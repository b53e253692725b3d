"""The files of the demo world that the pack ships, read with a check and a sentence for whatever is
wrong with them.

A world may be another world with changes to its denoiser: it has ``changes.safetensors``, whose
header names the base, and takes every file that it does not have from there. Tensors of that file,
for a layer L of the U-Net: ``L.rows`` (n, ...), to be added to the rows ``L.indices`` (n,) of the
weight.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from .architecture import SIZE

if TYPE_CHECKING:
    import torch

ASSETS = Path(__file__).resolve().parents[2] / "assets"
#: The file of a changed copy of another world.
CHANGES = "changes"
#: What masks there are for a rendered image; "face" is everything but the background.
PARTS = ("face", "skin", "hair", "facial_hair", "clothing", "accessory", "background")


def worlds() -> list[str]:
    """Names of the demo worlds that are there, for example ["avatars-v2"]; a folder of folders of
    images is none.
    """
    found = (path for path in ASSETS.glob("*") if path.is_dir())
    return sorted(path.name for path in found if all(inside.is_file() for inside in path.iterdir()))


def base(world: str) -> str:
    """The world that ``world`` is a changed copy of; empty where it stands alone. Errors as in
    ``read``.
    """
    return (
        header(world, CHANGES)["base"]
        if (ASSETS / world / f"{CHANGES}.safetensors").exists()
        else ""
    )


def read(world: str, name: str) -> dict:
    """Tensors of one asset, for example ``read("avatars-v2", "denoiser")``.

    Raises ValueError with one sentence when the file is missing, cut short or not what it should
    be.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    with _explained(world, f"{name}.safetensors", SafetensorError) as path:
        return load_file(path)


def header(world: str, name: str) -> dict[str, str]:
    """The text metadata of one asset; errors as in ``read``."""
    from safetensors import SafetensorError, safe_open

    with (
        _explained(world, f"{name}.safetensors", SafetensorError) as path,
        safe_open(path, "pt") as file,
    ):
        return file.metadata() or {}


def read_denoiser(world: str) -> dict:
    """Tensors of a world's denoiser, with its changes where it is a changed copy; errors as in
    ``read``.
    """
    weights = read(world, "denoiser")
    if base(world):
        apply_changes(weights, read(world, CHANGES))
    return weights


def apply_changes(weights: dict, changes: dict) -> None:
    """Add ``changes`` to the denoiser's ``weights`` in place; the changed ones become float32."""
    for path in sorted({name.rpartition(".")[0] for name in changes}):
        weight = weights[f"{path}.weight"].float()
        weight[changes[f"{path}.indices"]] += changes[f"{path}.rows"].float()
        weights[f"{path}.weight"] = weight


def read_image(world: str, name: str) -> torch.Tensor:
    """A PNG of the world as float32 (height, width) or (height, width, 3) in 0..1; errors as in
    ``read``.
    """
    from PIL import Image

    from ..common.pil_images import from_pil

    with _explained(world, f"{name}.png", SyntaxError) as path, Image.open(path) as image:
        return from_pil(image)


def captions(world: str) -> list[str]:
    """The true captions of the rendered images; errors as in ``read``."""
    with _explained(world, "captions.json", ValueError) as path:
        return json.loads(path.read_text(encoding="utf-8"))


def load_images(world: str, first: int, count: int, part: str) -> tuple:
    """Rendered images ``first`` to ``first + count - 1``, counted round.

    Returns images float32 (B, 128, 128, 3) in 0..1, the true mask (B, 128, 128) of a part of
    ``PARTS``, the captions.
    """
    tiles = read_image(world, "images").unfold(1, SIZE, SIZE).permute(1, 0, 3, 2)
    masks = read_image(world, "masks").unfold(0, SIZE, SIZE).unfold(1, SIZE, SIZE).transpose(0, 1)
    picks = [(first + offset) % len(tiles) for offset in range(count)]
    masks = masks[picks]
    mask = (
        1 - masks[:, PARTS.index("background") - 1]
        if part == "face"
        else masks[:, PARTS.index(part) - 1]
    )
    texts = captions(world)
    return tiles[picks].contiguous(), mask.contiguous(), [texts[pick] for pick in picks]


@contextmanager
def _explained(world: str, file: str, *broken: type[Exception]) -> Iterator[Path]:
    """Hand out an asset's path, and turn what goes wrong in reading it into one sentence."""
    if world not in worlds():
        raise ValueError(
            f"There is no demo world '{world}': there is {', '.join(worlds()) or 'none'} in "
            "assets/."
        )
    path = ASSETS / world / file
    if not path.exists() and path.stem != CHANGES and (original := base(world)):
        path = ASSETS / original / file
    unreadable: tuple[type[Exception], ...] = (OSError, *broken)
    try:
        yield path
    except FileNotFoundError:
        world = path.parent.name
        raise ValueError(
            f"{file} of {world} is missing: restore assets/{world} from the repository."
        ) from None
    except unreadable as error:
        world = path.parent.name
        raise ValueError(
            f"{file} of {world} cannot be read ({error}): restore assets/{world} from the "
            "repository."
        ) from None
