"""Images of the shipped model under a patched MODEL or other conditioning, and what is measured on
them.
"""

from __future__ import annotations

import numpy as np
import torch

from ..common import host, results
from ..common.similarity import cosine
from ..world import captions, dataset, judge
from ..world.autoencoder import CHANNELS
from ..world.generate import Generator
from ..world.scenes import Metadata, random_scene

WORLD = "avatars-v2"
CFG, STEPS, SEED = 3.0, 20, 2_000_000
#: Attributes that are still read right on an image of 32 pixels (see the judge's table for blurred
#: renders).
COARSE = ("skin", "hair", "hair_color", "facial_hair", "accessory", "background", "pattern")
_COLUMNS = [list(dataset.LABELS).index(name) for name in COARSE]


def load() -> tuple[Generator, torch.nn.Module]:
    """The shipped model and the shipped judge."""
    return Generator.load(WORLD), host.pack("nodes.demo.judge").load(WORLD)


def scenes(count: int) -> list:
    """Random sharp scenes, whole and not mirrored."""
    rng = np.random.default_rng(SEED)
    return [random_scene(rng, Metadata()) for _ in range(count)]


def texts(requested: list) -> list[str]:
    """The whole truth about each scene, as captions."""
    return [captions.full_caption(scene) for scene in requested]


@torch.inference_mode()
def generated(
    generator: Generator,
    prompts: list[torch.Tensor],
    model=None,
    side: int = 128,
    batch: int = 16,
    negative: torch.Tensor | None = None,
    **metadata: float,
) -> np.ndarray:
    """Euler samples uint8 (N, side, side, 3) of encoded prompts (1, 77, 128); image i from noise of
    seed SEED + i.

    Both prompts are given the metadata.
    """
    import comfy.sample

    nothing = encoded(generator, [""])[0] if negative is None else negative
    images = []
    for start in range(0, len(prompts), batch):
        part = prompts[start : start + batch]
        zeros = torch.zeros(1, CHANNELS, side // 8, side // 8)
        noise = torch.cat(
            [comfy.sample.prepare_noise(zeros, SEED + start + index) for index in range(len(part))]
        )
        conditionings = [
            [[rows, dict(metadata)]]
            for rows in (torch.cat(part), nothing.expand(len(part), -1, -1))
        ]
        latent = comfy.sample.sample(
            model or generator.model,
            noise,
            STEPS,
            CFG,
            "euler",
            "normal",
            *conditionings,
            torch.zeros_like(noise),
            disable_pbar=True,
            seed=SEED,
        )
        images.append((generator.vae.decode(latent) * 255).round().to(torch.uint8).numpy())
        print(f"\rgenerating {start + len(part)}/{len(prompts)}", end="", flush=True)
    print()
    return np.concatenate(images)


@torch.inference_mode()
def encoded(generator: Generator, requested: list[str]) -> list[torch.Tensor]:
    """Each text as the shipped text model encodes it: (1, 77, 128)."""
    return [generator.clip.encode_from_tokens(generator.clip.tokenize(text)) for text in requested]


def small(images: np.ndarray, side: int = 16) -> np.ndarray:
    """Images brought to a few pixels by averaging: what is left when sharpness does not count."""
    count, height = images.shape[0], images.shape[1] // side
    return images.reshape(count, side, height, side, height, 3).astype(np.float32).mean((2, 4))


#: What `changes` measures for each pair of images, with its unit.
CHANGES = {
    "attributes changed": (
        f"fraction of {len(COARSE)} coarse attributes that the judge reads differently",
        "fraction",
    ),
    "coarse difference": ("mean difference of the two images at 16 x 16, of 255 levels", "levels"),
    "judge distance": ("1 - cosine of judge features", "distance"),
}


def changes(network, first: np.ndarray, second: np.ndarray) -> dict[str, np.ndarray]:
    """How much differs between images of one noise and caption, beyond their sharpness: `CHANGES`
    for each pair.
    """
    (a, features), (b, others) = (judge.read(network, images) for images in (first, second))
    flips = (a[:, _COLUMNS] != b[:, _COLUMNS]).mean(1)
    shift = np.abs(small(first) - small(second)).mean((1, 2, 3))
    return dict(zip(CHANGES, (flips, shift, 1 - cosine(features, others)), strict=True))


def content_change(network, first: np.ndarray, second: np.ndarray, name: str) -> dict[str, dict]:
    """The means of `changes` with their intervals."""
    found = changes(network, first, second)
    return {
        f"{name}: {key}": results.bootstrap(values, *CHANGES[key]) for key, values in found.items()
    }


def obeyed(network, images: np.ndarray, requested: list) -> np.ndarray:
    """Fraction of requested attributes that the judge finds, for each image."""
    return judge.followed(
        judge.read(network, images)[0], np.array([dataset.labels(scene) for scene in requested])
    )
