"""Predictions of a MODEL with gradients to the factors of its neurons, for
``neuron_attribution``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import torch

from ..common.network_call import in_call
from ..host.training import trainer
from .first_step_comfy import sigma_at_timestep
from .nemo_search import Neurons
from .neuron_attribution import (
    TIMESTEPS,
    Cost,
    NetworkInput,
    Ranking,
    anchor_predictions,
    attribute_dot,
    attribute_multi,
)
from .neuron_factors_comfy import Factors, scaled

if TYPE_CHECKING:
    from torch import nn

    from ..host.socket_types import ModelPatcher

Result = TypeVar("Result")

#: Rows of a call at most: more gain little, and Stop waits for a call.
_MOST_ROWS = 16


class FactorSession:
    """Noise predictions, float32, on the model's device, with gradients to factors of neurons; the
    ``Predictor`` of ``neuron_attribution``.

    ``by_level``: whether only inputs of one noise level share a call, as patches and conditionings
    that act in a part of the run need it.
    """

    def __init__(self, session: trainer.Session, network: nn.Module, *, by_level: bool):
        self._session = session
        self._network = network
        self._by_level = by_level
        self.device = session.device

    def sigma(self, timestep: int) -> torch.Tensor:
        """The noise level of a timestep, (1,)."""
        return sigma_at_timestep(self._session.sampling, torch.tensor([float(timestep)])).cpu()

    def batches(self, inputs: Sequence[NetworkInput], *, gradients: bool) -> list[list[int]]:
        """Indices of inputs that share a call, as many as fit in free memory."""
        levels: dict[int, list[int]] = {}
        for index, (_, timestep, _) in enumerate(inputs):
            levels.setdefault(timestep if self._by_level else 0, []).append(index)
        found = []
        for together in levels.values():
            most = min(len(together), _MOST_ROWS)
            shape = inputs[together[0]][0].shape[1:]
            rows = self._session.rows_at_once(most, shape, gradients=gradients)
            found += [together[first : first + rows] for first in range(0, len(together), rows)]
        return found

    def inputs(self, seed: int) -> list[tuple[torch.Tensor, int]]:
        """Each latent with noise at each timestep of ``multi``, as the network sees it."""
        generator = torch.Generator().manual_seed(seed)
        return [
            (self.noised(row, torch.randn(latent.shape, generator=generator), timestep), timestep)
            for row, latent in enumerate(self._session.latents)
            for timestep in TIMESTEPS
        ]

    def noised(self, row: int, noise: torch.Tensor, timestep: int) -> torch.Tensor:
        """What the network sees of a latent with noise (1, C, H, W) at a timestep, on its
        device.
        """
        sigma = self.sigma(timestep)
        x = self._session.noised(self._session.latents[row].float(), noise, sigma)
        return (x / self._scale(sigma)).to(self.device)

    def predicted(
        self,
        x: torch.Tensor,
        timesteps: Sequence[int],
        rows: Sequence[int],
        factors: Factors | None = None,
    ) -> torch.Tensor:
        """The noise (B, C, H, W) that the network sees in ``x``, its own input, with the conditions
        of these rows.
        """
        sigmas = torch.cat([self.sigma(timestep) for timestep in timesteps]).to(self.device)
        each = sigmas.view(-1, *[1] * (x.ndim - 1))
        scaled_x = x.to(self.device) * self._scale(each)
        with in_call(partial(scaled, self._network, factors or {})):
            denoised = self._session.denoised(scaled_x, sigmas, rows)
        return ((scaled_x - denoised) / each).float()

    def _scale(self, sigma: torch.Tensor) -> torch.Tensor:
        """What the network's input is multiplied by where it is a latent of the sampler."""
        scaled = self._session.sampling.calculate_input(sigma, torch.ones_like(sigma))
        return 1 / scaled


def run(
    patcher: ModelPatcher,
    latents: Sequence[torch.Tensor],
    conditions: Sequence[list],
    work: Callable[[FactorSession], Result],
    *,
    dtype: torch.dtype = torch.float32,
    checkpointing: bool = False,
) -> Result:
    """Run ``work`` with gradients to factors; the MODEL stays as it was. ``latents`` and
    ``conditions`` as rows.
    """
    network = patcher.model.diffusion_model
    by_level = _acts_in_ranges(patcher, conditions)
    return trainer.run(
        patcher,
        {},
        latents=latents,
        conditions=conditions,
        work=lambda session: work(FactorSession(session, network, by_level=by_level)),
        dtype=dtype,
        checkpointing=checkpointing,
    )


def _acts_in_ranges(patcher: ModelPatcher, conditions: Sequence[list]) -> bool:
    """Whether a patch of a MODEL, or a conditioning, may do something else at another noise
    level.
    """
    options = patcher.model_options
    patched = any(value for name, value in options.items() if name != "transformer_options")
    patched = patched or any(options.get("transformer_options", {}).values())
    wrapped = any(any(by_key.values()) for by_key in patcher.wrappers.values())
    ranged = any(
        more.get("start_percent", 0.0) > 0 or more.get("end_percent", 1.0) < 1 or "hooks" in more
        for condition in conditions
        for _, more in condition
    )
    replaced = patcher.object_patches.keys() - {"model_sampling"}
    return bool(patched or wrapped or ranged or replaced)


@dataclass
class AnchorPredictions:
    """What the anchor predicts, evaluated for the first prompt of a list and kept for the
    others.
    """

    values: torch.Tensor | None = None

    def get(self, session: FactorSession, seed: int, cost: Cost) -> torch.Tensor:
        """The predictions for the inputs of a seed."""
        if self.values is None:
            self.values = anchor_predictions(session, session.inputs(seed), cost)
        return self.values


def attribution(
    patcher: ModelPatcher,
    ranking: Ranking,
    condition: list,
    anchor: list,
    kept: AnchorPredictions,
    latents: Sequence[torch.Tensor],
    noise: torch.Tensor,
    timestep: int,
    neurons: Neurons,
    seed: int,
    cost: Cost,
    *,
    dtype: torch.dtype = torch.float32,
    checkpointing: bool = False,
) -> torch.Tensor:
    """The attribution (total,) of every neuron to a prompt's CONDITIONING; the rows of the network
    go to ``cost``.

    ``anchor``: the CONDITIONING of the generic prompt, whose predictions are ``kept`` for further
    prompts with the same latents and seed. ``dot`` reads ``noise``, ``multi`` reads ``latents``.
    """

    def work(session: FactorSession) -> torch.Tensor:
        if ranking in (Ranking.DOT, Ranking.DOT_Z):
            found = attribute_dot(session, noise, timestep=timestep, neurons=neurons, cost=cost)
        else:
            generic = kept.get(session, seed, cost)
            found = attribute_multi(
                session, session.inputs(seed), anchor=generic, neurons=neurons, cost=cost
            )
        return found.cpu()

    return run(
        patcher, latents, [condition, anchor], work, dtype=dtype, checkpointing=checkpointing
    )
