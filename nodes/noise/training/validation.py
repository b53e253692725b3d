"""The loss on pictures that training never sees, with noise and noise levels that never change.

The noise here is as drawn, since that is what sampling begins from: runs with and without pairing can be compared by
it, which their training losses cannot.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from .objective import Objective, signal_to_noise

#: Shares of the sampling range at which every held-out picture is looked at.
PERCENTS = (0.1, 0.3, 0.5, 0.7, 0.9)


@dataclass(frozen=True)
class Validation:
    """Held-out pictures of a session, by their rows."""

    rows: Sequence[int]
    seed: int

    @torch.no_grad()
    def loss(self, session, objective: Objective) -> float:
        """The mean loss over pictures and noise levels."""
        return sum(self._one(session, objective, row) for row in self.rows) / len(self.rows)

    def _one(self, session, objective: Objective, row: int) -> float:
        latent = session.latents[row].to(session.device).expand(len(PERCENTS), *session.latents[row].shape[1:])
        generator = torch.Generator().manual_seed((self.seed + row) % 2**64)
        noise = torch.randn(latent.shape, generator=generator).to(latent)
        sigmas = torch.tensor([session.sigma(percent) for percent in PERCENTS], device=session.device)
        answer = session.denoised(session.noised(latent, noise, sigmas), sigmas, [row] * len(PERCENTS))
        return float(objective(answer, session.clean(latent), signal_to_noise(session, sigmas)))
