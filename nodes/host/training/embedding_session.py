"""Replace the text embedding that a MODEL is given, while gradients run through it."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import TypeVar

import torch
from comfy.patcher_extension import WrappersMP

from . import trainer


def with_embedding(patcher, current: Callable[[], torch.Tensor]):
    """A clone of a MODEL that reads ``current()`` (1, tokens, D) instead of the text embedding it is handed."""
    clone = patcher.clone()

    def call(executor, x, t, c_concat=None, c_crossattn=None, *args, **kwargs):
        embedding = current().to(x.device).expand(len(x), -1, -1)
        return executor(x, t, c_concat, embedding, *args, **kwargs)

    clone.add_wrapper_with_key(WrappersMP.APPLY_MODEL, f"glassbox_embedding_{uuid.uuid4().hex}", call)
    return clone


def refuse_ranges(conditioning: list) -> None:
    """Raise ValueError when a conditioning acts in a part of the sampling run only: elsewhere it has no gradient."""
    for _, options in conditioning:
        if options.get("start_percent", 0.0) > 0 or options.get("end_percent", 1.0) < 1:
            raise ValueError(
                "positive acts in a part of the sampling run, and its embedding is optimized for all of it: connect "
                "the prompt from before Conditioning Set Timestep Range."
            )


Result = TypeVar("Result")


class EmbeddingSession:
    """Noise predictions with gradients to a text embedding (1, tokens, D), all float32.

    ``latents``: the images as the model sees them, each (1, C, H, W).
    """

    def __init__(self, session: trainer.Session, holder: dict):
        self._session, self._holder = session, holder
        self.latents = session.latents
        self.steps, self.device = session.sampling.num_timesteps, session.device

    def predicted(self, x: torch.Tensor, timestep: torch.Tensor, embedding: torch.Tensor) -> torch.Tensor:
        """The noise (B, C, H, W) that the network sees in latents at ``timestep`` (B,), whose noise is scaled by sigma.

        ``x`` as ``noised`` and ``pure`` make it.
        """
        self._holder["embedding"] = embedding
        sigma = self._sigma(timestep)
        denoised = self._session.denoised(x, sigma, [0] * len(x))
        return (x - denoised) / sigma.view(-1, 1, 1, 1)

    def noised(self, latent: torch.Tensor, noise: torch.Tensor, timestep: torch.Tensor) -> torch.Tensor:
        """A latent with noise at ``timestep`` (B,)."""
        return self._session.noised(latent.expand_as(noise), noise, self._sigma(timestep))

    def pure(self, noise: torch.Tensor, timestep: torch.Tensor) -> torch.Tensor:
        """Latents of which the network sees just this noise at ``timestep`` (B,)."""
        return noise * (1 + self._sigma(timestep).square()).sqrt().view(-1, 1, 1, 1)

    def _sigma(self, timestep: torch.Tensor) -> torch.Tensor:
        return self._session.sampling.sigma(timestep.float())


def run(
    patcher, latent: torch.Tensor, conditioning: list, work: Callable[[EmbeddingSession], Result], seed: int = 0
) -> Result:
    """Run ``work(session)`` with gradients to the embedding; the MODEL stays as it was, and its masks act."""
    holder: dict[str, torch.Tensor] = {}  # empty until the first prediction
    watched = with_embedding(patcher, lambda: holder["embedding"])
    return trainer.run(
        watched,
        {},
        [latent],
        [conditioning],
        lambda session: work(EmbeddingSession(session, holder)),
        dtype=torch.float32,
        seed=seed,
    )
