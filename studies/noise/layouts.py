"""Composition Noise beside its rivals: photographs, masks in two colors and sketches as guides, at
equal captions.

Two scenes of the demo world are the photographs; their people's outlines are the masks. Each
setting samples the same captions, without the background, from the same seeds. `layout`:
correlation of 8 x 8 colors with the photograph; `outline`: intersection over union of the person;
`ground`: the judge reads the photograph's background; `captions lost`: fraction of requested
attributes found with the noise as drawn, less that with the guide. Means over both scenes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from PIL import Image, ImageFilter

from ..common import host, results
from ..conditioning import sampled_images
from ..world import captions, dataset, judge
from ..world.scenes import Metadata, masks, random_scene, render
from .composition import CFG, SEED, follow, requested, sample

STEPS, COUNT = 12, 24
#: Seeds of the scenes, and their backgrounds.
SCENES = ((5, "blue"), (8, "yellow"))
SKIN = (237, 185, 138)
#: Denoise of img2img: with 12 steps KSampler runs the last 12 of 13, 14, 15 and 17.
DENOISE = (0.92, 0.85, 0.8, 0.7)
_GROUND = list(dataset.LABELS).index("background")


class Scene:
    """A photograph, its person's outline, and guides made of both; latents in the scale of the
    model.
    """

    def __init__(self, generator, seed: int, color: str, stock: torch.Tensor):
        scene = replace(
            random_scene(np.random.default_rng(seed), Metadata()), background=color, pattern="plain"
        )
        self.color, self.photo, self.person = color, render(scene), 1 - masks(scene)["background"]
        self._generator, self._method = generator, host.pack("nodes.noise.composition")
        form = generator.model.get_model_object("latent_format")
        factors, bias = (
            torch.tensor(one) for one in (form.latent_rgb_factors, form.latent_rgb_factors_bias)
        )
        ground = self.photo[4, 4].tolist()
        mask = torch.from_numpy(self.person)[None]
        preview = [
            self._method.latent_of_color([one / 127.5 - 1 for one in rgb], factors, bias)
            for rgb in (SKIN, ground)
        ]
        lines = (
            Image.fromarray(self.photo)
            .convert("L")
            .filter(ImageFilter.FIND_EDGES)
            .point(lambda v: 255 * (v < 40))
        )
        self.two_colors = self.colored(SKIN, ground)
        self.guides = {
            "photograph": self.encoded(self.photo),
            "mask, two colors by the VAE": self.encoded(self.two_colors),
            "mask, two colors without a VAE": self._method.mask_guide(mask, stock, *preview),
            "mask, means of stock latents": self._method.mask_guide(
                mask, stock, *self._method.part_means(stock, mask)
            ),
            "mask, white on black": self.encoded(self.colored((255,) * 3, (0,) * 3)),
            "line drawing": self.encoded(np.asarray(lines.convert("RGB"))),
        }

    def colored(self, inside, outside) -> np.ndarray:
        """The outline in two colors: uint8 (H, W, 3)."""
        mask = self.person[..., None]
        return (mask * np.array(inside) + (1 - mask) * np.array(outside)).round().astype(np.uint8)

    def encoded(self, image: np.ndarray) -> torch.Tensor:
        """The latent (1, C, H, W) of an image."""
        return self._generator.latents(np.ascontiguousarray(image)[None])

    def ways(self) -> dict[str, tuple[Callable, torch.Tensor | None, float]]:
        """Each way by name: what becomes of the noise, the latent that is sampled from (None:
        empty), denoise.
        """
        method, found = self._method, {}

        def composed(guide: torch.Tensor, strength: float, cutoff: float):
            settings = method.CompositionSettings(strength=strength, cutoff=cutoff)
            return lambda noise: method.compose_noise(settings, noise, guide), None, 1.0

        for name, guide in self.guides.items():
            for shape, numbers in method.SHAPES.items():
                found[f"{name}, {shape}"] = composed(guide, *numbers)
        photo = self.guides["photograph"]
        found["photograph, band blended without a permutation"] = (
            self._blended(photo, *method.SHAPES["soft"]),
            None,
            1.0,
        )
        found["photograph, all noise blended 0.2"] = (self._mixed(photo, 0.2), None, 1.0)
        blurred = Image.fromarray(self.photo).filter(ImageFilter.GaussianBlur(12))
        inputs = {
            "photograph": (self.photo, DENOISE),
            "mask, two colors by the VAE": (self.two_colors, DENOISE[1:]),
        }
        for name, (image, every) in inputs.items():
            for denoise in every:
                found[f"{name}, img2img {denoise:g}"] = (
                    lambda noise: noise,
                    self.encoded(image),
                    denoise,
                )
        found["blurred photograph, img2img 0.8"] = (
            lambda noise: noise,
            self.encoded(np.asarray(blurred)),
            0.8,
        )
        return found

    def _blended(self, guide: torch.Tensor, strength: float, cutoff: float) -> Callable:
        """The guide's band blended into the noise's, whose norm stays."""
        settings = self._method.CompositionSettings(strength=strength, cutoff=cutoff)

        def change(noise: torch.Tensor) -> torch.Tensor:
            own, other = (
                self._method.low_pass(settings, one) for one in (noise, guide.expand_as(noise))
            )
            size = own.square().sum(dim=(1, 2, 3), keepdim=True).sqrt()
            unit = other / other.square().sum(dim=(1, 2, 3), keepdim=True).sqrt() * size
            mixed = strength * unit + (1 - strength) * own
            mixed = mixed / mixed.square().sum(dim=(1, 2, 3), keepdim=True).sqrt() * size
            return noise + (mixed - own).to(noise)

        return change

    def _mixed(self, guide: torch.Tensor, weight: float) -> Callable:
        return lambda noise: weight * guide / guide.std() + (1 - weight**2) ** 0.5 * noise

    def outline(self, images: np.ndarray) -> np.ndarray:
        """Intersection over union of the person with this one, for images (N, H, W, 3) on plain
        grounds.
        """
        corners = np.concatenate([images[:, :12, :12], images[:, :12, -12:]], axis=2).reshape(
            len(images), -1, 3
        )
        ground = np.median(corners, axis=1)[:, None, None]
        found, truth = np.abs(images - ground).max(-1) > 40, self.person > 0.5
        return (found & truth).sum((1, 2)) / (found | truth).sum((1, 2))


def measure(quick: bool = False) -> dict[str, dict]:
    """Layout, outline, ground and captions lost of each way; layouts of masks over the
    photograph's.
    """
    generator, network = sampled_images.load()
    count = 12 if quick else COUNT
    scenes = [replace(scene, pattern="plain") for scene in sampled_images.scenes(count)]
    truth = requested(scenes)
    prompts = sampled_images.encoded(
        generator, [captions.full_caption(one).rsplit(", ", 1)[0] for one in scenes]
    )
    stock = sample(generator, prompts, STEPS, lambda noise: noise)
    found = judge.followed(judge.read(network, stock)[0], truth)
    latents = generator.latents(stock)
    rows = results.Rows(
        "noise_layouts" + "_quick" * quick,
        {"count": count, "steps": STEPS, "cfg": CFG, "seed": SEED},
    )
    per_way: dict[str, list[np.ndarray]] = {}
    for number, (seed, color) in enumerate(SCENES[: 1 if quick else None]):
        scene = Scene(generator, seed, color, latents)
        ways = {"noise as drawn": (None, None, 1.0), **scene.ways()}
        for name, (transform, latent, denoise) in ways.items():

            def make(transform=transform, latent=latent, denoise=denoise, scene=scene) -> dict:
                images = stock
                if transform is not None:
                    images = sample(generator, prompts, STEPS, transform, latent, denoise)
                read = judge.read(network, images)[0]
                values = {
                    "layout": follow(images, scene.photo),
                    "outline": scene.outline(images.astype(float)),
                    "ground": read[:, _GROUND] == dataset.LABELS["background"].index(scene.color),
                    "captions lost": found - judge.followed(read, truth),
                }
                return {key: np.asarray(value, float).tolist() for key, value in values.items()}

            row = rows.row(f"{number}, {name}", make)
            per_way.setdefault(name, []).append(np.array(list(row.values())))
            print(
                number,
                name,
                {key: round(float(np.mean(value)), 3) for key, value in row.items()},
                flush=True,
            )
    numbers = summarized({name: np.mean(values, axis=0) for name, values in per_way.items()})
    rows.finished()
    return numbers


def summarized(per_way: dict[str, np.ndarray]) -> dict[str, dict]:
    """Means over captions of (4, N) values each, and layouts as fractions of the photograph's at
    the same shape.
    """
    about = {
        "layout": ("correlation of 8 x 8 colors with the photograph", "correlation"),
        "outline": ("intersection over union of the person with the photograph's", "fraction"),
        "ground": ("images in which the judge reads the photograph's background", "fraction"),
        "captions lost": (
            "requested attributes found with the noise as drawn less those found here, paired",
            "fraction",
        ),
    }
    numbers = {}
    for name, values in per_way.items():
        for key, row in zip(about, values, strict=True):
            numbers[f"{name}: {key}"] = results.bootstrap(row, *about[key])
        if name.startswith("mask") and (shape := name.rpartition(", ")[2]) in ("soft", "firm"):
            pairs = np.stack([values[0], per_way[f"photograph, {shape}"][0]], axis=1)
            numbers[f"{name}: layout over the photograph's"] = results.bootstrap(
                pairs,
                "mean layout over that of the photograph as a guide",
                "ratio",
                lambda rows: np.divide(*rows.mean(0)),
            )
    return numbers
