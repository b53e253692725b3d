"""Noise for the batches of a training run: as drawn, assigned in the batch, served from pools, or the nearest of k.

Batches of a few pictures gain little by assignment, and a pool for a few pictures saturates; so pools are built over
the whole training set. Each picture owns as many noises of its pool as any other and gets one at each visit; when they
are used up it moves on to the next pool. A noise is remembered by its number alone and drawn again when it is served.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
import torch

from .. import nearest
from ..assignment import assign
from ..groups import Groups
from ..pool import Pool, turns
from ..rows import distances
from ..settings import ASSIGN, NEAREST, OFF, Settings
from .draws import Draw
from .pictures import Pictures

_POOLS, _CANDIDATES = 1, 2  # keep the streams of the two apart


@dataclass(frozen=True)
class Served:
    """The noise of a batch, the sums of the distances from the pictures as drawn and as served, and the time."""

    noise: torch.Tensor
    before: float
    after: float
    milliseconds: float


class Server:
    """Serves noise for the draws of one training run; its only state is how often each picture has come."""

    def __init__(self, settings: Settings, pictures: Pictures, seed: int, device: torch.device | str = "cpu"):
        self._settings, self._pictures, self._seed, self._device = settings, pictures, seed, device
        self._pools: dict[tuple[int, ...], Pool] = {}
        self._place = {p: (b, i) for b, bucket in enumerate(pictures.buckets) for i, p in enumerate(bucket)}
        self.visits = [0] * len(pictures)

    def serve(self, draw: Draw) -> Served:
        """The noise for a batch, (B, C, ...) in the dtype of the drawn one; mode off gives the drawn one itself."""
        started = time.perf_counter()
        if self._settings.mode == OFF:
            return Served(draw.noise, 0.0, 0.0, 0.0)
        data, drawn = self._pictures.rows(draw.pictures), draw.noise.flatten(1).float()
        choose = {ASSIGN: self._assigned, NEAREST: self._nearest}.get(self._settings.mode, self._pooled)
        noise = choose(draw, data, drawn)
        before, after = (float(distances(data, z.flatten(1).float()).sum()) for z in (drawn, noise))
        return Served(noise, before, after, 1000 * (time.perf_counter() - started))

    def _assigned(self, draw: Draw, data: torch.Tensor, drawn: torch.Tensor) -> torch.Tensor:
        return draw.noise[assign(data, drawn, groups=self._groups(draw.pictures)).permutation]

    def _nearest(self, draw: Draw, data: torch.Tensor, drawn: torch.Tensor) -> torch.Tensor:
        form, k = self._settings.form, self._settings.k
        numbers = [draw.number * 2**20 + row for row in range(len(draw.pictures))]
        if form == nearest.OFFICIAL:
            seeds = torch.tensor([self._key((_CANDIDATES, number)) for number in numbers], device=self._device)
            noise = nearest.official_drawn(data.to(self._device), drawn.to(self._device), int(k), seeds)
        else:
            streams = nearest.streams(self._seed, numbers)
            dot = form == nearest.DOT
            noise = (nearest.dot_form if dot else nearest.closed_form)(data, drawn, k if dot else int(k), streams)
        return noise.reshape(draw.noise.shape).to(draw.noise)

    def _pooled(self, draw: Draw, data: torch.Tensor, drawn: torch.Tensor) -> torch.Tensor:
        noise = torch.stack([self._next_of_pool(picture, draw.noise.shape[1:]) for picture in draw.pictures])
        return noise.to(draw.noise)

    def _next_of_pool(self, picture: int, shape: torch.Size) -> torch.Tensor:
        """The noise that the picture gets at this visit."""
        bucket, row = self._place[picture]
        round_, turn = divmod(self.visits[picture], self._turns(bucket))
        self.visits[picture] += 1
        place, pool = divmod(self._order(bucket, round_).index(row), self._pools_of(bucket))
        key = bucket, round_, pool
        if key not in self._pools:
            self._pools[key] = self._build(*key, shape)
        noise = int(self._pools[key].serve(turn, [place])[0])
        return self._noise((_POOLS, *key, noise), shape)

    def _pools_of(self, bucket: int) -> int:
        """How many pools, of nearly the same size, hold every picture of a bucket once."""
        return -(-len(self._pictures.buckets[bucket]) // self._settings.pool_size)

    def _turns(self, bucket: int) -> int:
        """How many noises a picture of the bucket owns in its pool."""
        return turns(self._settings.pool_size, min(len(self._pictures.buckets[bucket]), self._settings.pool_size))

    def _order(self, bucket: int, round_: int) -> list[int]:
        """The rows of a bucket, shuffled anew for each round where they fill more than one pool."""
        count = len(self._pictures.buckets[bucket])
        if self._pools_of(bucket) == 1:
            return list(range(count))
        return np.random.default_rng([self._seed % 2**64, bucket, round_]).permutation(count).tolist()

    def _build(self, bucket: int, round_: int, pool: int, shape: torch.Size) -> Pool:
        members = self._pictures.buckets[bucket]
        pictures = [members[row] for row in self._order(bucket, round_)[pool :: self._pools_of(bucket)]]
        numbers = range(self._turns(bucket) * len(pictures))
        noises = torch.stack([self._noise((_POOLS, bucket, round_, pool, n), shape) for n in numbers])
        data = self._pictures.rows(pictures).to(self._device)
        return Pool.build(data, noises.flatten(1), groups=self._groups(pictures))

    def _groups(self, pictures: list[int]) -> Groups | None:
        if self._settings.grouping == "ignore":
            return None
        penalty = self._settings.penalty if self._settings.grouping == "penalty" else None
        return Groups([self._pictures.labels[picture] for picture in pictures], penalty)

    def _noise(self, key: tuple[int, ...], shape: torch.Size) -> torch.Tensor:
        return torch.randn(shape, generator=torch.Generator().manual_seed(self._key(key)))

    def _key(self, key: tuple[int, ...]) -> int:
        """A seed of its own for every key."""
        return int(np.random.SeedSequence([self._seed % 2**64, *key]).generate_state(1, np.uint64).view(np.int64)[0])
