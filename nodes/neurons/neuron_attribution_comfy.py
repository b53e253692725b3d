"""Predictions of a MODEL with gradients to the factors of its neurons, for ``neuron_attribution``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import torch

from ..host.training import trainer
from .first_step_comfy import is_flow
from .nemo_search import Neurons
from .neuron_attribution import TIMESTEPS, Cost, Ranking, attribute_dot, attribute_multi
from .neuron_factors_comfy import scaled

Result = TypeVar("Result")


class FactorSession:
    """Noise predictions of single rows, float32, on the CPU, with gradients to factors of neurons."""

    def __init__(self, session: trainer.Session, network, flow: bool):
        self._session, self._network, self._flow = session, network, flow

    def sigma(self, timestep: int) -> torch.Tensor:
        """The noise level of a timestep, (1,); flow models begin at their highest one."""
        sampling = self._session.sampling
        if self._flow:
            return torch.tensor([float(sampling.percent_to_sigma(1 - timestep / 1000))])
        return sampling.sigma(torch.tensor([float(timestep)])).cpu().float()

    def inputs(self, seed: int) -> list[tuple[torch.Tensor, int]]:
        """Each latent with noise at each timestep of ``multi``, as the network sees it."""
        generator = torch.Generator().manual_seed(seed)
        return [
            (self.noised(row, torch.randn(latent.shape, generator=generator), timestep), timestep)
            for row, latent in enumerate(self._session.latents)
            for timestep in TIMESTEPS
        ]

    def noised(self, row: int, noise: torch.Tensor, timestep: int) -> torch.Tensor:
        """What the network sees of a latent with noise (1, C, H, W) at a timestep."""
        sigma = self.sigma(timestep)
        x = self._session.noised(self._session.latents[row].float(), noise, sigma)
        return x / self._scale(sigma)

    def predicted(self, x: torch.Tensor, timestep: int, row: int, factors=None) -> torch.Tensor:
        """The noise (1, C, H, W) that the network sees in ``x``, its own input, with the condition of a row."""
        sigma, device = self.sigma(timestep).to(self._session.device), self._session.device
        scaled_x = x.to(device) * self._scale(sigma)
        with scaled(self._network, factors or {}):
            denoised = self._session.denoised(scaled_x, sigma, [row])
        return ((scaled_x - denoised) / sigma).float().cpu()

    def _scale(self, sigma: torch.Tensor) -> torch.Tensor:
        return torch.ones_like(sigma) if self._flow else (1 + sigma.square()).sqrt()


def run(
    patcher,
    latents: Sequence[torch.Tensor],
    conditions: Sequence[list],
    work: Callable[[FactorSession], Result],
    *,
    checkpointing: bool = False,
) -> Result:
    """Run ``work`` with gradients to factors; the MODEL stays as it was. ``latents`` and ``conditions`` as rows."""
    network, flow = patcher.model.diffusion_model, is_flow(patcher)
    return trainer.run(
        patcher,
        {},
        latents,
        conditions,
        lambda session: work(FactorSession(session, network, flow)),
        dtype=torch.float32,
        checkpointing=checkpointing,
    )


def attribution(
    patcher,
    ranking: Ranking,
    condition: list,
    anchor: list,
    latents: Sequence[torch.Tensor],
    noise: torch.Tensor,
    timestep: int,
    neurons: Neurons,
    seed: int,
    cost: Cost,
) -> torch.Tensor:
    """The attribution (total,) of every neuron to a prompt's CONDITIONING; the rows of the network go to ``cost``.

    ``anchor``: the CONDITIONING of the generic prompt. ``dot`` reads ``noise``, ``multi`` reads ``latents``.
    """

    def work(session: FactorSession) -> torch.Tensor:
        if ranking in (Ranking.DOT, Ranking.DOT_Z):
            return attribute_dot(session.predicted, noise, timestep, neurons, cost)
        return attribute_multi(session.predicted, session.inputs(seed), neurons, cost)

    return run(patcher, latents, [condition, anchor], work)
