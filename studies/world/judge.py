"""Train the judge on renders, and measure it on renders that it has not seen."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from ..common import host
from ..common.training import Plan, device, train
from . import dataset

PLAN = Plan(steps=10_500, learning_rate=2.5e-3, ema_decay=0.998, seed=23)
BATCH = 40


def build() -> torch.nn.Module:
    """A judge with fresh weights."""
    torch.manual_seed(PLAN.seed)
    return host.pack("nodes.demo.judge").Judge(dataset.LABELS).to(device())


def run(folder: Path) -> torch.nn.Module:
    """Train, or go on training, with checkpoints in ``folder``."""
    network = build()
    shard = dataset.load(folder / "train")
    pictures, labels = torch.from_numpy(shard.pictures), torch.from_numpy(shard.labels).long()

    def loss(generator: torch.Generator, progress: float) -> torch.Tensor:
        picks = torch.randint(len(pictures), (BATCH,), generator=generator)
        batch = pictures[picks].permute(0, 3, 1, 2).float() / 255
        grain = torch.randn(batch.shape, generator=generator) * torch.rand(BATCH, 1, 1, 1, generator=generator) * 0.04
        logits, truth = network((batch + grain).to(device())), labels[picks].to(device())
        return sum(F.cross_entropy(logits[name].float(), truth[:, column], ignore_index=-1)
                   for column, name in enumerate(dataset.LABELS))

    return train(network, loss, PLAN, folder / "judge.pt")


@torch.inference_mode()
def read(network: torch.nn.Module, pictures: np.ndarray, batch: int = 125) -> tuple[np.ndarray, np.ndarray]:
    """Predicted labels int64 (N, 12) and features float32 (N, 192) of uint8 pictures (N, 128, 128, 3)."""
    predicted, features = [], []
    for start in range(0, len(pictures), batch):
        part = torch.from_numpy(pictures[start:start + batch]).permute(0, 3, 1, 2).float().to(device()) / 255
        inner = network.features(part)
        predicted.append(torch.stack([network.heads[name](inner).argmax(-1) for name in dataset.LABELS], 1).cpu())
        features.append(inner.float().cpu())
    return torch.cat(predicted).numpy(), torch.cat(features).numpy()


def obeyed(predicted: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """Share of what each caption asks for that was read in its picture (N,); no caption asks for mirroring.

    ``predicted`` and ``truth`` are labels (N, 12); a truth below 0 cannot be seen.
    """
    columns = [index for index, name in enumerate(dataset.LABELS) if name != "mirror"]
    pairs = zip(predicted[:, columns], truth[:, columns], strict=True)
    return np.array([(got[asked >= 0] == asked[asked >= 0]).mean() for got, asked in pairs])


def accuracy(predicted: np.ndarray, truth: np.ndarray) -> dict[str, float]:
    """Share of right labels per attribute among the pictures in which it can be seen."""
    result = {}
    for column, name in enumerate(dataset.LABELS):
        seen = truth[:, column] >= 0
        if seen.any():
            result[name] = float((predicted[seen, column] == truth[seen, column]).mean())
    return result
