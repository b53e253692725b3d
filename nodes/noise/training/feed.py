"""Batches made ready while the model works on those before: drawing, pairing and stacking run in a thread."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import torch

from .draws import Draw, Draws
from .pictures import Pictures
from .serving import Served, Server

# A pool takes as long to assign as several steps on a fast device; batches made further ahead hide it.
_AHEAD, _AHEAD_BYTES = 16, 64 * 2**20


@dataclass(frozen=True)
class Batch:
    """A batch on the CPU, and what a checkpoint after it must remember of the draws."""

    draw: Draw
    latents: torch.Tensor
    served: Served
    position: tuple[int, torch.Tensor]
    visits: list[int]
    waited: float = 0.0  # milliseconds for which the model had to wait

    @property
    def nbytes(self) -> int:
        """Bytes of its latents and noise."""
        return self.latents.nbytes + self.served.noise.nbytes


class Feed:
    """Makes batches, some ahead in a thread, or each when it is asked for; which of both changes nothing in them."""

    def __init__(self, pictures: Pictures, draws: Draws, server: Server, ahead: bool = True):
        self._pictures, self._draws, self._server, self._ahead = pictures, draws, server, ahead

    def batches(self, count: int) -> Iterator[Batch]:
        """The next ``count`` batches; the first is begun at once, while the caller is busy with something else."""
        if not self._ahead or count == 0:
            return (self._timed(self._make) for _ in range(count))
        thread = ThreadPoolExecutor(1, "glassbox-noise")
        return self._made_ahead(thread, thread.submit(self._make), count)

    def _made_ahead(self, thread: ThreadPoolExecutor, first: Future, count: int) -> Iterator[Batch]:
        coming, begun = deque([first]), 1
        try:
            while coming:
                batch = self._timed(coming.popleft().result)
                room = max(1, min(_AHEAD, _AHEAD_BYTES // max(1, batch.nbytes)))
                while begun < count and len(coming) < room:
                    coming.append(thread.submit(self._make))
                    begun += 1
                yield batch
        finally:
            thread.shutdown(cancel_futures=True)

    @torch.no_grad()
    def _make(self) -> Batch:
        draw = self._draws.draw()
        served = self._server.serve(draw)
        latents = self._pictures.batch(draw.pictures)
        return Batch(draw, latents, served, self._draws.state(), list(self._server.visits))

    @staticmethod
    def _timed(get) -> Batch:
        started = time.perf_counter()
        batch = get()
        return Batch(**{**vars(batch), "waited": 1000 * (time.perf_counter() - started)})
