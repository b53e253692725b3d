"""Small denoisers of the demo world's latents, trained from scratch with paired and unpaired noise.

A transformer of under a million parameters learns rectified flow on latents (24 x 16 x 16) of
12,000 renders, given skin, hair color, accessory and ground. It is scored over its steps by the
Frechet distance of latents in their 48 leading principal components, and at the end by the judge,
who reads the requested attributes from decoded images.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from ..common import host, results
from ..common.similarity import frechet
from ..world.autoencoder import CHANNELS
from .pairing import ASSIGN, VANILLA, WITHIN, Batches, Mode, nearest, pool

METHOD = host.pack("nodes.noise.scratch_training")
REQUESTED = ("skin", "hair_color", "accessory", "background")
SIDE, PATCH = 16, 4
COMPONENTS, SAMPLES = 48, 500
EULER = (2, 4, 16)
RATE = 1e-3


@dataclass(frozen=True)
class Size:
    """How much is trained and read."""

    seeds: int
    images: int
    looks: tuple[int, ...]
    batch: int
    judged: int
    modes: tuple[Mode, ...]


FULL = Size(
    5,
    12_000,
    (100, 200, 400),
    64,
    96,
    (VANILLA, ASSIGN, WITHIN, pool(512), nearest(2), nearest(4), nearest(8)),
)
QUICK = Size(1, 1_000, (50, 100), 64, 32, (VANILLA, ASSIGN, nearest(4)))


class Patches(nn.Module):
    """A transformer over patches of a latent, with the time and the requested attributes added to
    every patch.
    """

    def __init__(self, kinds: list[int], width: int = 128, depth: int = 4):
        super().__init__()
        count, size = (SIDE // PATCH) ** 2, CHANNELS * PATCH * PATCH
        self.enter, self.leave = nn.Linear(size, width), nn.Linear(width, size)
        self.place = nn.Parameter(0.02 * torch.randn(count, width))
        self.time = nn.Sequential(nn.Linear(33, width), nn.SiLU(), nn.Linear(width, width))
        self.requested = nn.ModuleList(nn.Embedding(kind + 1, width) for kind in kinds)
        layer = nn.TransformerEncoderLayer(
            width, 4, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True
        )
        self.blocks = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        nn.init.zeros_(self.leave.weight)

    def forward(self, x: torch.Tensor, t: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        tokens = x.reshape(-1, CHANNELS, SIDE // PATCH, PATCH, SIDE // PATCH, PATCH)
        tokens = tokens.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)
        angles = t[:, None] * 2 ** torch.arange(0, 8, 0.5)
        condition = self.time(torch.cat([t[:, None], angles.sin(), angles.cos()], 1))
        condition = condition + sum(
            table(label[:, i] + 1) for i, table in enumerate(self.requested)
        )
        tokens = self.leave(self.blocks(self.enter(tokens) + self.place + condition[:, None]))
        tokens = tokens.unflatten(1, (SIDE // PATCH,) * 2).unflatten(3, (CHANNELS, PATCH, PATCH))
        return tokens.permute(0, 3, 1, 4, 2, 5).reshape(len(x), -1)


class World:
    """Latents, labels, principal components, and the judge with the autoencoder."""

    def __init__(self, count: int):
        from ..world import dataset, release
        from ..world.__main__ import FOLDER
        from ..world.generate import Generator

        dataset.build(FOLDER / "train", count, seed=1)
        shard = dataset.load(FOLDER / "train", count)
        self.generator = Generator.load(release.WORLD)
        self.judge = host.pack("nodes.demo.judge").load(release.WORLD)
        self.data = self.generator.latents(shard.images).float().flatten(1)
        self.columns = [list(dataset.LABELS).index(name) for name in REQUESTED]
        self.labels = torch.from_numpy(shard.labels[:, self.columns]).long()
        self.kinds = [len(dataset.LABELS[name]) for name in REQUESTED]
        centered = self.data - self.data.mean(0)
        self.axes = torch.linalg.eigh(centered.T @ centered)[1][:, -COMPONENTS:]
        self.truth = (self.data @ self.axes).numpy()

    def distance(self, latents: torch.Tensor) -> float:
        """Frechet distance of latents (N, 6144) from the world's in the leading components."""
        return frechet((latents @ self.axes).numpy(), self.truth)

    def obeyed(self, latents: torch.Tensor, requested: torch.Tensor) -> np.ndarray:
        """For each image the fraction of its requested attributes that the judge finds."""
        from ..world import judge

        shaped = latents.reshape(-1, CHANNELS, SIDE, SIDE)
        with torch.inference_mode():
            images = self.generator.vae.decode(
                self.generator.model.model.process_latent_out(shaped)
            )
        found, _ = judge.read(self.judge, (images * 255).round().to(torch.uint8).numpy())
        hits = torch.from_numpy(found[:, self.columns]) == requested
        return np.array(
            [
                float(row[seen].float().mean())
                for row, seen in zip(hits, requested >= 0, strict=True)
            ]
        )


