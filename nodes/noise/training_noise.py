"""Noise for the batches of a training run: pools over the whole training set, and candidates for
the nearest of k.

Batches of a few images gain little by assignment, and a pool for a few images saturates; so pools
are built over the whole training set. Each image owns as many noise samples of its pool as any
other and gets one at each visit; when they are used up it moves on to the next pool. A noise sample
is remembered by its number and drawn again when it is served.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ..common.training.training_data import Draw, TrainingImages
from ..common.training.training_run import TrainingOptions
from . import nearest
from .assignment import Pool, pool_turns
from .pairing import Pairing, PairingSettings, Selection, pair

# keep the streams of the two apart
_POOLS = 1
_CANDIDATES = 2


@dataclass(frozen=True, kw_only=True)
class PairedTrainingOptions(TrainingOptions):
    """What Train LoRA's widgets set: the training's options, and how noise is paired with its
    images.
    """

    pairing: str
    pool_size: int
    k: float
    #: Draws from the official form's distribution at the cost of one noise sample, for any k.
    nearest_form: str = nearest.NearestForm.CLOSED_FORM
    grouping: str
    penalty: float = 1.0  # standard deviations of the cost


@dataclass(frozen=True)
class _Batch:
    """A batch of training images as `pair` takes it."""

    parts: list[torch.Tensor]
    numbers: list[int]
    blank: torch.Tensor
    weights: None = None


class TrainingNoise:
    """Pairs the draws of one training run, and is their `pairing.NoiseSource`.

    Its only state beside the present draw is how often each image has come.
    """

    def __init__(
        self,
        settings: PairingSettings,
        images: TrainingImages,
        seed: int,
        device: torch.device | str = "cpu",
    ):
        self._settings = settings
        self._images = images
        self._seed = seed
        self._device = device
        self._pools: dict[tuple[int, ...], Pool] = {}
        self._place = {
            p: (b, i) for b, bucket in enumerate(images.buckets) for i, p in enumerate(bucket)
        }
        self.visits = [0] * len(images.latents)

    def pair(self, draw: Draw, latents: torch.Tensor) -> Pairing:
        """The noise for a batch, (B, C, ...); with pairing off, the drawn noise itself."""
        numbers = [draw.number * 2**20 + row for row in range(len(draw.images))]
        self._batch = _Batch([latents], numbers, torch.zeros(len(latents), dtype=torch.bool))
        self._draw = draw
        labels = [self._images.labels[image] for image in draw.images]
        return pair(
            self._settings,
            self._batch,
            [draw.noise],
            source=self,
            seed=self._seed,
            labels=labels,
        )

    def from_pool(self, settings: PairingSettings, data: torch.Tensor, **options: Any) -> Selection:
        """See `NoiseSource`; the turn of each image is its own number of visits."""
        noise = torch.stack([self._next_of_pool(image) for image in self._draw.images])
        return Selection([noise.to(self._draw.noise)], self._batch.numbers)

    def from_candidates(
        self,
        settings: PairingSettings,
        data: torch.Tensor,
        weights: torch.Tensor | None,
        blank: torch.Tensor,
    ) -> Selection:
        """See `NoiseSource`; the candidates take no memory, since no stock sampler has to draw them
        again.
        """
        drawn = self._draw.noise
        device = self._device
        keys = [self._key((_CANDIDATES, number)) for number in self._batch.numbers]
        seeds = torch.tensor(keys, device=device)
        noise = nearest.official_drawn(
            data.to(device), drawn.flatten(1).float().to(device), int(settings.k), seeds
        )
        return Selection([noise.reshape(drawn.shape).to(drawn)], self._batch.numbers)

    def _next_of_pool(self, image: int) -> torch.Tensor:
        """The noise sample that the image gets at this visit."""
        shape = self._draw.noise.shape[1:]
        bucket, row = self._place[image]
        members = self._images.buckets[bucket]
        size = self._settings.pool_size
        pools = -(
            -len(members) // size
        )  # of nearly the same size, that hold every image of the bucket once
        turns = pool_turns(size, min(len(members), size))
        round_, turn = divmod(self.visits[image], turns)
        self.visits[image] += 1
        order = list(range(len(members)))
        if pools > 1:  # shuffled for each round
            order = (
                np.random.default_rng([self._seed % 2**64, bucket, round_])
                .permutation(len(members))
                .tolist()
            )
        place, pool = divmod(order.index(row), pools)
        key = bucket, round_, pool
        if key not in self._pools:
            images = [members[row] for row in order[pool::pools]]
            noise = torch.stack(
                [
                    self._sample((_POOLS, *key, number), shape)
                    for number in range(turns * len(images))
                ]
            )
            data = self._images.batch(images).flatten(1).float().to(self._device)
            groups = self._settings.groups([self._images.labels[image] for image in images])
            self._pools[key] = Pool.build(
                data, noise.flatten(1), cost=self._settings.cost, groups=groups
            )
        return self._sample((_POOLS, *key, int(self._pools[key].serve(turn)[place])), shape)

    def _sample(self, key: tuple[int, ...], shape: torch.Size) -> torch.Tensor:
        return torch.randn(shape, generator=torch.Generator().manual_seed(self._key(key)))

    def _key(self, key: tuple[int, ...]) -> int:
        """A seed of its own for every key."""
        return int(
            np.random.SeedSequence([self._seed % 2**64, *key])
            .generate_state(1, np.uint64)
            .view(np.int64)[0]
        )
