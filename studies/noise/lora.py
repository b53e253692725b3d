"""A LoRA on the demo model with paired and unpaired noise: faces with sunglasses and a majestic beard.

Forty-eight renders of that kind with the one caption "portrait" train it through the node's own method; then "portrait"
is generated from noise that no training has seen. Scored by the fraction of the two attributes that the judge finds,
by the Frechet distance of the judge's features from other renders of the kind, and by the held-out loss.
"""

from __future__ import annotations

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


class Kind:
    """Renders of the wanted kind, and the model with its judge."""

    def __init__(self):
        from ..world import dataset, judge, release
        from ..world.__main__ import FOLDER
        from ..world.generate import Generator

        self.generator = Generator.load(release.WORLD)
        self.judge = host.pack("nodes.demo.judge").load(release.WORLD)
        shard = dataset.load(FOLDER / "train")
        self.columns = {
            list(dataset.LABELS).index(name): dataset.LABELS[name].index(value) for name, value in WANTED.items()
        }
        matches = [shard.labels[:, column] == value for column, value in self.columns.items()]
        which = np.all(matches, axis=0).nonzero()[0]
        images = torch.from_numpy(shard.images[which[:IMAGES]]).float() / 255
        self.latents = list(self.generator.vae.encode(images).split(1))
        self.truth = judge.read(self.judge, shard.images[which[IMAGES : IMAGES + COMPARED]])[1]

    def score(self, patcher, count: int, seed: int) -> tuple[np.ndarray, float]:
        """Of each generated image the fraction of the wanted attributes; and the Frechet distance."""
        from dataclasses import replace

        from ..world import judge

        images = replace(self.generator, model=patcher).sample([CAPTION] * count, 5_000_000 + seed, 1.0, EULER)
        found, features = judge.read(self.judge, images)
        hits = np.mean([found[:, column] == value for column, value in self.columns.items()], axis=0)
        return hits, frechet(features, self.truth)


def run(kind: Kind, choices: dict, seed: int, steps: int) -> tuple[object, float, float]:
    """Train one LoRA; the model with it, the held-out loss of the end, and the percent of the time spent waiting."""
    adapters, train = host.pack("nodes.host.training.adapters"), host.pack("nodes.host.training.trainer")
    loop, loss, evaluation, sampling, data, source = (
        host.pack(f"nodes.noise.training.{name}")
        for name in (
            "training_loop",
            "training_loss",
            "training_evaluation",
            "batch_sampler",
            "training_data",
            "noise_source",
        )
    )
    settings = host.pack("nodes.noise.pairing").PairingSettings(**choices)
    made = adapters.create(kind.generator.model, "LoRA", 8, torch.float32, seed, {})
    plan = loop.Plan(steps, learning_rate=RATE, schedule="cosine", warmup=steps // 10)
    parameters = [parameter for parameter in made.parameters.values() if parameter.requires_grad]
    training = loop.Training(
        made.parameters,
        torch.optim.AdamW(parameters, lr=RATE),
        plan,
        loss.make_objective("MSE", "min_snr", 5.0),
        evaluation.Validation(range(IMAGES - HELD_OUT, IMAGES), seed=0),
    )

    def work(session) -> None:
        images = data.TrainingImages(session.latents[: IMAGES - HELD_OUT], [""] * (IMAGES - HELD_OUT))
        sampler = sampling.BatchSampler(images, BATCH, seed)
        noise = source.TrainingNoise(settings, images, seed)
        training.run(session, sampling.BatchPrefetcher(images, sampler, noise))

    caption = kind.generator.condition([CAPTION])
    train.run(kind.generator.model, made.functions, kind.latents, [caption] * IMAGES, work, dtype=torch.float32)
    history = training.history
    return adapters.applied(kind.generator.model, made.lora()), history.validation[-1][1], history.waiting_percent


def measure(quick: bool = False) -> dict[str, dict]:
    """Every number of the LoRAs."""
    kind, numbers = Kind(), {}
    seeds, steps, count = (1, 20, 24) if quick else (2, 60, 48)
    modes = {name: MODES[name] for name in ("vanilla", "pool 256")} if quick else MODES
    hits, distance = kind.score(kind.generator.model, count, 0)
    numbers["before training, wanted attributes"] = results.bootstrap(hits, "fraction the judge finds", "fraction")
    numbers["before training, Frechet"] = results.bootstrap(np.array([distance]), f"{count} images", "distance")
    for name, choices in modes.items():
        runs = []
        for seed in range(seeds):
            patcher, held_out, waited = run(kind, choices, seed, steps)
            runs.append((*kind.score(patcher, count, seed), held_out, waited))
            print(f"{name}, seed {seed}: {runs[-1][0].mean():.3f} {runs[-1][1]:.1f} {held_out:.4f}", flush=True)
        how = f"after {steps} steps of batch {BATCH}, {EULER} Euler steps"
        numbers[f"{name}, wanted attributes"] = results.bootstrap(
            np.concatenate([run[0] for run in runs]), f"fraction the judge finds {how}, images of all seeds", "fraction"
        )
        for place, what, unit in (
            (1, f"Frechet distance of judge features {how}", "distance"),
            (2, "held-out loss, unpaired noise", "loss"),
            (3, "fraction of the time the model waits for noise", "percent"),
        ):
            values = np.array([run[place] for run in runs])
            numbers[f"{name}, {what.split(',')[0].split(' of judge')[0]}"] = results.bootstrap(
                values, f"{what}, over seeds", unit
            )
    return numbers
