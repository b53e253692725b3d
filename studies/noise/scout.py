"""Seed Scout on the demo model: what ranking seeds after a few steps gains over random seeds.

For each caption many seeds run for a few steps, ranked as the node ranks them, and all of them to
the end, which is the truth. The seed ranked first is compared with a random one (the mean of all)
and, since scouting costs evaluations, with the best of as many complete images as the same
evaluations make, chosen by the complete images themselves.
"""

from __future__ import annotations

import numpy as np
import torch

from ..common import host, results
from ..common.similarity import cosine
from ..conditioning import sampled_images
from ..world import captions, judge
from ..world.autoencoder import CHANNELS
from ..world.scenes import Metadata, random_scene, render
from .composition import follow, requested

CFG, SEED, FULL = 3.0, 5_000_000, 12
#: Steps of a scouted seed.
SCOUTED = (1, 4)
_SUBSETS = 400


def measure(quick: bool = False) -> dict[str, dict]:
    """Gains of the seed ranked first, for every ranking and number of scouted steps."""
    generator, network = sampled_images.load()
    count, seeds = (4, 8) if quick else (64, 16)
    rng = np.random.default_rng(SEED)
    gains: dict[str, list[tuple[float, float, float]]] = {}
    for number in range(count):
        scene, other = (random_scene(rng, Metadata()) for _ in range(2))
        text = captions.full_caption(scene).rsplit(", ", 1)[
            0
        ]  # without the background, which the reference decides
        finished, scouted = images_of(generator, text, SEED + 1000 * number, seeds)
        truths, scores = _measures(
            network, scene, np.asarray(render(other), np.uint8), finished, scouted
        )
        for (ranking, steps), score in scores.items():
            truth, complete = truths[ranking]
            equal = 1 + seeds * steps // FULL
            values = (truth[score.argmax()], truth.mean(), _best_of(truth, complete, equal, rng))
            gains.setdefault(f"{ranking}, {steps} steps", []).append(values)
        print(
            number,
            {name: np.round(np.mean(rows, axis=0), 3).tolist() for name, rows in gains.items()},
            flush=True,
        )
    numbers = {}
    for name, rows in gains.items():
        first, random, best = np.array(rows).T
        ranking, steps = name.removesuffix(" steps").split(", ")
        unit = {"layout_likeness": "correlation", "image_likeness": "cosine"}.get(
            ranking, "fraction"
        )
        what = {
            "layout_likeness": "correlation of the complete image's layout with the reference",
            "image_likeness": (
                "cosine of the judge's features of the complete image and the reference"
            ),
        }.get(ranking, "requested attributes that the judge finds in the complete image")
        equal = 1 + seeds * int(steps) // FULL
        numbers[f"{name}: random seed"] = results.bootstrap(random, what, unit)
        numbers[f"{name}: first of {seeds}"] = results.bootstrap(first, what, unit)
        numbers[f"{name}: first less random"] = results.bootstrap(
            first - random, f"{what}, paired by caption", unit
        )
        numbers[f"{name}: first less best of {equal} complete"] = results.bootstrap(
            first - best,
            f"{what}; equal evaluations, complete images ranked by the same score",
            unit,
        )
    return numbers


@torch.inference_mode()
def images_of(generator, text: str, seed: int, count: int):
    """The complete images of seeds, and by number of steps the scouted ones: each with the coverage
    of its words.

    Images are uint8 (count, 128, 128, 3), coverage is (count,).
    """
    attention, nodes = (
        host.pack("nodes.activations.seed_scout_comfy"),
        host.pack("nodes.host.evaluate"),
    )
    positive, negative = (
        [[sampled_images.encoded(generator, [part])[0], {}]] for part in (text, "")
    )
    latent, every = {"samples": torch.zeros(1, CHANNELS, 16, 16)}, list(range(seed, seed + count))
    found = {}
    for steps in (*SCOUTED, FULL):
        maps = attention.WordMaps(generator.model, generator.clip, text, "")
        samples = nodes.sample_seeds(maps.model, positive, negative, latent, every, steps, CFG)
        maps.read(samples)
        images = (generator.vae.decode(samples) * 255).round().to(torch.uint8).numpy()
        found[steps] = images, maps.scores(samples).values.numpy()
    complete = found.pop(FULL)
    return complete, found


def _measures(network, scene, reference: np.ndarray, complete, scouted):
    """By ranking: what counts and the score of the complete images; by ranking and steps: the
    scouted score.
    """
    truth = requested([scene])
    features = judge.read(network, reference[None])[1]

    def read(images: np.ndarray) -> dict[str, np.ndarray]:
        labels, inner = judge.read(network, images)
        return {
            "prompt_alignment": judge.followed(labels, truth.repeat(len(images), axis=0)),
            "layout_likeness": follow(images, reference),
            "image_likeness": cosine(inner, features.repeat(len(images), axis=0)),
        }

    last = read(complete[0])
    truths = {ranking: (values, values) for ranking, values in last.items()}
    truths["word_coverage"] = last["prompt_alignment"], complete[1]
    scores = {}
    for steps, (images, coverage) in scouted.items():
        for ranking, values in {**read(images), "word_coverage": coverage}.items():
            scores[ranking, steps] = values
    return truths, scores


def _best_of(truth: np.ndarray, score: np.ndarray, count: int, rng: np.random.Generator) -> float:
    """What counts of the best by score among ``count`` complete images, on average over random
    subsets.
    """
    subsets = np.array([rng.permutation(len(truth))[:count] for _ in range(_SUBSETS)])
    return float(truth[np.take_along_axis(subsets, score[subsets].argmax(1)[:, None], 1)].mean())
