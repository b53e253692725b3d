"""Ask a MODEL many times what noise it sees in pure noise, inside one sampling run of ComfyUI's own.

The run is prepared once, so that an evaluation costs little more than the network; LoRAs, ControlNets, areas and size
metadata take part exactly as in a KSampler.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import comfy.model_management
import comfy.model_sampling
import comfy.samplers
import torch

from .value_hooks import Factors, scaled

Result = TypeVar("Result")
Predict = Callable[..., torch.Tensor]


def latent_shape(patcher, width: int, height: int) -> tuple[int, int, int]:
    """Channels, height and width of this MODEL's latents for a picture of that many pixels."""
    form = patcher.get_model_object("latent_format")
    factor = getattr(form, "spacial_downscale_ratio", 8)
    return form.latent_channels, height // factor, width // factor


def at_first_step(
    patcher, conditioning: list, shape: tuple[int, int, int], timestep: int, work: Callable[[Predict], Result]
) -> Result:
    """Run ``work(predict)`` with a conditioning and return what it returns.

    ``predict(noise (N, C, H, W), factors=None)`` gives the noise that the network sees, float32, without CFG, at
    ``timestep`` (0 to 999) when its input is just that noise; ``factors`` scale the outputs of layers, see
    ``value_hooks.scaled``. It stops with ComfyUI's interrupt before an evaluation when the user has pressed Stop.
    Raises ValueError for a MODEL that predicts no noise.
    """
    refuse_flow(patcher)
    guider = comfy.samplers.CFGGuider(patcher)
    guider.inner_set_conds({"positive": conditioning})
    sigma = patcher.get_model_object("model_sampling").sigma(torch.tensor(float(timestep)))
    blank = torch.zeros(1, *shape)
    sampler = _Work(work)
    guider.sample(blank, blank, sampler, torch.tensor([float(sigma), 0.0]), disable_pbar=True, seed=0)
    return sampler.result


def refuse_flow(patcher) -> None:
    """Raise ValueError for a MODEL that does not predict noise as SD does (flow models have no such first step)."""
    sampling = patcher.get_model_object("model_sampling")
    if not isinstance(sampling, comfy.model_sampling.EPS) or not hasattr(sampling, "num_timesteps"):
        raise ValueError(
            "Finding NeMo is defined for models that predict noise over 1000 timesteps, and this MODEL does not: use "
            "SD1.x, SD2.x, SDXL or the demo model."
        )


class _Work(comfy.samplers.Sampler):
    """A sampler that lets ``work`` evaluate the model as often as it likes."""

    def __init__(self, work):
        self._work, self.result = work, None

    def sample(
        self, model_wrap, sigmas, extra_args, callback, noise, latent_image=None, denoise_mask=None, disable_pbar=False
    ):
        sigma, network = sigmas[0], model_wrap.inner_model.diffusion_model

        def predict(rows: torch.Tensor, factors: Factors | None = None) -> torch.Tensor:
            comfy.model_management.throw_exception_if_processing_interrupted()
            x = rows.to(noise) * (1 + sigma**2).sqrt()
            with scaled(network, factors or {}):
                denoised = model_wrap(x, sigma.expand(len(x)), **extra_args)
            return ((x - denoised) / sigma).float()

        self.result = self._work(predict)
        return noise
