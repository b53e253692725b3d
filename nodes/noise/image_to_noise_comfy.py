"""Image to Noise in ComfyUI: the model's own evaluation, noise levels and scales."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import comfy.model_management
import comfy.sample
import comfy.samplers
import torch

from ..host.evaluate import untouched
from ..host.latent_shapes import matching_channels, view
from ..host.progress import Progress, check_stop
from ..host.step_caches import without_step_caches
from .image_to_noise import (
    follow_downward,
    follow_upward,
    latent_behind,
    noise_behind,
    relative_error,
)
from .noise_objects_comfy import stock_noise

if TYPE_CHECKING:
    from ..host.socket_types import ModelPatcher


def sigmas_of_ksampler(
    patcher: ModelPatcher, steps: int, scheduler: str, denoise: float
) -> torch.Tensor:
    """The noise levels (n + 1,) of a KSampler with the sampler euler, from high to low; one alone
    at denoise 0.
    """
    sampler = comfy.samplers.KSampler(
        patcher,
        steps=steps,
        device=patcher.load_device,
        sampler="euler",
        scheduler=scheduler,
        denoise=denoise,
        model_options=patcher.model_options,
    )
    return sampler.sigmas


def check_encoded(latent: dict) -> None:
    """Raise ValueError where an image of a LATENT is empty."""
    if bool(view(latent).blank.any()):
        raise ValueError(
            "The latent is empty: connect the image through VAE Encode, not an Empty Latent Image."
        )


def check_levels(sigmas: torch.Tensor) -> None:
    """Raise ValueError for noise levels that rise, or reach 0 before the last."""
    if any(upper < lower or upper <= 0 for upper, lower in pairwise(sigmas.tolist())):
        raise ValueError(
            "The noise levels must fall, and only the last may be 0: connect the sigmas of a "
            "scheduler, without Flip Sigmas."
        )


class FoundNoise:
    """NOISE that was found for a LATENT, in its shape."""

    def __init__(self, noise: torch.Tensor, seed: int):
        self.seed = seed
        self._noise = noise

    def generate_noise(self, latent: dict) -> torch.Tensor:
        """The noise; raises ValueError for a LATENT of another shape."""
        shape = tuple(latent["samples"].shape)
        if shape != tuple(self._noise.shape):
            raise ValueError(
                f"Image to Noise found noise of the shape {tuple(self._noise.shape)}, and the "
                f"sampler's latent has {shape}: connect the same latent to both."
            )
        return self._noise


@dataclass(frozen=True, kw_only=True)
class Found:
    """``noise``: for a sampler that starts from the same LATENT. ``samples``: for a stock KSampler
    of ``seed``, in the VAE's scale, or None where the model drops the latent. ``errors``: of the
    round trip, one an image.
    """

    noise: torch.Tensor
    samples: torch.Tensor | None
    errors: list[float]


def find(
    patcher: ModelPatcher,
    positive: list,
    latent: dict,
    *,
    sigmas: torch.Tensor,
    seed: int,
    corrections: int,
) -> Found:
    """Follow a LATENT upward through ``sigmas`` with one prompt, without CFG.

    Raises ValueError for a LATENT of several parts, an empty one, and levels that do not fall.
    """
    samples = latent["samples"]
    if getattr(samples, "is_nested", False):
        raise ValueError(
            "Latents of several parts (video with sound) are not supported: use images or video."
        )
    check_encoded(latent)
    check_levels(sigmas)
    samples = matching_channels(samples, patcher)
    guider = comfy.samplers.CFGGuider(without_step_caches(patcher))
    guider.inner_set_conds({"positive": positive})
    sampler = _Upward(
        drawn=_drawn({**latent, "samples": samples}, seed),
        corrections=corrections,
    )
    ends = guider.sample(
        torch.zeros_like(samples), samples, sampler, sigmas, disable_pbar=True, seed=seed
    )
    device = comfy.model_management.intermediate_device()
    return Found(
        noise=sampler.noise.to(device, samples.dtype),
        samples=ends.to(device, samples.dtype) if sampler.keeps_latent else None,
        errors=sampler.errors,
    )


def _drawn(latent: dict, seed: int) -> torch.Tensor:
    with untouched():
        return stock_noise(latent, seed)


class _Upward(comfy.samplers.Sampler):
    """Follows the latent upward; returns the latent for a sampler that adds the drawn noise."""

    def __init__(self, *, drawn: torch.Tensor, corrections: int):
        self._drawn = drawn
        self._corrections = corrections
        self.noise = drawn
        self.errors: list[float] = []
        self.keeps_latent = True

    def sample(
        self,
        model_wrap: Any,
        sigmas: torch.Tensor,
        extra_args: dict,
        callback: Callable | None,
        noise: torch.Tensor,
        latent_image: torch.Tensor,
        denoise_mask: torch.Tensor | None = None,
        disable_pbar: bool = False,
    ) -> torch.Tensor:
        sampling = model_wrap.inner_model.model_sampling
        scaling = functools.partial(
            _scaled, sampling, sigmas[0], self.max_denoise(model_wrap, sigmas)
        )
        levels = sigmas.tolist()
        steps = len(levels) - 1
        progress = Progress(steps * (2 + self._corrections))
        evaluated = 0

        def denoise(state: torch.Tensor, sigma: float) -> torch.Tensor:
            nonlocal evaluated
            check_stop()
            level = torch.full((len(state),), sigma, device=state.device, dtype=state.dtype)
            denoised = model_wrap(state, level, **extra_args)
            evaluated += 1
            progress.show(evaluated)
            return denoised

        # A sampler of a flow model divides what it ends with by the part of the latent that is left
        # at the last level, which is all of it where the levels end at 0.
        scale = sampling.inverse_noise_scaling(sigmas[-1], torch.ones_like(latent_image))
        state = follow_upward(denoise, latent_image / scale, levels, self._corrections)
        returned = follow_downward(denoise, state, levels) * scale
        self.errors = relative_error(latent_image, returned).tolist()
        self.noise = noise_behind(scaling, state, latent_image)
        drawn = self._drawn.to(state)
        for_sampler = latent_behind(scaling, state, drawn)
        self.keeps_latent = for_sampler is not None
        return latent_image if for_sampler is None else for_sampler


def _scaled(
    sampling: Any, sigma: torch.Tensor, at_maximum: bool, noise: torch.Tensor, latent: torch.Tensor
) -> torch.Tensor:
    return sampling.noise_scaling(sigma, noise, latent, at_maximum)
