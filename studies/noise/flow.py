"""Rectified flow in a few lines: x_t = (1 - t) x + t z, and a network that learns z - x (arXiv 2209.03003)."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import nn

from .pairing import Batches


class Perceptron(nn.Module):
    """Three hidden layers over the point, the time and, where there are classes, the class."""

    def __init__(self, width: int, hidden: int, classes: int = 0):
        super().__init__()
        self.classes = classes
        sizes = [width + 1 + classes, hidden, hidden, hidden]
        layers = [part for a, b in pairwise(sizes) for part in (nn.Linear(a, b), nn.SiLU())]
        self.layers = nn.Sequential(*layers, nn.Linear(hidden, width))

    def forward(self, x: torch.Tensor, t: torch.Tensor, label: torch.Tensor | None) -> torch.Tensor:
        parts = [x, t[:, None]]
        if self.classes:
            parts.append(nn.functional.one_hot(label, self.classes).float())
        return self.layers(torch.cat(parts, dim=1))


@dataclass(frozen=True)
class Seen:
    """What a run looked like after so many steps: its score there, and the CPU seconds that training took."""

    step: int
    score: object
    seconds: float


def train(
    network: nn.Module, batches: Batches, looks: Sequence[int], look: Callable, seed: int, rate: float = 1e-3
) -> tuple[list[Seen], float]:
    """Train with Adam up to the last of `looks`, and call `look(network)` at each; also the mean loss of the end."""
    generator = torch.Generator().manual_seed(seed + 1_000_000)
    optimizer = torch.optim.Adam(network.parameters(), lr=rate)
    seen, losses, seconds = [], [], 0.0
    for step in range(1, looks[-1] + 1):
        started = time.process_time()
        rows, noise = batches.next()
        x, t = batches.data[rows], torch.rand(len(rows), generator=generator)
        label = None if batches.labels is None else batches.labels[rows]
        predicted = network((1 - t[:, None]) * x + t[:, None] * noise, t, label)
        loss = (predicted - (noise - x)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        seconds += time.process_time() - started
        if step in looks:
            seen.append(Seen(step, look(network), seconds))
    return seen, sum(losses[-50:]) / len(losses[-50:])


@torch.no_grad()
def sample(network: nn.Module, noise: torch.Tensor, steps: int, label: torch.Tensor | None = None) -> torch.Tensor:
    """Euler from noise at t = 1 to data at t = 0."""
    x = noise
    for step in range(steps, 0, -1):
        x = x - network(x, torch.full((len(x),), step / steps), label) / steps
    return x
