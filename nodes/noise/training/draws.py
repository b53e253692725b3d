"""Which pictures a step trains on, at which noise levels, with which noise: the draws of core's Train LoRA.

Core seeds its generator anew at each step with seed + 1000 * step, draws the noise and the noise levels, and lets the
order of the next step follow from what is left. This class makes the same draws from a generator of its own, so that a
run without pairing is core's run, and a run with pairing differs from it in nothing but the pairing.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from .pictures import Pictures

STEPS, EPOCHS = UNITS = ("steps", "epochs")
_STRIDE = 1000
_SEEDS = 2**64


@dataclass(frozen=True)
class Draw:
    """One batch: its number, its pictures, the noise drawn for them, and how far sampling would be (0 to 1)."""

    number: int
    pictures: list[int]
    noise: torch.Tensor
    percents: list[float]


class Draws:
    """Draws batch after batch; the same seed, pictures and batch size give the same ones.

    By steps a batch holds different pictures in a random order that forgets the last batch's, as in core; by epochs
    every picture comes once before one comes again. Pictures of one batch have one size: by steps the first one
    decides, and the others are the next of its size in the order.
    """

    def __init__(self, pictures: Pictures, batch_size: int, seed: int, unit: str = STEPS):
        if unit not in UNITS:
            raise ValueError(f"There is no unit {unit}: choose one of {', '.join(UNITS)}.")
        self._pictures, self._size, self._seed, self._unit = pictures, batch_size, seed, unit
        self._bucket_of = {picture: bucket for bucket in pictures.buckets for picture in bucket}
        self._generator = torch.Generator()
        self._next = 0
        first = pictures.latents[0]
        self._generator.manual_seed(seed % _SEEDS)
        # Core has drawn noise for the whole set by now. In multiples of 16 numbers the pieces are the whole.
        together = 1 if first.numel() % 16 == 0 else len(pictures)
        for _ in range(len(pictures) // together):
            torch.randn(together, *first.shape[1:], dtype=first.dtype, generator=self._generator)

    @property
    def batches_an_epoch(self) -> int:
        """How many batches hold every picture once."""
        return sum(-(-len(bucket) // self._size) for bucket in self._pictures.buckets)

    def draw(self) -> Draw:
        """The next batch."""
        number, generator = self._next, self._generator
        pictures = self._by_steps() if self._unit == STEPS else self._by_epochs(number)
        generator.manual_seed((self._seed + number * _STRIDE) % _SEEDS)
        like = self._pictures.latents[pictures[0]]
        noise = torch.randn(len(pictures), *like.shape[1:], dtype=like.dtype, generator=generator)
        percents = [torch.rand(1, generator=generator).item() for _ in pictures]
        self._next += 1
        return Draw(number, pictures, noise, percents)

    def state(self) -> tuple[int, torch.Tensor]:
        """What `restore` needs to go on as if nothing had happened."""
        return self._next, self._generator.get_state()

    def restore(self, number: int, generator_state: torch.Tensor) -> None:
        """Go on from a `state`."""
        self._next = number
        self._generator.set_state(generator_state)

    def _by_steps(self) -> list[int]:
        order = torch.randperm(len(self._pictures), generator=self._generator).tolist()
        bucket = set(self._bucket_of[order[0]])
        return [picture for picture in order if picture in bucket][: self._size]

    def _by_epochs(self, number: int) -> list[int]:
        epoch, place = divmod(number, self.batches_an_epoch)
        generator = torch.Generator().manual_seed((self._seed + epoch * _STRIDE) % _SEEDS)
        waiting: dict[int, list[int]] = {}
        batches = []
        for picture in torch.randperm(len(self._pictures), generator=generator).tolist():
            batch = waiting.setdefault(self._bucket_of[picture][0], [])
            batch.append(picture)
            if len(batch) == self._size:
                batches.append(waiting.pop(self._bucket_of[picture][0]))
        return (batches + list(waiting.values()))[place]
