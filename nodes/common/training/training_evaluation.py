"""What a run shows of its progress: the loss on held-out images, and sample images.

Noise and noise levels never change, and the noise of validation is as drawn, since that is what
sampling begins from: runs with and without pairing can be compared by it, which their training
losses cannot.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch

from .session import Session
from .training_loss import Objective, signal_to_noise

#: Fractions of the sampling range at which every held-out image is evaluated.
PERCENTS = (0.1, 0.3, 0.5, 0.7, 0.9)


@dataclass(frozen=True)
class Validation:
    """Held-out images of a session, by their rows; `weights` for each image of the session, or
    None.
    """

    rows: Sequence[int]
    seed: int
    weights: Sequence[torch.Tensor] | None = None

    @torch.no_grad()
    def loss(self, session: Session, objective: Objective) -> float:
        """The mean loss over images and noise levels."""
        total = 0.0
        for row in self.rows:
            latent = (
                session.latents[row]
                .to(session.device)
                .expand(len(PERCENTS), *session.latents[row].shape[1:])
            )
            generator = torch.Generator().manual_seed((self.seed + row) % 2**64)
            noise = torch.randn(latent.shape, generator=generator).to(latent)
            sigmas = torch.tensor(
                [session.sigma(percent) for percent in PERCENTS], device=session.device
            )
            prediction = session.denoised(
                session.noised(latent, noise, sigmas), sigmas, [row] * len(PERCENTS)
            )
            weights = None if self.weights is None else self.weights[row]
            total += float(
                objective(
                    prediction, session.clean(latent), signal_to_noise(session, sigmas), weights
                )
            )
        return total / len(self.rows)


@dataclass(frozen=True, kw_only=True)
class PreviewSampler:
    """What to sample: the rows of the session's conditions, that of the negative one, CFG, steps
    and the seed. ``same_noise``: all images begin with the noise of the first.
    """

    rows: Sequence[int]
    negative: int | None
    cfg: float
    steps: int
    seed: int
    same_noise: bool = False

    @torch.no_grad()
    def sample(self, session: Session) -> torch.Tensor:
        """Latents (B, C, ...) in the model's scale, on the CPU, by Euler steps."""
        like = session.latents[0]
        generator = torch.Generator().manual_seed(self.seed % 2**64)
        drawn = 1 if self.same_noise else len(self.rows)
        noise = torch.randn(drawn, *like.shape[1:], generator=generator).to(session.device)
        noise = noise.expand(len(self.rows), *like.shape[1:])
        percents = [step / self.steps for step in range(self.steps)]
        sigmas = torch.tensor([*map(session.sigma, percents), 0.0], device=session.device)
        x = session.noised(torch.zeros_like(noise), noise, sigmas[:1].expand(len(noise)))
        negative = None if self.negative is None else [self.negative] * len(noise)
        for now, then in pairwise(sigmas):
            denoised = session.denoised(
                x, now.expand(len(x)), rows=self.rows, against=negative, cfg=self.cfg
            ).float()
            x = x + (x - denoised) / now * (then - now)
        return x.cpu()
