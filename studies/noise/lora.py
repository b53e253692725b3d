"""A LoRA on the demo model with paired and unpaired noise: faces with sunglasses and a majestic
beard.

Forty-eight renders of that kind with the one caption "portrait" train it through the node's own
method; then "portrait" is generated from noise that no training has seen. Scored by the fraction of
the two attributes that the judge finds, by the Frechet distance of the judge's features from other
renders of the kind, and by the held-out loss.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from ..common import host, results
from ..common.similarity import frechet

CAPTION = "portrait"
WANTED = {"accessory": "sunglasses", "facial_hair": "majestic beard"}
IMAGES, HELD_OUT, COMPARED = 48, 8, 300
MODES = {
    "vanilla": {"pairing": "off"},
    "assign": {"pairing": "assign"},
    "pool 256": {"pairing": "pool"},
    "nearest 2": {"pairing": "nearest", "k": 2},
    "nearest 4": {"pairing": "nearest", "k": 4},
    "nearest 8": {"pairing": "nearest", "k": 8},
}
RATE, BATCH, EULER = 2e-3, 4, 10
SEED = 6_000_000


class Kind:
    """Renders of the wanted kind, and the model with its judge."""

    def __init__(self):
        from ..world import dataset, judge, release
        from ..world.generate import Generator
        from ..world.scenes import random_scene, render

        self.generator = Generator.load(release.WORLD)
        self.judge = host.pack("nodes.demo.judge").load(release.WORLD)
        self.columns = {
            list(dataset.LABELS).index(name): dataset.LABELS[name].index(value)
            for name, value in WANTED.items()
        }
        rng = np.random.default_rng(SEED)
        scenes = [random_scene(rng) for _ in range(IMAGES + COMPARED)]
        renders = np.stack(
            [render(replace(scene, face=replace(scene.face, **WANTED))) for scene in scenes]
        )
        self.latents = list(
            self.generator.vae.encode(torch.from_numpy(renders[:IMAGES]).float() / 255).split(1)
        )
        self.truth = judge.read(self.judge, renders[IMAGES:])[1]

    def score(self, patcher, count: int, seed: int) -> tuple[np.ndarray, float]:
        """Of each generated image the fraction of the wanted attributes; and the Frechet
        distance.
        """
        from ..world import judge

        images = replace(self.generator, model=patcher).sample(
            [CAPTION] * count, 5_000_000 + seed, 1.0, EULER
        )
        found, features = judge.read(self.judge, images)
        hits = np.mean(
            [found[:, column] == value for column, value in self.columns.items()], axis=0
        )
        return hits, frechet(features, self.truth)


def run(kind: Kind, choices: dict, seed: int, steps: int) -> tuple[object, float, float]:
    """Train one LoRA; the model with it, the held-out loss of the end, and the percent of the time
    spent waiting.
    """
    adapters, train = (
        host.pack("nodes.host.training.adapters"),
        host.pack("nodes.host.training.trainer"),
    )
    loop, loss, evaluation, sampling, data = (
        host.pack(f"nodes.common.training.{name}")
        for name in (
            "training_loop",
            "training_loss",
            "training_evaluation",
            "batch_sampler",
            "training_data",
        )
    )
    source = host.pack("nodes.noise.training_noise")
    settings = host.pack("nodes.noise.pairing").PairingSettings(**choices)
    made = adapters.create(kind.generator.model, "LoRA", 8, torch.float32, seed, None)
    plan = loop.Plan(steps=steps, learning_rate=RATE, schedule="cosine", warmup=steps // 10)
    parameters = [parameter for parameter in made.parameters.values() if parameter.requires_grad]
    training = loop.Training(
        made.parameters,
        torch.optim.AdamW(parameters, lr=RATE),
        plan,
        loss.make_objective("MSE", "min_snr", 5.0),
        evaluation.Validation(range(IMAGES - HELD_OUT, IMAGES), seed=0),
    )

    def work(session) -> None:
        images = data.TrainingImages(
            session.latents[: IMAGES - HELD_OUT], [""] * (IMAGES - HELD_OUT)
        )
        sampler = sampling.BatchSampler(images, BATCH, seed)
        noise = source.TrainingNoise(settings, images, seed)
        training.run(session, sampling.BatchPrefetcher(images, sampler, noise))

    caption = kind.generator.condition([CAPTION])
    train.run(
        kind.generator.model,
        made.functions,
        kind.latents,
        [caption] * IMAGES,
        work,
        dtype=torch.float32,
    )
    history = training.history
    return (
        adapters.applied(kind.generator.model, made.lora()),
        history.validation[-1][1],
        history.waiting_percent,
    )


def measure(quick: bool = False) -> dict[str, dict]:
    """Every number of the LoRAs; intervals are over trainings, and differences are paired by their
    seeds.
    """
    kind, numbers = Kind(), {}
    steps, count, seeds = (10, 8, 2) if quick else (150, 48, 5)
    modes = {name: MODES[name] for name in ("vanilla", "pool 256")} if quick else MODES
    before = [
        kind.score(kind.generator.model, count, seed * 1000)[0].mean() for seed in range(seeds)
    ]
    numbers["before training, wanted attributes"] = results.bootstrap(
        np.array(before), f"fraction the judge finds in {count} images", "fraction"
    )
    how = f"after {steps} steps of batch {BATCH}"
    measures = {
        "wanted attributes": (
            f"fraction the judge finds in {count} images {how}, {EULER} Euler steps",
            "fraction",
        ),
        "Frechet distance": (
            f"judge features of {count} images {how}, {EULER} Euler steps",
            "distance",
        ),
        "held-out loss": (f"unpaired noise, {how}", "loss"),
        "waits for noise": ("of the time of training", "percent"),
    }
    runs: dict[str, np.ndarray] = {}
    for name, choices in modes.items():
        rows = []
        for seed in range(seeds):
            patcher, held_out, waited = run(kind, choices, seed, steps)
            hits, distance = kind.score(patcher, count, seed * 1000)
            rows.append((hits.mean(), distance, held_out, waited))
            print(name, seed, np.round(rows[-1], 4).tolist(), flush=True)
        runs[name] = np.array(rows)
        for column, (measure_name, (what, unit)) in enumerate(measures.items()):
            numbers[f"{name}, {measure_name}"] = results.bootstrap(
                runs[name][:, column], what, unit
            )
            if name != "vanilla" and measure_name != "waits for noise":
                less = runs[name][:, column] - runs["vanilla"][:, column]
                numbers[f"{name}, {measure_name} less vanilla's"] = _paired(
                    less, f"{what}, paired by seed", unit
                )
    return numbers


def _paired(differences: np.ndarray, what: str, unit: str) -> dict:
    """The mean of paired differences with Student's 95 % interval."""
    from scipy import stats

    mean, count = float(differences.mean()), len(differences)
    half = float(stats.t.ppf(0.975, count - 1) * differences.std(ddof=1) / count**0.5)
    return results.number(mean, count, unit, what, (mean - half, mean + half))
