"""Composition Noise on the demo model: how far the layout of an image follows the guide, and what
it costs the caption.

The same caption and seed with the noise as drawn (strength 0) and with composed noise. The layout
is the image averaged to 8 x 8 colors; it follows the guide by Pearson's correlation of both, less
their means. Captions name everything but the background, which the guide may then decide.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from ..common import host, results
from ..conditioning import sampled_images
from ..world import captions, dataset, judge
from ..world.autoencoder import CHANNELS
from ..world.scenes import Metadata, random_scene, render

CFG, SEED, SIDE, CELLS = 3.0, 4_000_000, 128, 8
#: An image follows when its correlation with the guide is larger than its twin's at strength 0 by
#: this.
FOLLOWS = 0.1
_COLUMN = {name: index for index, name in enumerate(dataset.LABELS)}
RED, BLUE, LIGHT, DARK = (200, 40, 40), (40, 60, 200), (235, 235, 235), (30, 30, 30)


def guides() -> dict[str, np.ndarray]:
    """Two images of the model's own world on other grounds, and sketches of color blocks; uint8
    (128, 128, 3).
    """
    sketches = {
        name: np.empty((SIDE, SIDE, 3), np.uint8) for name in ("left_right", "top_bottom", "disc")
    }
    half = SIDE // 2
    sketches["left_right"][:, :half], sketches["left_right"][:, half:] = RED, BLUE
    sketches["top_bottom"][:half], sketches["top_bottom"][half:] = LIGHT, DARK
    rows, columns = np.mgrid[:SIDE, :SIDE]
    sketches["disc"][:] = BLUE
    sketches["disc"][(rows - half) ** 2 + (columns - SIDE // 4) ** 2 < 30**2] = LIGHT
    scene = random_scene(np.random.default_rng(5), Metadata())
    images = {
        f"image, {color}": render(replace(scene, background=color, pattern="plain"))
        for color in ("blue", "yellow")
    }
    return {name: np.asarray(image, np.uint8) for name, image in {**images, **sketches}.items()}


def requested(scenes: list) -> np.ndarray:
    """The labels (N, 12) that captions without the background request; -1 for all others."""
    truth = np.array([dataset.labels(scene) for scene in scenes])
    truth[:, [_COLUMN["background"], _COLUMN["pattern"]]] = -1
    return truth


def layout(images: np.ndarray) -> np.ndarray:
    """Images (N, H, W, 3) as 8 x 8 colors less their mean, (N, 192)."""
    small = sampled_images.small(images, CELLS).reshape(len(images), -1, 3)
    return (small - small.mean(axis=1, keepdims=True)).reshape(len(images), -1)


def follow(images: np.ndarray, guide: np.ndarray) -> np.ndarray:
    """The correlation of each image's layout with that of the guide."""
    one, other = layout(images), layout(guide[None])
    return (one @ other.T)[:, 0] / (np.linalg.norm(one, axis=1) * np.linalg.norm(other) + 1e-9)


