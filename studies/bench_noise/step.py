"""The share of a training step for which the model waits for its paired noise: made in line, and ahead in a thread."""

from __future__ import annotations

import time

import numpy as np
import torch

from ..common import host, results

BATCH, POOL = 4, 256
CHANNELS, SIDE = 4, 64  # a latent of Stable Diffusion at 512 x 512 pixels


class Stand:
    """A model in the place of a real one: products of matrices that take about as many seconds as they are told."""

    def __init__(self, seconds: float):
        self._a = torch.randn(512, 512)
        started = time.perf_counter()
        for _ in range(20):
            self._a @ self._a
        self._count = max(1, round(seconds * 20 / (time.perf_counter() - started)))

    def step(self) -> float:
        """One step; returns its seconds."""
        started = time.perf_counter()
        for _ in range(self._count):
            self._a @ self._a
        return time.perf_counter() - started


def measure(quick: bool) -> dict[str, dict]:
    """Waiting over waiting and computing, for steps that keep the CPU busy."""
    numbers = {}
    pictures = host.pack("nodes.noise.training.pictures")
    generator = torch.Generator().manual_seed(0)
    latents = [torch.randn(1, CHANNELS, SIDE, SIDE, generator=generator) for _ in range(64)]
    data = pictures.Pictures(latents, [""] * len(latents))
    seconds = 0.05 if quick else 0.2
    model = Stand(seconds)
    for mode in ("assign", "pool", "nearest"):
        # A pool lasts POOL / BATCH steps: the share counts whole pools.
        steps = (1 if quick else 4) * POOL // BATCH if mode == "pool" else 12 if quick else 64
        for ahead in (False, True):
            waited = _waited(data, mode, ahead, model, steps)
            how = "in a thread" if ahead else "in line"
            what = f"batch {BATCH} of 64 pictures, D = 16,384, pool of {POOL}, k = 4, {steps} steps of {seconds} s"
            first = ", what the first batch waits for included"
            for name, rows, which in (("", waited, first), (" after the first", waited[1:], "")):
                numbers[f"visible share of a step{name}, {mode}, {how}"] = results.bootstrap(
                    rows, what + which, "percent", _share
                )
    return numbers


def _share(rows: np.ndarray) -> float:
    return 100 * rows[:, 0].sum() / rows.sum()


def _waited(data, mode: str, ahead: bool, model: Stand, steps: int) -> np.ndarray:
    training = {name: host.pack(f"nodes.noise.training.{name}") for name in ("draws", "feed", "serving")}
    settings = host.pack("nodes.noise.settings").Settings(mode=mode, pool_size=POOL)
    draws = training["draws"].Draws(data, BATCH, 0)
    server = training["serving"].Server(settings, data, 0)
    feed = training["feed"].Feed(data, draws, server, ahead)
    return np.array([(batch.waited, 1000 * model.step()) for batch in feed.batches(steps)])
