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
    """Waiting over waiting and computing, for a step of one second on the CPU, in blocks of steps."""
    numbers = {}
    pictures = host.pack("nodes.noise.training.pictures")
    generator = torch.Generator().manual_seed(0)
    latents = [torch.randn(1, CHANNELS, SIDE, SIDE, generator=generator) for _ in range(64)]
    data = pictures.Pictures(latents, [""] * len(latents))
    model = Stand(0.2 if quick else 1.0)
    for mode in ("assign", "pool", "nearest"):
        for ahead in (False, True):
            shares = _shares(data, mode, ahead, model, steps=10 if quick else 24)
            how = "in a thread" if ahead else "in line"
            numbers[f"visible share of a step, {mode}, {how}"] = results.bootstrap(
                shares, f"batch {BATCH} of 64 pictures, D = 16,384, pool of {POOL}, k = 4, a step of "
                f"{'0.2' if quick else '1'} s; the pools' making included", "percent")
    return numbers


def _shares(data, mode: str, ahead: bool, model: Stand, steps: int) -> np.ndarray:
    training = {name: host.pack(f"nodes.noise.training.{name}") for name in ("draws", "feed", "serving")}
    settings = host.pack("nodes.noise.settings").Settings(mode=mode, pool_size=POOL)
    draws = training["draws"].Draws(data, BATCH, 0)
    server = training["serving"].Server(settings, data, 0)
    feed = training["feed"].Feed(data, draws, server, ahead)
    shares = []
    for batch in feed.batches(steps):
        computed = 1000 * model.step()
        shares.append(100 * batch.waited / (batch.waited + computed))
    return np.array(shares)
