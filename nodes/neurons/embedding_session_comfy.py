"""Replace the text embedding that a MODEL is given, while gradients run through it."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar

import comfy.model_sampling
import torch
from comfy.patcher_extension import WrappersMP

from ..host.quantized import WeightFunction
from ..host.training import trainer
from ..host.training.layer_weights import low_rank
from .first_step_comfy import refuse_flow


def with_embedding(patcher, current: Callable[[], torch.Tensor | None]):
    """A clone of a MODEL that reads ``current()`` (1, tokens, D) instead of the text embedding it is handed.

    Where ``current`` gives None, it reads what it is handed.
    """
    clone = patcher.clone()

    def call(executor, x, t, c_concat=None, c_crossattn=None, *args, **kwargs):
        embedding = current()
        given = c_crossattn if embedding is None else embedding.to(x.device).expand(len(x), -1, -1)
        return executor(x, t, c_concat, given, *args, **kwargs)

    clone.add_wrapper_with_key(WrappersMP.APPLY_MODEL, f"glassbox_embedding_{uuid.uuid4().hex}", call)
    return clone


def refuse_unsupported(patcher, conditioning: list) -> None:
    """Raise ValueError for what cannot be optimized: a flow model, or a prompt for a part of the run or the image."""
    refuse_flow(patcher)
    refuse_ranges(conditioning)


def refuse_ranges(conditioning: list) -> None:
    """Raise ValueError when a conditioning acts in a part of the sampling run only: elsewhere it has no gradient."""
    for _, options in conditioning:
        if options.get("start_percent", 0.0) > 0 or options.get("end_percent", 1.0) < 1:
            raise ValueError(
                "positive acts in a part of the sampling run, and its embedding is optimized for all of it: connect "
                "the prompt from before Conditioning Set Timestep Range."
            )


Result = TypeVar("Result")


class _Switched:
    """A weight function that can be left out for a while."""

    def __init__(self, function: WeightFunction, switch: dict[str, bool]):
        self._function, self._switch = function, switch
        if (factors := low_rank(function)) is not None:
            self.factors = lambda: factors() if switch["on"] else None

    def __call__(self, weight: torch.Tensor) -> torch.Tensor:
        return self._function(weight) if self._switch["on"] else weight

    def move_to(self, device) -> int:
        return self._function.move_to(device) if hasattr(self._function, "move_to") else 0


class EmbeddingSession:
    """Noise predictions with gradients to a text embedding (1, tokens, D) and to what changes weights, all float32.

    ``latents``: the images as the model sees them, each (1, C, H, W).
    """

    def __init__(self, session: trainer.Session, holder: dict, switch: dict[str, bool]):
        self._session, self._holder, self._switch = session, holder, switch
        self.latents = session.latents
        self.steps, self.device = session.sampling.num_timesteps, session.device

    def predicted(
        self,
        x: torch.Tensor,
        timestep: torch.Tensor,
        embedding: torch.Tensor | None = None,
        rows: Sequence[int] | None = None,
    ) -> torch.Tensor:
        """The noise (B, C, H, W) that the network sees in latents at ``timestep`` (B,), whose noise is scaled by sigma.

        ``x`` as ``noised`` and ``pure`` make it. With an ``embedding`` the first CONDITIONING has it instead of its
        own; without one each image has the CONDITIONING ``rows`` says.
        """
        self._holder["embedding"] = embedding
        sigma = self._sigma(timestep)
        denoised = self._session.denoised(x, sigma, rows or [0] * len(x))
        return (x - denoised) / sigma.view(-1, 1, 1, 1)

    def noised(self, latent: torch.Tensor, noise: torch.Tensor, timestep: torch.Tensor) -> torch.Tensor:
        """A latent with noise at ``timestep`` (B,)."""
        return self._session.noised(latent.expand_as(noise), noise, self._sigma(timestep))

    def pure(self, noise: torch.Tensor, timestep: torch.Tensor) -> torch.Tensor:
        """Latents of which the network sees just this noise at ``timestep`` (B,)."""
        return noise * (1 + self._sigma(timestep).square()).sqrt().view(-1, 1, 1, 1)

    def weight(self, timestep: torch.Tensor) -> torch.Tensor:
        """What makes the squared error of the noise that of the network's own output, (B, 1, 1, 1).

        1 where the network predicts noise; 1 + sigma^2 where it predicts v.
        """
        sigma = self._sigma(timestep).view(-1, 1, 1, 1)
        predicts_v = isinstance(self._session.sampling, comfy.model_sampling.V_PREDICTION)
        return 1 + sigma.square() if predicts_v else torch.ones_like(sigma)

    @contextlib.contextmanager
    def untouched(self) -> Iterator[None]:
        """Predict as the MODEL does without what changes its weights, and without gradients."""
        self._switch["on"] = False
        try:
            with torch.no_grad():
                yield
        finally:
            self._switch["on"] = True

    def _sigma(self, timestep: torch.Tensor) -> torch.Tensor:
        return self._session.sampling.sigma(timestep.float())


def run(
    patcher,
    latent: torch.Tensor,
    conditioning: list,
    work: Callable[[EmbeddingSession], Result],
    seed: int = 0,
    *,
    more: Sequence[tuple[torch.Tensor, list]] = (),
    functions: Mapping[str, WeightFunction] | None = None,
    checkpointing: bool = False,
) -> Result:
    """Run ``work(session)`` with gradients to the embedding; the MODEL stays as it was, and its masks act.

    ``more``: images with the CONDITIONING of each, the session's from the second on. ``functions`` change the weights
    and get gradients too; see `trainer.run` for them and for ``checkpointing``.
    """
    holder: dict[str, torch.Tensor | None] = {}  # empty until the first prediction
    switch = {"on": True}
    watched = with_embedding(patcher, lambda: holder["embedding"])
    images, conditions = zip((latent, conditioning), *more, strict=True)
    return trainer.run(
        watched,
        {name: _Switched(function, switch) for name, function in (functions or {}).items()},
        images,
        conditions,
        lambda session: work(EmbeddingSession(session, holder, switch)),
        dtype=torch.float32,
        checkpointing=checkpointing,
        seed=seed,
    )
