"""The files of the demo world that the pack ships, read with a check and a sentence for whatever is wrong with them.

A world may be another world with changes to its denoiser: it has ``changes.safetensors``, whose header names the base,
and takes every file that it does not have from there.
"""

from __future__ import annotations

import json
from contextlib import contextmanager
from pathlib import Path

ASSETS = Path(__file__).resolve().parents[2] / "assets"
#: The file of a changed copy of another world.
CHANGES = "changes"


def worlds() -> list[str]:
    """Names of the demo worlds that are there, for example ["avatars-v1"]."""
    return sorted(path.name for path in ASSETS.glob("*") if path.is_dir())


def base(world: str) -> str:
    """The world that ``world`` is a changed copy of; empty where it stands alone. Errors as in ``read``."""
    return header(world, CHANGES)["base"] if (ASSETS / world / f"{CHANGES}.safetensors").exists() else ""


def read(world: str, name: str) -> dict:
    """Tensors of one asset, for example ``read("avatars-v1", "denoiser")``.

    Raises ValueError with one sentence when the file is missing, cut short or not what it should be.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    with _explained(world, f"{name}.safetensors", SafetensorError) as path:
        return load_file(path)


def header(world: str, name: str) -> dict[str, str]:
    """The text metadata of one asset; errors as in ``read``."""
    from safetensors import SafetensorError, safe_open

    with _explained(world, f"{name}.safetensors", SafetensorError) as path, safe_open(path, "pt") as file:
        return file.metadata() or {}


def picture(world: str, name: str):
    """A PNG of the world as float32 (height, width) or (height, width, 3) in 0..1; errors as in ``read``."""
    import numpy as np
    import torch
    from PIL import Image

    with _explained(world, f"{name}.png", SyntaxError) as path, Image.open(path) as image:
        return torch.from_numpy(np.asarray(image, dtype=np.float32) / 255)


def captions(world: str) -> list[str]:
    """The true captions of the rendered pictures; errors as in ``read``."""
    with _explained(world, "captions.json", ValueError) as path:
        return json.loads(path.read_text(encoding="utf-8"))


@contextmanager
def _explained(world: str, file: str, *broken: type[Exception]):
    """Hand out an asset's path, and turn what goes wrong in reading it into one sentence."""
    if world not in worlds():
        raise ValueError(f"There is no demo world '{world}': there is {', '.join(worlds()) or 'none'} in assets/.")
    path = ASSETS / world / file
    if not path.exists() and path.stem != CHANGES and (original := base(world)):
        path = ASSETS / original / file
    try:
        yield path
    except FileNotFoundError:
        world = path.parent.name
        raise ValueError(f"{file} of {world} is missing: restore assets/{world} from the repository.") from None
    except (OSError, *broken) as error:
        world = path.parent.name
        raise ValueError(f"{file} of {world} cannot be read ({error}): restore assets/{world} from the "
                         "repository.") from None
