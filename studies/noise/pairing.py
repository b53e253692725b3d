"""Batches of data and noise for the studies, paired by the pack's own methods."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from ..common import host


@dataclass(frozen=True)
class Mode:
    """How noise is paired: by assignment of `pool` pairs (0: of the batch), within labels, or the
    nearest of k.
    """

    name: str
    assign: bool = False
    within: bool = False
    pool: int = 0
    k: int = 1


VANILLA = Mode("vanilla")
ASSIGN = Mode("assign", assign=True)
WITHIN = Mode("assign within classes", assign=True, within=True)


def pool(size: int) -> Mode:
    """Pairs assigned so many at once and served batch by batch."""
    return Mode(f"pool {size}", assign=True, pool=size)


def nearest(k: int) -> Mode:
    """The nearest of k, by the closed form."""
    return Mode(f"nearest {k}", k=k)


@dataclass
class Batches:
    """Random rows of `data` (N, D) with their noise; the same seed draws the same ones in every
    mode.
    """

    data: torch.Tensor
    size: int
    mode: Mode
    seed: int
    labels: torch.Tensor | None = None
    _served: list = field(default_factory=list)
    _drawn: int = 0

    def __post_init__(self) -> None:
        self._generator = torch.Generator().manual_seed(self.seed)

    def next(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Row numbers (B,) and noise (B, D)."""
        if not self._served:
            rows, noise = self._paired(max(self.size, self.mode.pool))
            self._served = list(zip(rows.split(self.size), noise.split(self.size), strict=True))
        return self._served.pop(0)

    def _paired(self, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        rows = torch.randint(len(self.data), (count,), generator=self._generator)
        noise = torch.randn(count, self.data.shape[1], generator=self._generator)
        self._drawn += 1
        if self.mode.assign:
            groups = None
            if self.mode.within:
                kinds = [tuple(row) for row in self.labels[rows].reshape(count, -1).tolist()]
                groups = host.pack("nodes.noise.assignment").Groups(kinds)
            found = host.pack("nodes.noise.assignment").assign(
                self.data[rows], noise, groups=groups
            )
            noise = noise[found.permutation]
        elif self.mode.k > 1:
            method = host.pack("nodes.noise.nearest")
            streams = method.random_streams(
                self.seed, range(self._drawn * count, (self._drawn + 1) * count)
            )
            noise = method.closed_form(self.data[rows], noise, self.mode.k, streams)
        return rows, noise
