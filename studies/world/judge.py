"""Train the judge on renders, and measure it on renders that it has not seen."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from ..common import host
from ..common.training import Plan, device, starting_weights, train
from . import dataset

PLAN = Plan(steps=2_400, learning_rate=2.5e-3, ema_decay=0.995, seed=23)
#: Images of one step: ordinary scenes, and scenes with masks, key points and 0 to 3 faces.
ORDINARY, TRUTH = 12, 20


def build() -> torch.nn.Module:
    """A judge with fresh weights."""
    torch.manual_seed(PLAN.seed)
    return host.pack("nodes.demo.judge").Judge(dataset.LABELS).to(device())


def make(folder: Path, copy: Path | None = None, start: str | None = None) -> torch.nn.Module:
    """Train, or go on training, with checkpoints in ``folder``, or else from the weights of the
    world ``start``.
    """
    network = build()
    shard, truth = dataset.load(folder / "train"), dataset.load_truth(folder / "truth")
    images, labels = (
        torch.from_numpy(np.concatenate(pair))
        for pair in ((shard.images, truth.images), (shard.labels, truth.labels))
    )
    masks, points = torch.from_numpy(truth.masks), torch.from_numpy(truth.points)
    faces = torch.from_numpy(truth.faces).long()

    def loss(generator: torch.Generator, progress: float) -> torch.Tensor:
        ordinary = torch.randint(len(shard.images), (ORDINARY,), generator=generator)
        true = torch.randint(len(truth.images), (TRUTH,), generator=generator)
        picks = torch.cat([ordinary, len(shard.images) + true])
        batch = images[picks].permute(0, 3, 1, 2).float() / 255
        grain = (
            torch.randn(batch.shape, generator=generator)
            * torch.rand(len(picks), 1, 1, 1, generator=generator)
            * 0.04
        )
        logits, located = network.everything((batch + grain).to(device()))
        wanted = labels[picks].long().to(device())
        # A rare attribute may be visible in no image of the batch.
        read = sum(
            F.cross_entropy(logits[name].float(), column, ignore_index=-1, reduction="sum")
            / (column >= 0).sum().clamp(min=1)
            for name, column in zip(dataset.LABELS, wanted.T, strict=True)
        )
        parts, found, counted = (value[ORDINARY:].float() for value in located)
        shown = F.binary_cross_entropy_with_logits(parts, masks[true].to(device()) / 255)
        single = faces[true] == 1
        distance = (found[single.to(device())] - points[true][single].to(device())).abs().mean()
        return (
            read + 4 * shown + 0.1 * distance + F.cross_entropy(counted, faces[true].to(device()))
        )

    first = starting_weights(start, "judge") if start else None
    return train(network, loss, PLAN, folder / "judge.pt", every=100, copy=copy, start=first)


@torch.inference_mode()
def read(
    network: torch.nn.Module, images: np.ndarray, batch: int = 125
) -> tuple[np.ndarray, np.ndarray]:
    """Predicted labels int64 (N, 12) and features float32 (N, 192) of uint8 images (N, 128, 128,
    3).
    """
    predicted, features = [], []
    for start in range(0, len(images), batch):
        part = (
            torch.from_numpy(images[start : start + batch]).permute(0, 3, 1, 2).float().to(device())
            / 255
        )
        inner = network.features(part)
        predicted.append(
            torch.stack([network.heads[name](inner).argmax(-1) for name in dataset.LABELS], 1).cpu()
        )
        features.append(inner.float().cpu())
    return torch.cat(predicted).numpy(), torch.cat(features).numpy()


@torch.inference_mode()
def confidence(network: torch.nn.Module, images: np.ndarray) -> np.ndarray:
    """The largest probability of an attribute, mean over attributes (N,), of uint8 images: near 1
    on renders, lower where parts are smeared.
    """
    pixels = torch.from_numpy(images).permute(0, 3, 1, 2).float().to(device()) / 255
    largest = [logits.float().softmax(-1).amax(-1) for logits in network(pixels).values()]
    return torch.stack(largest, dim=1).mean(dim=1).cpu().numpy()


@torch.inference_mode()
def locate(
    network: torch.nn.Module, images: np.ndarray, batch: int = 50
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Masks float32 (N, 6, 128, 128), key points (N, 4, 2) and numbers of faces (N,) of uint8
    images.
    """
    parts = [
        network.locate(
            torch.from_numpy(images[start : start + batch]).permute(0, 3, 1, 2).float().to(device())
            / 255
        )
        for start in range(0, len(images), batch)
    ]
    return tuple(torch.cat(column).cpu().numpy() for column in zip(*parts, strict=True))


def followed(predicted: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """Fraction of what each caption requests that was read in its image (N,); no caption requests
    mirroring.

    ``predicted`` and ``truth`` are labels (N, 12); a truth below 0 cannot be seen.
    """
    columns = [index for index, name in enumerate(dataset.LABELS) if name != "mirror"]
    pairs = zip(predicted[:, columns], truth[:, columns], strict=True)
    return np.array([(got[wanted >= 0] == wanted[wanted >= 0]).mean() for got, wanted in pairs])


def accuracy(predicted: np.ndarray, truth: np.ndarray) -> dict[str, float]:
    """Fraction of right labels per attribute among the images in which it can be seen."""
    result = {}
    for column, name in enumerate(dataset.LABELS):
        seen = truth[:, column] >= 0
        if seen.any():
            result[name] = float((predicted[seen, column] == truth[seen, column]).mean())
    return result
