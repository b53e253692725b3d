"""A small network trained from scratch by rectified flow, where assigned noise shows in the
samples.

x_t = (1 - t) x + t z, and the network learns z - x (arXiv 2209.03003). With noise as drawn every z
leads to every x, so few sampling steps give averages; assigned noise (arXiv 2406.12303) leaves less
to average.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from .assignment import assign

if TYPE_CHECKING:
    from matplotlib.figure import Figure


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
        if self.classes and label is not None:
            parts.append(nn.functional.one_hot(label, self.classes).float())
        return self.layers(torch.cat(parts, dim=1))


@dataclass(frozen=True)
class Seen:
    """What a run looked like after so many steps: its score there, and the CPU seconds that
    training took.
    """

    step: int
    score: Any
    seconds: float


@dataclass(kw_only=True)
class Batches:
    """Random rows of `data` (N, D) with noise as drawn, or assigned within the batch; a seed draws
    the same in both.
    """

    data: torch.Tensor
    size: int
    assigned: bool
    seed: int
    labels: torch.Tensor | None = None

    def __post_init__(self) -> None:
        self._generator = torch.Generator().manual_seed(self.seed)

    def next(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Row numbers (B,) and noise (B, D)."""
        rows = torch.randint(len(self.data), (self.size,), generator=self._generator)
        noise = torch.randn(self.size, self.data.shape[1], generator=self._generator)
        return rows, noise[assign(self.data[rows], noise).permutation] if self.assigned else noise


def train(
    network: nn.Module,
    batches: Batches,
    looks: Sequence[int],
    look: Callable,
    seed: int,
    rate: float = 1e-3,
) -> tuple[list[Seen], float]:
    """Train with Adam up to the last of `looks`, and call `look(network)` at each; also the mean
    loss of the end.

    `batches`: has `data` (N, D), `labels` (N,) or None, and `next()` as `Batches`.
    """
    generator = torch.Generator().manual_seed(seed + 1_000_000)
    optimizer = torch.optim.Adam(network.parameters(), lr=rate)
    seen = []
    losses = []
    seconds = 0.0
    for step in range(1, looks[-1] + 1):
        started = time.process_time()
        rows, noise = batches.next()
        x = batches.data[rows]
        t = torch.rand(len(rows), generator=generator)
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
def sample(
    network: nn.Module, noise: torch.Tensor, steps: int, label: torch.Tensor | None = None
) -> torch.Tensor:
    """Euler from noise at t = 1 to data at t = 0."""
    x = noise
    for step in range(steps, 0, -1):
        x = x - network(x, torch.full((len(x),), step / steps), label) / steps
    return x


def frechet(a: np.ndarray, b: np.ndarray) -> float:
    """Frechet distance between two feature sets (N, D) as Gaussians."""
    covariance_a = np.cov(a.T)
    covariance_b = np.cov(b.T)
    values, vectors = np.linalg.eigh(covariance_a)
    half = vectors * np.sqrt(values.clip(0)) @ vectors.T
    # The root of A B has the trace of the root of the symmetric A^1/2 B A^1/2, which singular
    # covariances do not upset.
    root = np.sqrt(np.linalg.eigvalsh(half @ covariance_b @ half).clip(0)).sum()
    shift = a.mean(0) - b.mean(0)
    return float(shift @ shift + np.trace(covariance_a + covariance_b) - 2 * root)


#: Sampling steps at which a run is scored.
EULER = (1, 2, 4, 8, 20)
_SAMPLES = 1000


@dataclass(frozen=True)
class DigitsRun:
    """Frechet distances of 1,000 samples from the digits, by training steps and at the end by Euler
    steps; samples.
    """

    over_training: dict[int, float]
    at_end: dict[int, float]
    samples: torch.Tensor


def digits() -> tuple[torch.Tensor, torch.Tensor]:
    """scikit-learn's handwritten digits of 8 x 8 pixels: (1797, 64) from -1 to 1, and their
    classes.

    Raises RuntimeError without scikit-learn.
    """
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        from ..common.packages import missing_package

        user = "Training From Scratch"
        raise RuntimeError(missing_package(user, "sklearn", error, "scikit-learn")) from error
    found = load_digits()
    return torch.tensor(found.data, dtype=torch.float32) / 8 - 1, torch.tensor(found.target)