@torch.inference_mode()
def sample(
    generator,
    prompts: list[torch.Tensor],
    steps: int,
    transform,
    latent: torch.Tensor | None = None,
    denoise=1.0,
) -> np.ndarray:
    """Euler samples uint8 (N, 128, 128, 3); image i from the noise of seed SEED + i, changed by
    `transform`.

    `latent` (1, C, H, W), in the model's scale: img2img from it at `denoise`, as KSampler rounds
    it.
    """
    import comfy.sample

    zeros = torch.zeros(1, CHANNELS, SIDE // 8, SIDE // 8)
    noise = torch.cat(
        [comfy.sample.prepare_noise(zeros, SEED + index) for index in range(len(prompts))]
    )
    negative = sampled_images.encoded(generator, [""])[0].expand(len(prompts), -1, -1)
    conditions = [[[rows, {}]] for rows in (torch.cat(prompts), negative)]
    start = (
        zeros
        if latent is None
        else generator.model.get_model_object("latent_format").process_out(latent)
    )
    latent = comfy.sample.sample(
        generator.model,
        transform(noise),
        steps,
        CFG,
        "euler",
        "normal",
        *conditions,
        start.expand_as(noise),
        denoise=denoise,
        disable_pbar=True,
        seed=SEED,
    )
    return (generator.vae.decode(latent) * 255).round().to(torch.uint8).numpy()


def measure(quick: bool = False) -> dict[str, dict]:
    """Correlation with the guide, changed images and captions followed, for strengths and
    cutoffs.
    """
    method = host.pack("nodes.noise.composition")
    generator, network = sampled_images.load()
    count, steps = (6, 12) if quick else (24, 12)
    scenes = [replace(scene, pattern="plain") for scene in sampled_images.scenes(count)]
    truth = requested(scenes)
    texts = [captions.full_caption(scene).rsplit(", ", 1)[0] for scene in scenes]
    prompts, numbers = sampled_images.encoded(generator, texts), {}
    stock = sample(generator, prompts, steps, lambda noise: noise)
    labels = judge.read(network, stock)[0]
    rows = [stock]
    for name, guide in list(guides().items())[: 2 if quick else None]:
        latent = generator.vae.encode(torch.from_numpy(guide[None]).float() / 255)
        base = follow(stock, guide)
        numbers[f"{name}, strength 0: layout"] = results.bootstrap(
            base, "correlation with the guide", "correlation"
        )
        for strength, cutoff in (
            [(0.8, 2.0), (1.0, 4.0)]
            if quick
            else [(s, c) for s in (0.4, 0.8, 1.0) for c in (1, 2, 4)]
        ):
            settings = method.CompositionSettings(strength=strength, cutoff=float(cutoff))
            images = sample(
                generator,
                prompts,
                steps,
                lambda noise, s=settings, g=latent: method.compose_noise(s, noise, g),
            )
            rows.append(images)
            read = judge.read(network, images)[0]
            where = f"{name}, strength {strength:g}, cutoff {cutoff:g}"
            numbers[f"{where}: layout"] = results.bootstrap(
                follow(images, guide), "correlation with the guide", "correlation"
            )
            numbers[f"{where}: layout gained"] = results.bootstrap(
                follow(images, guide) - base,
                "correlation with the guide less that of strength 0, paired",
                "correlation",
            )
            numbers[f"{where}: seeds that follow"] = results.fraction(
                follow(images, guide) > base + FOLLOWS,
                "images whose correlation with the guide is larger than at strength 0 by "
                f"{FOLLOWS} at least",
            )
            color = name.removeprefix("image, ")
            if color in dataset.LABELS["background"]:
                wanted = dataset.LABELS["background"].index(color)
                for when, seen in (("strength 0", labels), ("with the guide", read)):
                    numbers[f"{where}: background of the guide, {when}"] = results.fraction(
                        seen[:, _COLUMN["background"]] == wanted,
                        "images in which the judge reads the guide's color",
                    )
            numbers[f"{where}: images changed"] = results.fraction(
                (read != labels).any(axis=1),
                "images in which the judge reads another label than at strength 0",
            )
            numbers[f"{where}: captions followed, cost"] = results.bootstrap(
                judge.followed(labels, truth) - judge.followed(read, truth),
                "fraction of requested attributes at strength 0 less that with the guide, paired",
                "fraction",
            )
            print(
                where,
                {key: round(value["value"], 3) for key, value in list(numbers.items())[-4:]},
                flush=True,
            )
    _save(rows)
    return numbers


def _save(rows: list[np.ndarray]) -> None:
    """A contact sheet of the run, one row per setting, in the temporary folder."""
    import tempfile
    from pathlib import Path

    from PIL import Image

    sheet = np.concatenate([np.concatenate(list(row[:10]), axis=1) for row in rows])
    path = Path(tempfile.gettempdir()) / "glassbox_composition.png"
    Image.fromarray(sheet).save(path)
    print(path)
