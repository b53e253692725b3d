"""Which images a step trains on, at which noise levels, with which noise: the draws of core's Train
LoRA.

Core seeds its generator at each step with seed + 1000 * step, draws the noise and the noise levels,
and lets the order of the next step follow from what is left. `BatchSampler` makes the same draws
from a generator of its own, so that a run without pairing is core's run, and a run with pairing
differs from it in nothing but the pairing.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Protocol

import numpy as np
import torch

from .training_data import Draw, TrainingImages

#: Makes one long call, and may stop by raising.
Call = Callable[[Callable], Any]

_STRIDE = 1000
_DROPOUT = 3  # keeps its draws apart from those of pools and candidates
_SEEDS = 2**64
# A pool takes as long to assign as several steps on a fast device; batches made further ahead hide
# it.
_AHEAD = 16
_AHEAD_BYTES = 64 * 2**20
_PATIENCE = 0.5  # seconds that a batch in the making is waited for at the end


class LengthUnit(StrEnum):
    """What the length of a run counts."""

    STEPS = "steps"
    EPOCHS = "epochs"


class BatchSampler:
    """Draws batch after batch; the same seed, images and batch size give the same ones.

    By steps a batch contains different images in a random order that forgets the last batch's, as
    in core; by epochs every image comes once before one comes again. Images of one batch have one
    size: by steps the first one decides, and the others are the next of its size in the order.
    `level` makes the fraction of the sampling range from a uniform draw; `dropout` is the
    probability that an image's caption is dropped, drawn apart from everything else.
    """

    def __init__(
        self,
        images: TrainingImages,
        batch_size: int,
        seed: int,
        unit: str = LengthUnit.STEPS,
        level: Callable[[float], float] | None = None,
        dropout: float = 0.0,
    ):
        self._images = images
        self._size = batch_size
        self._seed = seed
        self._unit = LengthUnit(unit)
        self._level = level
        self._dropout = dropout
        self._bucket_of = {image: bucket for bucket in images.buckets for image in bucket}
        self._generator = torch.Generator()
        self._next = 0
        first = images.latents[0]
        count = len(images.latents)
        self._generator.manual_seed(seed % _SEEDS)
        # Core has drawn noise for the whole set by now. In multiples of 16 numbers the pieces are
        # the whole.
        together = 1 if first.numel() % 16 == 0 else count
        for _ in range(count // together):
            torch.randn(together, *first.shape[1:], dtype=first.dtype, generator=self._generator)

    @property
    def batches_per_epoch(self) -> int:
        """How many batches contain every image once."""
        return sum(-(-len(bucket) // self._size) for bucket in self._images.buckets)

    def draw(self) -> Draw:
        """The next batch."""
        number = self._next
        generator = self._generator
        if self._unit == LengthUnit.EPOCHS:
            images = self._batch_of_epoch(number)
        else:
            order = torch.randperm(len(self._images.latents), generator=generator).tolist()
            bucket = set(self._bucket_of[order[0]])
            images = [image for image in order if image in bucket][: self._size]
        generator.manual_seed((self._seed + number * _STRIDE) % _SEEDS)
        like = self._images.latents[images[0]]
        noise = torch.randn(len(images), *like.shape[1:], dtype=like.dtype, generator=generator)
        percents = [torch.rand(1, generator=generator).item() for _ in images]
        if self._level is not None:
            percents = [self._level(percent) for percent in percents]
        dropped = (
            np.random.default_rng([_DROPOUT, self._seed % _SEEDS, number]).random(len(images))
            < self._dropout
        )
        self._next += 1
        return Draw(
            number=number, images=images, noise=noise, percents=percents, dropped=dropped.tolist()
        )

    def state(self) -> tuple[int, torch.Tensor]:
        """What `restore` needs to continue as if nothing had happened."""
        return self._next, self._generator.get_state()

    def restore(self, number: int, generator_state: torch.Tensor) -> None:
        """Continue from a `state`."""
        self._next = number
        self._generator.set_state(generator_state)

    def _batch_of_epoch(self, number: int) -> list[int]:
        epoch, place = divmod(number, self.batches_per_epoch)
        generator = torch.Generator().manual_seed((self._seed + epoch * _STRIDE) % _SEEDS)
        waiting: dict[int, list[int]] = {}
        batches = []
        for image in torch.randperm(len(self._images.latents), generator=generator).tolist():
            batch = waiting.setdefault(self._bucket_of[image][0], [])
            batch.append(image)
            if len(batch) == self._size:
                batches.append(waiting.pop(self._bucket_of[image][0]))
        return (batches + list(waiting.values()))[place]


class PairedNoise(Protocol):
    """The noise of a batch in place of the drawn one, (B, C, ...) as its one part, and what the
    change did.
    """

    @property
    def noise(self) -> Sequence[torch.Tensor]: ...
    @property
    def before(self) -> torch.Tensor: ...
    @property
    def after(self) -> torch.Tensor: ...
    @property
    def milliseconds(self) -> float: ...


class NoisePairing(Protocol):
    """Pairs the noise of batches with their images; its only state is how often each image has
    come.
    """

    visits: list[int]

    def pair(self, draw: Draw, latents: torch.Tensor) -> PairedNoise:
        """The noise for a batch of latents (B, C, ...)."""


@dataclass(frozen=True, kw_only=True)
class TrainingBatch:
    """A batch on the CPU, and what a checkpoint after it must remember of the draws."""

    draw: Draw
    latents: torch.Tensor
    noise: torch.Tensor
    pairing: PairedNoise | None  # None: the noise is what was drawn
    position: tuple[int, torch.Tensor]
    visits: list[int]
    waited: float = 0.0  # milliseconds for which the model had to wait


class BatchPrefetcher:
    """Makes batches while the model works on those before: drawing, pairing and stacking run in a
    thread.

    With `ahead` False each batch is made when it is needed; the batches are the same. Without
    `noise` every batch keeps the noise that was drawn for it. `call` waits for a batch, which a
    large pool takes seconds to make, and may stop by raising.
    """

    def __init__(
        self,
        images: TrainingImages,
        sampler: BatchSampler,
        noise: NoisePairing | None = None,
        ahead: bool = True,
        call: Call = lambda work: work(),
    ):
        self._images = images
        self._sampler = sampler
        self._noise = noise
        self._ahead = ahead
        self._call = call

    def batches(self, count: int) -> Iterator[TrainingBatch]:
        """The next `count` batches; the first is begun at once, while the caller is busy with
        something else.
        """
        thread = ThreadPoolExecutor(1, "glassbox-noise") if self._ahead and count else None
        return self._serve(thread, deque([thread.submit(self._make)] if thread else ()), count)

    def _serve(
        self, thread: ThreadPoolExecutor | None, coming: deque, count: int
    ) -> Iterator[TrainingBatch]:
        begun = len(coming)
        try:
            for _ in range(count):
                started = time.perf_counter()
                if not thread:
                    batch = self._make()
                else:
                    batch = coming[0].result() if coming[0].done() else self._call(coming[0].result)
                    coming.popleft()
                waited = 1000 * (time.perf_counter() - started)
                room = max(
                    1,
                    min(_AHEAD, _AHEAD_BYTES // max(1, batch.latents.nbytes + batch.noise.nbytes)),
                )
                while thread and begun < count and len(coming) < room:
                    coming.append(thread.submit(self._make))
                    begun += 1
                yield replace(batch, waited=waited)
        finally:
            if thread:
                thread.shutdown(wait=False, cancel_futures=True)
                wait([future for future in coming if not future.cancelled()], _PATIENCE)

    @torch.no_grad()
    def _make(self) -> TrainingBatch:
        draw = self._sampler.draw()
        latents = self._images.batch(draw.images)
        if self._noise is None:
            return TrainingBatch(
                draw=draw,
                latents=latents,
                noise=draw.noise,
                pairing=None,
                position=self._sampler.state(),
                visits=[],
            )
        pairing = self._noise.pair(draw, latents)
        noise = pairing.noise[0].to(draw.noise)
        return TrainingBatch(
            draw=draw,
            latents=latents,
            noise=noise,
            pairing=pairing,
            position=self._sampler.state(),
            visits=list(self._noise.visits),
        )
