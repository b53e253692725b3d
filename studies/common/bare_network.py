"""A MODEL's bare network, evaluated with gradients and without a sampler."""

from __future__ import annotations

import torch

from .training import device, has_bfloat16


class BareNetwork:
    """``autocast`` computes in bfloat16 where the device multiplies it."""

    def __init__(self, model, *, autocast: bool):
        self.network = model.model.diffusion_model.to(device())
        self.sampling = model.get_model_object("model_sampling")
        self._autocast = autocast
        self._vector = model.model.encode_adm().to(device())

    def clean(self, x: torch.Tensor, sigmas: torch.Tensor, contexts: torch.Tensor) -> torch.Tensor:
        """The predicted clean latents (n, C, H, W) at noise levels (n,)."""
        levels = sigmas.view(-1, *[1] * (x.ndim - 1))
        enabled = self._autocast and has_bfloat16()
        with torch.autocast(device().type, torch.bfloat16, enabled=enabled):
            answer = self.network(
                self.sampling.calculate_input(levels, x),
                self.sampling.timestep(sigmas).float(),
                contexts,
                self._vector.expand(len(x), -1),
            ).float()
        return self.sampling.calculate_denoised(levels, answer, x)
