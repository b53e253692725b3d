"""The fraction of a training step that the model waits for its paired noise: made in line, and ahead in a thread."""

from __future__ import annotations

import time

import numpy as np
import torch

from studies.common import host, results

BATCH, POOL = 4, 256
CHANNELS, SIDE = 4, 64  # a latent of Stable Diffusion at 512 x 512 pixels


class Stand:
    """A model in the place of a real one: products of matrices that take about as many seconds as requested."""

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
    training = host.pack("nodes.noise.training.training_data")
    generator = torch.Generator().manual_seed(0)
    latents = [torch.randn(1, CHANNELS, SIDE, SIDE, generator=generator) for _ in range(64)]
    data = training.TrainingImages(latents, [""] * len(latents))
    seconds = 0.05 if quick else 0.2
    model = Stand(seconds)
    for mode in ("assign", "pool", "nearest"):
        # A pool lasts POOL / BATCH steps: the fraction counts whole pools.
        steps = (1 if quick else 4) * POOL // BATCH if mode == "pool" else 12 if quick else 64
        for ahead in (False, True):
            waited = _waited(data, mode, ahead, model, steps)
            how = "in a thread" if ahead else "in line"
            what = f"batch {BATCH} of 64 images, D = 16,384, pool of {POOL}, k = 4, {steps} steps of {seconds} s"
            first = ", what the first batch waits for included"
            for name, rows, which in (("", waited, first), (" after the first", waited[1:], "")):
                numbers[f"visible fraction of a step{name}, {mode}, {how}"] = results.bootstrap(
                    rows, what + which, "percent", _fraction
                )
    return numbers


def _fraction(rows: np.ndarray) -> float:
    return 100 * rows[:, 0].sum() / rows.sum()


def _waited(data, mode: str, ahead: bool, model: Stand, steps: int) -> np.ndarray:
    training = host.pack("nodes.noise.training.batch_sampler")
    settings = host.pack("nodes.noise.pairing").PairingSettings(pairing=mode, pool_size=POOL)
    noise = host.pack("nodes.noise.training.noise_source").TrainingNoise(settings, data, 0)
    prefetcher = training.BatchPrefetcher(data, training.BatchSampler(data, BATCH, 0), noise, ahead)
    return np.array([(batch.waited, 1000 * model.step()) for batch in prefetcher.batches(steps)])
