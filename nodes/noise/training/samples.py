"""Pictures that the model under training paints on the way: Euler steps from noise that never changes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch


@dataclass(frozen=True)
class Painter:
    """What to paint: the rows of the session's conditions, that of the negative one, CFG, steps and the seed."""

    rows: Sequence[int]
    negative: int | None
    cfg: float
    steps: int
    seed: int

    @torch.no_grad()
    def paint(self, session) -> torch.Tensor:
        """Latents (B, C, ...) in the model's scale, on the CPU."""
        like = session.latents[0]
        generator = torch.Generator().manual_seed(self.seed % 2**64)
        noise = torch.randn(len(self.rows), *like.shape[1:], generator=generator).to(session.device)
        percents = [step / self.steps for step in range(self.steps)]
        sigmas = torch.tensor([*map(session.sigma, percents), 0.0], device=session.device)
        x = session.noised(torch.zeros_like(noise), noise, sigmas[:1].expand(len(noise)))
        against = None if self.negative is None else [self.negative] * len(noise)
        for now, then in pairwise(sigmas):
            denoised = session.denoised(x, now.expand(len(x)), self.rows, against, self.cfg).float()
            x = x + (x - denoised) / now * (then - now)
        return x.cpu()