def train_digits(
    assigned: bool,
    batch_size: int,
    steps: int,
    sample_steps: int,
    seed: int,
    progress: Callable[[int], None],
) -> DigitsRun:
    """Train on the digits with noise as drawn or assigned; the same seed means the same images,
    noise and start.

    Seeds the global generator. `progress(step)` is called about every 25 steps and may raise.
    """
    torch.manual_seed(seed)
    data, _ = digits()
    noise = torch.randn(_SAMPLES, data.shape[1], generator=torch.Generator().manual_seed(seed + 7))
    looks = sorted({*range(25, steps, 25), steps})
    scored = set(looks[:: -max(1, len(looks) // 8)])
    coming = iter(looks)

    def distance(network: nn.Module, count: int) -> float:
        return frechet(sample(network, noise, count).numpy(), data.numpy())

    def look(network: nn.Module) -> float:
        step = next(coming)
        progress(step)
        return distance(network, sample_steps) if step in scored else math.nan

    network = Perceptron(data.shape[1], 256)
    seen, _ = train(
        network,
        Batches(data=data, size=batch_size, assigned=assigned, seed=seed),
        looks=looks,
        look=look,
        seed=seed,
    )
    over_training = {one.step: one.score for one in seen if one.step in scored}
    at_end = {count: distance(network, count) for count in sorted({*EULER, sample_steps})}
    return DigitsRun(over_training, at_end, sample(network, noise, sample_steps))


def to_images(
    samples: torch.Tensor, columns: int = 8, rows: int = 4, scale: int = 8
) -> torch.Tensor:
    """Digits (N, 64) from -1 to 1 as one contact sheet, an IMAGE (1, H, W, 3)."""
    tiles = ((samples[: rows * columns] + 1) / 2).clamp(0, 1).reshape(rows, columns, 8, 8)
    tiles = (
        nn.functional.pad(tiles, (0, 1, 0, 1))
        .repeat_interleave(scale, 2)
        .repeat_interleave(scale, 3)
    )
    sheet = tiles.permute(0, 2, 1, 3).flatten(2).flatten(0, 1)
    return sheet[None, ..., None].repeat(1, 1, 1, 3)


def draw_distances(
    figure: Figure, drawn: DigitsRun, assigned: DigitsRun, sample_steps: int
) -> None:
    """Left the distance over training at `sample_steps` Euler steps, right at the end over Euler
    steps.
    """
    left, right = figure.subplots(1, 2)
    for run, name, style in ((drawn, "noise as drawn", "o--"), (assigned, "assigned noise", "o-")):
        left.plot(list(run.over_training), list(run.over_training.values()), style, label=name)
        right.plot(list(run.at_end), list(run.at_end.values()), style, label=name)
    left.set(title=f"{sample_steps} sampling steps", xlabel="training steps")
    right.set(
        title=f"after {max(drawn.over_training)} training steps",
        xlabel="sampling steps",
        xscale="log",
    )
    right.set_xticks(list(drawn.at_end), labels=list(map(str, drawn.at_end)))
    for axes in (left, right):
        axes.set(ylabel="Frechet distance (less is better)", yscale="log")
        axes.grid(alpha=0.3)
        axes.legend()


def describe_runs(drawn: DigitsRun, assigned: DigitsRun) -> str:
    """The distances at the end by sampling steps, and what one pair of runs is worth."""
    pairs = [(count, before, assigned.at_end[count]) for count, before in drawn.at_end.items()]
    return "\n".join(
        [
            f"Frechet distance from the digits after {max(drawn.over_training)} training steps "
            "(less is better):",
            *(
                f"{n} sampling steps: {a:.2f} as drawn, {b:.2f} assigned, {b / a:.2f} times."
                for n, a, b in pairs
            ),
            "Small networks from scratch only: a LoRA gained nothing in our study. One pair of "
            "runs; see other seeds.",
        ]
    )
