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

from .replay import Replay
from .value_hooks import Factors, scaled

Result = TypeVar("Result")


def latent_shape(patcher, width: int, height: int) -> tuple[int, int, int]:
    """Channels, height and width of this MODEL's latents for a picture of that many pixels."""
    form = patcher.get_model_object("latent_format")
    factor = getattr(form, "spacial_downscale_ratio", 8)
    return form.latent_channels, height // factor, width // factor


def at_first_step(
    patcher, conditioning: list, shape: tuple[int, int, int], timestep: int, work: Callable[[FirstStep], Result]
) -> Result:
    """Run ``work(predict)`` with a conditioning and return what it returns.

    ``predict(noise (N, C, H, W), factors=None)`` gives the noise that the network sees, float32, without CFG, at
    ``timestep`` (0 to 999) when its input is just that noise; ``factors`` scale the outputs of layers, see
    ``value_hooks.scaled``. It stops with ComfyUI's interrupt before an evaluation when the user has pressed Stop.
    Evaluations that differ late in the network can skip what comes before, see ``FirstStep``.
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


class FirstStep:
    """``predict`` of a run: the noise that the network sees in noise (N, C, H, W); see ``at_first_step``."""

    def __init__(self, model_wrap, sigma: torch.Tensor, like: torch.Tensor, extra_args: dict):
        self._model, self._sigma, self._like, self._extra = model_wrap, sigma, like, extra_args
        self._network = model_wrap.inner_model.diffusion_model
        self._replay, self._remembered = Replay(self._network), None
        patches = extra_args.get("model_options", {}).get("transformer_options", {}).get("patches", {})
        self._text_alone = "attn2_patch" not in patches  # such a patch may mix the picture into the text

    def __call__(self, noise: torch.Tensor, factors: Factors | None = None) -> torch.Tensor:
        comfy.model_management.throw_exception_if_processing_interrupted()
        x = noise.to(self._like) * (1 + self._sigma**2).sqrt()
        with scaled(self._network, factors or {}):
            denoised = self._model(x, self._sigma.expand(len(x)), **self._extra)
        return ((x - denoised) / self._sigma).float()

    def remember(self, noise: torch.Tensor, factors: Factors, layers: list[str]) -> None:
        """Run once, and remember what ``beginning_at`` these layers needs."""
        with self._replay.remembering(layers, len(noise)):
            self(noise, factors)
        self._remembered = noise

    def beginning_at(self, layer: str, rows: list[int], factors: Factors) -> torch.Tensor:
        """As a call with these rows of the remembered noise, whose factors before ``layer`` are the remembered ones.

        Begins at that layer where it can: not when the MODEL evaluates in several calls, such as for areas.
        """
        noise = self._remembered[rows]
        if not self._text_alone or not self._replay.begins(layer):
            return self(noise, factors)
        with self._replay.beginning(layer, rows):
            return self(noise, factors)


class _Work(comfy.samplers.Sampler):
    """A sampler that lets ``work`` evaluate the model as often as it likes."""

    def __init__(self, work):
        self._work, self.result = work, None

    def sample(
        self, model_wrap, sigmas, extra_args, callback, noise, latent_image=None, denoise_mask=None, disable_pbar=False
    ):
        self.result = self._work(FirstStep(model_wrap, sigmas[0], noise, extra_args))
        return noise
