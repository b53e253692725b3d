"""A LoRA on the demo model with paired and unpaired noise: faces with sunglasses and a majestic beard.

Forty-eight renders of that kind with the one caption "portrait" train it through the node's own method; then "portrait"
is painted from noise that no training has seen. Scored by the share of the two attributes that the judge finds, by the
Frechet distance of the judge's features from other renders of the kind, and by the held-out loss.
"""

from __future__ import annotations

import numpy as np
import torch

from ..common import host, results
from ..common.similarity import frechet

CAPTION = "portrait"
WANTED = {"accessory": "sunglasses", "facial_hair": "majestic beard"}
PICTURES, HELD_OUT, COMPARED = 48, 8, 300
MODES = {
    "vanilla": {"mode": "off"}, "assign": {"mode": "assign"}, "pool 256": {"mode": "pool"},
    "nearest 2": {"mode": "nearest", "k": 2}, "nearest 4": {"mode": "nearest", "k": 4},
    "nearest 8": {"mode": "nearest", "k": 8},
}  # fmt: skip
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
        self.columns = {list(dataset.LABELS).index(name): dataset.LABELS[name].index(value)
                        for name, value in WANTED.items()}  # fmt: skip
        matches = [shard.labels[:, column] == value for column, value in self.columns.items()]
        which = np.all(matches, axis=0).nonzero()[0]
        pictures = torch.from_numpy(shard.pictures[which[:PICTURES]]).float() / 255
        self.latents = list(self.generator.vae.encode(pictures).split(1))
        self.truth = judge.read(self.judge, shard.pictures[which[PICTURES : PICTURES + COMPARED]])[1]

    def score(self, patcher, count: int, seed: int) -> tuple[np.ndarray, float]:
        """Of each painted picture the share of the wanted attributes; and the Frechet distance."""
        from dataclasses import replace

        from ..world import judge

        pictures = replace(self.generator, model=patcher).sample([CAPTION] * count, 5_000_000 + seed, 1.0, EULER)
        found, features = judge.read(self.judge, pictures)
        hits = np.mean([found[:, column] == value for column, value in self.columns.items()], axis=0)
        return hits, frechet(features, self.truth)


def run(kind: Kind, choices: dict, seed: int, steps: int) -> tuple[object, float, float]:
    """Train one LoRA; the model with it, the held-out loss of the end, and the percent of the time spent waiting."""
    adapters, train = host.pack("nodes.host.adapters"), host.pack("nodes.host.train")
    parts = {name: host.pack(f"nodes.noise.training.{name}")
             for name in ("draws", "feed", "loop", "objective", "pictures", "serving", "validation")}  # fmt: skip
    settings = host.pack("nodes.noise.settings").Settings(**choices)
    made = adapters.create(kind.generator.model, "LoRA", 8, torch.float32, seed, {})
    plan = parts["loop"].Plan(steps, learning_rate=RATE, schedule="cosine", warmup=steps // 10)
    parameters = [parameter for parameter in made.parameters.values() if parameter.requires_grad]
    training = parts["loop"].Training(
        made.parameters, torch.optim.AdamW(parameters, lr=RATE), plan, parts["objective"].make("MSE", "min-SNR", 5.0),
        parts["validation"].Validation(range(PICTURES - HELD_OUT, PICTURES), seed=0),
    )  # fmt: skip

    def work(session) -> None:
        pictures = parts["pictures"].Pictures(session.latents[: PICTURES - HELD_OUT], [""] * (PICTURES - HELD_OUT))
        draws = parts["draws"].Draws(pictures, BATCH, seed)
        training.run(session, parts["feed"].Feed(pictures, draws, parts["serving"].Server(settings, pictures, seed)))

    caption = kind.generator.condition([CAPTION])
    train.run(kind.generator.model, made.functions, kind.latents, [caption] * PICTURES, work, dtype=torch.float32)
    history = training.history
    return adapters.applied(kind.generator.model, made.lora()), history.validation[-1][1], history.visible_share


def measure(quick: bool = False) -> dict[str, dict]:
    """Every number of the LoRAs."""
    kind, numbers = Kind(), {}
    seeds, steps, count = (1, 20, 24) if quick else (2, 60, 48)
    modes = {name: MODES[name] for name in ("vanilla", "pool 256")} if quick else MODES
    hits, distance = kind.score(kind.generator.model, count, 0)
    numbers["before training, wanted attributes"] = results.bootstrap(hits, "share the judge finds", "share")
    numbers["before training, Frechet"] = results.bootstrap(np.array([distance]), f"{count} pictures", "distance")
    for name, choices in modes.items():
        runs = []
        for seed in range(seeds):
            patcher, held_out, waited = run(kind, choices, seed, steps)
            runs.append((*kind.score(patcher, count, seed), held_out, waited))
            print(f"{name}, seed {seed}: {runs[-1][0].mean():.3f} {runs[-1][1]:.1f} {held_out:.4f}", flush=True)
        how = f"after {steps} steps of batch {BATCH}, {EULER} Euler steps"
        numbers[f"{name}, wanted attributes"] = results.bootstrap(
            np.concatenate([run[0] for run in runs]), f"share the judge finds {how}, pictures of all seeds", "share")
        for place, what, unit in ((1, f"Frechet distance of judge features {how}", "distance"),
                                  (2, "held-out loss, unpaired noise", "loss"),
                                  (3, "share of the time the model waits for noise", "percent")):
            values = np.array([run[place] for run in runs])
            numbers[f"{name}, {what.split(',')[0].split(' of judge')[0]}"] = results.bootstrap(
                values, f"{what}, over seeds", unit)
    return numbers
