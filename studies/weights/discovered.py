"""Sliders for the directions in which the model's own images of one prompt vary.

`python run.py study weights discovered` writes its result to
``studies/results/weights_discovered.json``. Discover Sliders finds the directions in 96 images of
"portrait" and pairs of images at their ends; Train Slider trains one slider from each list of
pairs. Each is judged on images from other noise, at -1 and 1: how far they move along their
direction, and the cosine of that movement with it, which SliderSpace (arXiv 2502.01639) trains for.
Rivals: pairs drawn at random, Train Slider with the words that name the direction, and these words
in the prompt.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from ..common import host, results
from ..world.generate import Generator
from ..world.release import ASSETS, WORLD

PROMPT = "portrait"
IMAGES, JUDGED, QUICK_JUDGED = 96, 40, 8
SLIDERS, QUICK_SLIDERS = 4, 1
SEED, JUDGED_SEED = 9_000, 77_000
SAMPLING = {"cfg": 3.0, "steps": 12}
#: Every input of Train Slider that is not the data; the demo workflow's values.
SETTINGS = {
    "base_prompt": PROMPT,
    "keep": "",
    "rank": 4,
    "steps": 60,
    "learning_rate": 0.01,
    "guidance_scale": 2.0,
    "batch_size": 4,
    "images": 8,
    "sampling_steps": 12,
    "cfg": 3.0,
    "end_percent": 1.0,
    "seed": 1,
    "layers": "",
    "precision": "auto",
    "gradient_checkpointing": False,
    "preview_interval": 0,
    "filename_prefix": "",
    "checkpoint_name": "",
    "checkpoint_interval": 50,
}


@dataclass
class Embedded:
    """A direction (D,), and embeddings (n, D) of images from other noise without a slider, with
    their spread along it.
    """

    generator: Generator
    plain: torch.Tensor
    axis: torch.Tensor
    spread: float
    judged: int

    def movement(self, low: torch.Tensor, high: torch.Tensor) -> tuple[list[float], list[float]]:
        """For each image the movement along the direction in its spread over images, and the
        cosine.
        """
        moved = high - low
        along = moved @ self.axis / self.spread
        cosines = torch.cosine_similarity(moved, self.axis[None], dim=1)
        return along.tolist(), cosines.tolist()


def run(quick: bool = False) -> Path:
    """Measure and write; ``quick`` takes one direction and fewer images."""
    generator = Generator.load(WORLD)
    words = host.pack("nodes.weights.nodes_sliders")
    discovery = host.pack("nodes.weights.slider_discovery")
    count, judged = (QUICK_SLIDERS, QUICK_JUDGED) if quick else (SLIDERS, JUDGED)
    images = torch.from_numpy(generator.sample([PROMPT] * IMAGES, SEED, **SAMPLING)).float() / 255
    before, after, high, low, _, report = words.DiscoverSliders.execute(
        images=images, sliders=count, words="\n".join(words.WORDS), clip=generator.clip
    ).args
    print(report)
    embeddings = _embedded(generator, images)
    centered = embeddings - embeddings.mean(dim=0)
    directions = discovery.discover(embeddings, count)
    halves = [centered[place::2] - centered[place::2].mean(dim=0) for place in (0, 1)]
    stem = "weights_discovered" + "_quick" * quick
    kept = results.Rows(stem, {"judged": judged, "assets": results.assets_hash(ASSETS)})
    plain = _embedded(generator, _images(generator, PROMPT, judged))
    numbers: dict[str, dict] = {}
    pairs = zip(before, after, strict=True)
    for number, (direction, ends) in enumerate(zip(directions, pairs, strict=True)):
        axis = centered.T @ direction.scores
        axis = axis / axis.norm()
        embedded = Embedded(
            generator, plain, axis, spread=float((plain @ axis).std()), judged=judged
        )
        phrases = (high[number], low[number])
        name = f"direction {number + 1}"
        trainings = {
            "pairs": functools.partial(_from_pairs, generator, *ends),
            "random pairs": functools.partial(_from_random, generator, images, len(ends[0])),
        }
        if not high[number].startswith("direction"):
            trainings["its words"] = functools.partial(_from_phrases, generator, *phrases)
        rows = {
            way: kept.row(f"{name}, {way}", functools.partial(_judge, embedded, training))
            for way, training in trainings.items()
        }
        if "its words" in rows:
            prompted = functools.partial(_prompted, embedded, *phrases)
            rows["prompt"] = kept.row(f"{name}, prompt", prompted)
        numbers[f"{name}: variance explained"] = results.number(
            direction.explained, IMAGES, "fraction", f"of the images' embeddings; {phrases}"
        )
        numbers[f"{name}: variance by chance"] = results.number(
            direction.by_chance, IMAGES, "fraction", "95 % quantile, each channel shuffled"
        )
        numbers[f"{name}: likeness in halves"] = results.number(
            _in_halves(halves, number), IMAGES, "cosine", "of the same component of either half"
        )
        for way, row in rows.items():
            numbers |= _numbers(f"{name}, {way}", row)
        print(name, phrases, {way: np.round(np.mean(row["along"]), 2) for way, row in rows.items()})
    command = "python run.py study weights discovered" + " --quick" * quick
    path = results.write(stem, command, SEED, (ASSETS,), numbers)
    kept.finished()
    return path


def _numbers(name: str, row: dict) -> dict[str, dict]:
    along = "movement from -1 to 1 along the direction, in its standard deviations over images"
    return {
        f"{name}: along": results.bootstrap(np.array(row["along"]), along, "sd"),
        f"{name}: cosine": results.bootstrap(
            np.array(row["cosine"]), "cosine of an image's movement and the direction", "cosine"
        ),
        f"{name}: mean cosine": results.number(
            row["mean_cosine"], len(row["along"]), "cosine", "of the mean movement over images"
        ),
    }


def _in_halves(halves: list[torch.Tensor], number: int) -> float:
    """The absolute cosine of one component in both halves of the images."""
    first, second = (torch.linalg.svd(half, full_matrices=False)[2][number] for half in halves)
    return float((first @ second).abs())


def _images(generator: Generator, prompt: str, count: int) -> torch.Tensor:
    sampled = generator.sample([prompt] * count, JUDGED_SEED, **SAMPLING)
    return torch.from_numpy(sampled).float() / 255


def _embedded(generator: Generator, images: torch.Tensor) -> torch.Tensor:
    return host.pack("nodes.common.prompt_alignment").embed(images, generator.clip)


def _trained(generator: Generator, **data) -> dict[str, torch.Tensor]:
    node = host.pack("nodes.weights.nodes_train_slider").TrainSlider
    _, loras, *_ = node.execute(
        model=generator.model,
        clip=generator.clip,
        vae=generator.vae,
        **{"increase": "after", "decrease": "before", **data, **SETTINGS},
    ).args
    return loras[0]


def _from_pairs(
    generator: Generator, before: torch.Tensor, after: torch.Tensor
) -> dict[str, torch.Tensor]:
    return _trained(generator, before=before, after=after)


def _from_random(generator: Generator, images: torch.Tensor, pairs: int) -> dict[str, torch.Tensor]:
    order = np.random.default_rng(SEED).permutation(len(images))
    return _from_pairs(generator, images[order[:pairs]], images[order[pairs : 2 * pairs]])


def _from_phrases(generator: Generator, increase: str, decrease: str) -> dict[str, torch.Tensor]:
    channels = generator.model.get_model_object("latent_format").latent_channels
    latent = {"samples": torch.zeros(1, channels, 16, 16)}
    return _trained(generator, increase=increase, decrease=decrease, latent=latent)


def _judge(embedded: Embedded, train: Callable[[], dict[str, torch.Tensor]]) -> dict:
    """The movement of a slider on other noise, from -1 to 1."""
    from comfy.sd import load_lora_for_models

    lora = train()
    ends = []
    for strength in (-1.0, 1.0):
        model, _ = load_lora_for_models(embedded.generator.model, None, lora, strength, 0.0)
        generator = Generator(model, embedded.generator.clip, embedded.generator.vae)
        ends.append(_embedded(embedded.generator, _images(generator, PROMPT, embedded.judged)))
    return _row(embedded, *ends)


def _prompted(embedded: Embedded, high: str, low: str) -> dict:
    """The movement of the words in the prompt."""
    prompts = [", ".join(filter(None, [PROMPT, word])) for word in (low, high)]
    ends = [
        _embedded(embedded.generator, _images(embedded.generator, prompt, embedded.judged))
        for prompt in prompts
    ]
    return _row(embedded, *ends)


def _row(embedded: Embedded, low: torch.Tensor, high: torch.Tensor) -> dict:
    along, cosines = embedded.movement(low, high)
    mean = torch.cosine_similarity((high - low).mean(dim=0), embedded.axis, dim=0)
    return {"along": along, "cosine": cosines, "mean_cosine": float(mean)}