def run(
    world: World, mode: Mode, seed: int, size: Size
) -> tuple[list[dict[int, float]], list[float], np.ndarray]:
    """Frechet distances by Euler steps and the seconds at each look; what the judge finds at the
    end.
    """
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed + 11)
    noise = torch.randn(SAMPLES, world.data.shape[1], generator=generator)
    requested = world.labels[torch.randint(len(world.labels), (SAMPLES,), generator=generator)]
    network = Patches(world.kinds)

    def look(network) -> dict[int, float]:
        return {
            steps: world.distance(METHOD.sample(network, noise, steps, requested))
            for steps in EULER
        }

    batches = Batches(data=world.data, size=size.batch, mode=mode, seed=seed, labels=world.labels)
    seen, _ = METHOD.train(network, batches, size.looks, look, seed, RATE)
    few = slice(0, size.judged)
    hits = world.obeyed(
        METHOD.sample(network, noise[few], EULER[-1], requested[few]), requested[few]
    )
    print(
        f"{mode.name}, seed {seed}: {seen[-1].score}, obeyed {hits.mean():.3f}, "
        f"{seen[-1].seconds:.0f} s",
        flush=True,
    )
    return [one.score for one in seen], [one.seconds for one in seen], hits


def measure(quick: bool = False) -> dict[str, dict]:
    """Every number of the small denoisers."""
    size = QUICK if quick else FULL
    world = World(size.images)
    numbers: dict[str, dict] = {}
    plain = None
    for mode in size.modes:
        runs = [run(world, mode, seed, size) for seed in range(size.seeds)]
        plain = plain or runs
        for place, step in enumerate(size.looks):
            for euler in EULER:
                values = np.array([scores[place][euler] for scores, _, _ in runs])
                numbers[f"{mode.name}, Frechet, {euler} Euler steps, step {step}"] = (
                    results.bootstrap(
                        values,
                        f"{SAMPLES} samples in {COMPONENTS} components, over seeds",
                        "distance",
                    )
                )
        numbers[f"{mode.name}, obeyed"] = results.bootstrap(
            np.array([hits.mean() for _, _, hits in runs]),
            "fraction of requested attributes the judge finds, "
            f"{EULER[-1]} Euler steps, over seeds",
            "fraction",
        )
        paces = np.array(
            [ours[1][-1] / theirs[1][-1] for ours, theirs in zip(runs, plain, strict=True)]
        )
        numbers[f"{mode.name}, CPU time of a step over vanilla"] = results.bootstrap(
            paces, "in line", "ratio"
        )
        if mode is not VANILLA:
            numbers |= _equal_seconds(mode, size.looks, runs, plain)
    return numbers


def _equal_seconds(mode: Mode, looks: tuple[int, ...], runs: list, plain: list) -> dict[str, dict]:
    """The score at the CPU seconds that vanilla's whole run took, between looks along a line, over
    vanilla's.
    """
    numbers = {}
    for euler in EULER:
        ratios = [
            np.interp(theirs[1][-1], ours[1], [score[euler] for score in ours[0]])
            / theirs[0][-1][euler]
            for ours, theirs in zip(runs, plain, strict=True)
        ]
        numbers[f"{mode.name} over vanilla, {euler} Euler steps, equal CPU seconds"] = (
            results.bootstrap(
                np.array(ratios),
                f"ratio of Frechet distances at the seconds of vanilla's {looks[-1]} steps",
                "ratio",
            )
        )
    return numbers
