"""Evaluate a MODEL once at a noise level, through ComfyUI's own sampling path.

LoRAs, ControlNets, areas, hooks and SDXL's size metadata take part exactly as in a KSampler.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import comfy.model_management
import comfy.sample
import comfy.samplers
import torch

TIMESTEP, PERCENT, SIGMA = "timestep", "percent", "sigma"
_STEPS = 1000


def sigma_at(patcher, value: float, unit: str) -> float:
    """The sigma of a noise level, kept inside the model's range.

    ``unit``: TIMESTEP (0 to 999; for a flow model, whose sigma is the time, thousandths of it), PERCENT (of the
    sampling range, 0 is pure noise and 1 is none, as in ComfyUI's own nodes) or SIGMA.
    """
    sampling = patcher.get_model_object("model_sampling")
    if unit == PERCENT:
        sigma = sampling.percent_to_sigma(value)
    elif unit == TIMESTEP and hasattr(sampling, "num_timesteps"):
        sigma = float(sampling.sigma(torch.tensor(float(value))))
    else:
        sigma = value if unit == SIGMA else value / _STEPS
    return min(max(float(sigma), float(sampling.sigma_min)), float(sampling.sigma_max))


def sigmas_of(patcher, start_percent: float, end_percent: float) -> tuple[float, float]:
    """The noise levels from which and to which a patch acts; 0 and 1 leave nothing of the run out."""
    sampling = patcher.get_model_object("model_sampling")
    first = float("inf") if start_percent <= 0 else float(sampling.percent_to_sigma(start_percent))
    last = 0.0 if end_percent >= 1 else float(sampling.percent_to_sigma(end_percent))
    return first, last


def timestep_of(patcher, sigma: float) -> float:
    """The timestep that the network is given at a sigma: for SD1.5 and SDXL the integer timestep."""
    return float(patcher.get_model_object("model_sampling").timestep(torch.tensor(sigma)))


@dataclass
class _Evaluated:
    timestep: torch.Tensor
    levels: tuple[float, ...] = ()


_evaluated: _Evaluated | None = None


@contextmanager
def evaluating(timestep: torch.Tensor) -> Iterator[None]:
    """One evaluation at noise levels (rows,): within it ``levels_of`` the same tensor waits for the device once.

    Blocks of several patches of a MODEL lie within each other. ComfyUI hands the tensor of an evaluation to each call
    of the network as ``transformer_options["sigmas"]``.
    """
    global _evaluated
    before = _evaluated
    if before is None or before.timestep is not timestep:
        _evaluated = _Evaluated(timestep)
    try:
        yield
    finally:
        _evaluated = before


def levels_of(timestep: torch.Tensor) -> tuple[float, ...]:
    """Noise levels (rows,) as numbers."""
    if _evaluated is None or _evaluated.timestep is not timestep:
        return tuple(timestep.flatten().tolist())
    if not _evaluated.levels:
        _evaluated.levels = tuple(timestep.flatten().tolist())
    return _evaluated.levels


def name_of(model) -> str:
    """The name of a MODEL's inner model, as ComfyUI calls the architecture ("SD15", "SDXL", "Flux")."""
    name = type(model).__name__
    return type(model.model_config).__name__ if name == "BaseModel" else name


@contextmanager
def untouched():
    """Give the global generators back as they were, whatever is seeded or drawn inside."""
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    with torch.random.fork_rng(devices=list(devices)):
        yield


def noise_for(latent: torch.Tensor, seed: int) -> torch.Tensor:
    """The noise that KSampler makes from this seed, drawn without touching the global generator."""
    generator = torch.Generator("cpu").manual_seed(seed)
    return torch.randn(latent.shape, dtype=latent.dtype, generator=generator)


def evaluate(patcher, positive: list, samples: dict, sigma: float, seed: int) -> torch.Tensor:
    """Noise a LATENT to ``sigma`` and evaluate the MODEL on it once, without CFG; returns the denoised latent.

    Clean latents as the VAE encodes them; stops before the evaluation when the user has pressed Stop.
    """
    comfy.model_management.throw_exception_if_processing_interrupted()
    latent = comfy.sample.fix_empty_latent_channels(patcher, samples["samples"])
    guider = comfy.samplers.CFGGuider(patcher)
    guider.inner_set_conds({"positive": positive})
    sigmas = torch.tensor([sigma, 0.0])
    denoised = guider.sample(
        noise_for(latent, seed),
        latent,
        _Once(),
        sigmas,
        disable_pbar=True,
        seed=seed,
        denoise_mask=samples.get("noise_mask"),
    )
    return denoised.to(comfy.model_management.intermediate_device())


class _Once(comfy.samplers.Sampler):
    """A sampler that evaluates the model at the first sigma and returns the denoised latent."""

    def sample(
        self, model_wrap, sigmas, extra_args, callback, noise, latent_image=None, denoise_mask=None, disable_pbar=False
    ):
        sampling = model_wrap.inner_model.model_sampling
        noised = sampling.noise_scaling(sigmas[0], noise, latent_image, max_denoise=False)
        return model_wrap(noised, sigmas[0].expand(noised.shape[0]), **extra_args)


def sample_latents(
    patcher, positive: list, negative: list, latent: torch.Tensor, steps: int, cfg: float, seed: int
) -> torch.Tensor:
    """Latents sampled from pure noise, of the shape of ``latent``. Euler with the normal schedule."""
    latent = comfy.sample.fix_empty_latent_channels(patcher, torch.zeros_like(latent))
    return comfy.sample.sample(
        patcher,
        noise_for(latent, seed),
        steps,
        cfg,
        "euler",
        "normal",
        positive,
        negative,
        latent,
        disable_pbar=True,
        seed=seed,
    )


def sample_images(
    patcher, vae, positive: list, negative: list, shape: tuple[int, int, int], count: int, seed: int, **how
) -> torch.Tensor:
    """``count`` images (B, H, W, 3) from pure noise; ``how``: steps, cfg. Euler with the normal schedule."""
    blank = torch.zeros(count, *shape)
    return vae.decode(sample_latents(patcher, positive, negative, blank, how["steps"], how["cfg"], seed))


def sample_seeds(
    patcher, positive: list, negative: list, latent: dict, seeds: list[int], steps: int, cfg: float, draw=noise_for
):
    """Latents (N, C, ...) of N seeds in one batch, each as KSampler samples a LATENT of one image from that seed.

    Euler with the normal schedule at denoise 1; every seed's noise is KSampler's bit for bit, or ``draw(latent, seed)``
    of the latent's tensor.
    """
    single = comfy.sample.fix_empty_latent_channels(patcher, latent["samples"])
    return comfy.sample.sample(
        patcher,
        torch.cat([draw(single, seed) for seed in seeds]),
        steps,
        cfg,
        "euler",
        "normal",
        positive,
        negative,
        torch.cat([single] * len(seeds)),
        noise_mask=latent.get("noise_mask"),
        disable_pbar=True,
        seed=seeds[0],
    )
