"""Replace the text embedding that a MODEL is given, while gradients run through it."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import comfy.model_sampling
import torch
from comfy.patcher_extension import WrappersMP

from ..host.quantized import WeightFunction
from ..host.training import trainer
from ..host.training.layer_weights import low_rank
from .first_step_comfy import (
    has_timesteps,
    refuse_unscored,
    sigma_at_timestep,
)
from .memorization_score import OFFICIAL_TIMESTEP

if TYPE_CHECKING:
    from ..host.socket_types import ModelPatcher, WrapperExecutor


def with_embedding(
    patcher: ModelPatcher, current: Callable[[], torch.Tensor | None], encoded: torch.Tensor
) -> ModelPatcher:
    """A clone of a MODEL that reads ``current()`` (1, tokens, D) instead of the text embedding it
    is handed, ``encoded``.

    Where ``current`` gives None, it reads what it is handed. What ComfyUI pads a text with (FLUX.2)
    stays. Raises ValueError while it runs where ComfyUI hands the network something else than the
    encoded text.
    """
    clone = patcher.clone()
    first: int | None = None

    def call(
        executor: WrapperExecutor,
        x: torch.Tensor,
        t: torch.Tensor,
        c_concat: torch.Tensor | None = None,
        c_crossattn: torch.Tensor | None = None,
        *args: Any,
        **kwargs: Any,
    ) -> torch.Tensor:
        nonlocal first
        embedding = current()
        given = c_crossattn
        if embedding is not None:
            if first is None:
                first = _place_of(encoded, c_crossattn)
            last = first + encoded.shape[1]
            # a copy: HunyuanDiT changes its text in place
            rows = embedding.to(x.device).expand(len(x), -1, -1).clone()
            if c_crossattn is not None and c_crossattn.shape[1] > encoded.shape[1]:
                pads = c_crossattn.to(rows)
                rows = torch.cat([pads[:, :first], rows, pads[:, last:]], 1)
            given = rows
        return executor(x, t, c_concat, given, *args, **kwargs)

    clone.add_wrapper_with_key(
        WrappersMP.APPLY_MODEL, f"glassbox_embedding_{uuid.uuid4().hex}", call
    )
    return clone


def _place_of(encoded: torch.Tensor, given: torch.Tensor | None) -> int:
    """The first of the tokens that are the encoded text (1, tokens, D), among those that ComfyUI
    hands the network: (rows, tokens or more, D).
    """
    tokens = encoded.shape[1]
    if given is not None and given.shape[2] == encoded.shape[2]:
        text = encoded.to(given.device).float()
        within = _ROUNDING * float(text.abs().max())
        for first in dict.fromkeys((0, given.shape[1] - tokens)):
            part = given[:1, first : first + tokens].float()
            if part.shape == text.shape and float((part - text).abs().max()) <= within:
                return first
    raise ValueError(
        "This MODEL is not handed the encoded text but what it makes of it (as Anima and LTX-2), "
        "so no embedding can be optimized for it: use another model."
    )


def refuse_unsupported(patcher: ModelPatcher, conditioning: list) -> None:
    """Raise ValueError for what cannot be optimized: a model that sees no noise, or a prompt for a
    part of the run or the image.
    """
    refuse_unscored(patcher)
    refuse_ranges(conditioning)


def refuse_ranges(conditioning: list) -> None:
    """Raise ValueError when a conditioning acts in a part of the sampling run only: elsewhere it
    has no gradient.
    """
    for _, options in conditioning:
        if options.get("start_percent", 0.0) > 0 or options.get("end_percent", 1.0) < 1:
            raise ValueError(
                "positive acts in a part of the sampling run, and its embedding is optimized for "
                "all of it: connect the prompt from before Conditioning Set Timestep Range."
            )


Result = TypeVar("Result")
_ROUNDING = 1e-2  # of the largest component of an encoded text; ComfyUI casts it


class _Switched:
    """A weight function that can be left out for a while."""

    def __init__(self, function: WeightFunction, switch: dict[str, bool]):
        self._function = function
        self._switch = switch
        if (factors := low_rank(function)) is not None:
            self.factors = lambda: factors() if switch["on"] else None

    def __call__(self, weight: torch.Tensor) -> torch.Tensor:
        return self._function(weight) if self._switch["on"] else weight

    def move_to(self, device: torch.device) -> int:
        return self._function.move_to(device) if hasattr(self._function, "move_to") else 0


class EmbeddingSession:
    """Float32 noise predictions with gradients to a text embedding (1, tokens, D) and to what
    changes weights.

    ``latents``: the images as the model sees them, each (1, C, H, W).
    """

    def __init__(self, session: trainer.Session, holder: dict, switch: dict[str, bool]):
        self._session = session
        self._holder = holder
        self._switch = switch
        self.latents = [latent.float() for latent in session.latents]  # noise is added in float32
        self.steps = 1000
        self.device = session.device

    def predicted(
        self,
        x: torch.Tensor,
        timestep: torch.Tensor,
        embedding: torch.Tensor | None = None,
        rows: Sequence[int] | None = None,
    ) -> torch.Tensor:
        """The noise (B, C, H, W) that the network sees in latents at ``timestep`` (B,), whose noise
        is scaled by sigma.

        ``x`` as ``noised`` and ``pure`` make it. With an ``embedding`` the first CONDITIONING has
        it instead of its own; without one each image has the CONDITIONING ``rows`` says.
        """
        self._holder["embedding"] = embedding
        sigma = self._sigma(timestep)
        denoised = self._session.denoised(x, sigma, rows or [0] * len(x))
        return (x - denoised) / self._each(sigma)

    @property
    def first_timestep(self) -> int:
        """The timestep of a first step: of models that do not count timesteps the highest level."""
        is_counted = has_timesteps(self._session.sampling)
        return OFFICIAL_TIMESTEP if is_counted else self.steps

    def target(
        self, latent: torch.Tensor, noise: torch.Tensor, timestep: torch.Tensor
    ) -> torch.Tensor:
        """What a perfect model predicts where ``noised`` makes its input: the noise, of a flow
        model noise - image.
        """
        nothing = torch.zeros_like(noise)
        of_noise = self.noised(nothing, noise, timestep)
        of_latent = self.noised(latent, nothing, timestep) - latent  # 0 unless it is a flow
        return (of_noise + of_latent) / self._each(self._sigma(timestep))

    def rows_at_once(self, x: torch.Tensor) -> int:
        """How many rows of latents (B, C, H, W) fit in free memory with their gradients."""
        return self._session.rows_at_once(len(x), x.shape[1:])

    def noised(
        self, latent: torch.Tensor, noise: torch.Tensor, timestep: torch.Tensor
    ) -> torch.Tensor:
        """A latent with noise at ``timestep`` (B,)."""
        return self._session.noised(latent.expand_as(noise), noise, self._sigma(timestep))

    def pure(self, noise: torch.Tensor, timestep: torch.Tensor) -> torch.Tensor:
        """Latents of which the network sees just this noise at ``timestep`` (B,)."""
        sigma = self._sigma(timestep)
        return noise / self._session.sampling.calculate_input(sigma, torch.ones_like(noise))

    def weight(self, timestep: torch.Tensor) -> torch.Tensor:
        """What makes the squared error of the prediction that of the network's own output, (B, 1,
        ...).

        1 where the network predicts noise, or a flow; 1 + sigma^2 where it predicts v.
        """
        sigma = self._each(self._sigma(timestep))
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
        return sigma_at_timestep(self._session.sampling, timestep).to(timestep.device)

    def _each(self, sigma: torch.Tensor) -> torch.Tensor:
        """Levels (B,) as they multiply latents."""
        return sigma.view(-1, *[1] * (self.latents[0].ndim - 1))


def run(
    patcher: ModelPatcher,
    latent: torch.Tensor,
    conditioning: list,
    work: Callable[[EmbeddingSession], Result],
    seed: int = 0,
    *,
    more: Sequence[tuple[torch.Tensor, list]] = (),
    functions: Mapping[str, WeightFunction] | None = None,
    dtype: torch.dtype = torch.float32,
    checkpointing: bool = False,
) -> Result:
    """Run ``work(session)`` with gradients to the embedding; the MODEL stays as it was, and its
    masks act.

    ``more``: images with the CONDITIONING of each, the session's from the second on. ``functions``
    change the weights and get gradients too; see `trainer.run` for them, ``dtype`` and
    ``checkpointing``.
    """
    holder: dict[str, torch.Tensor | None] = {}  # empty until the first prediction
    switch = {"on": True}
    watched = with_embedding(patcher, lambda: holder["embedding"], conditioning[0][0])
    images, conditions = zip((latent, conditioning), *more, strict=True)
    return trainer.run(
        watched,
        {name: _Switched(function, switch) for name, function in (functions or {}).items()},
        latents=images,
        conditions=conditions,
        work=lambda session: work(EmbeddingSession(session, holder, switch)),
        dtype=dtype,
        checkpointing=checkpointing,
        seed=seed,
    )
