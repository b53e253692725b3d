"""Tap activations of a MODEL: the evaluations, their noise level and the images."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from ..common.pil_images import rgb
from ..host import evaluate as host
from ..host.hooks import hook_calls
from ..host.progress import with_progress
from ..host.schema import later_seed
from . import paper_tables
from .activation_spec import ActivationSpec
from .activations import Activations
from .tap import CallTap, TapSettings, call_settings, merge
from .tap_inputs import NoiseUnit


def tap_noise_samples(
    model,
    positive: list,
    latent: dict,
    sigma: float,
    specs: list[ActivationSpec],
    settings: TapSettings,
    seed: int,
    noise_samples: int,
) -> Iterator[Activations]:
    """The activations of one evaluation for each noise sample, from seeds ``seed``, ``seed`` + 1, ..."""
    sigma, timestep = float(torch.tensor(sigma)), host.timestep_of(model, sigma)
    for number in with_progress(range(noise_samples)):
        calls: list[CallTap] = []

        def calling(call, calls=calls):
            calls.append(CallTap(specs, settings, call))
            return calls[-1].receivers()

        host.evaluate(hook_calls(model, calling), positive, latent, sigma, later_seed(seed, number))
        tensors, rows = merge(calls, specs)
        yield Activations(tensors, rows, sigma, timestep, call_settings(calls, specs))


def clean_latent(latent: dict | None, image: torch.Tensor | None, vae) -> dict:
    """The images as a LATENT; raises ValueError unless exactly one of latent and image is connected."""
    if latent is not None and image is None:
        return latent
    if latent is None and image is not None and vae is not None:
        return {"samples": vae.encode(rgb(image))}
    raise ValueError("Connect either latent, or image together with vae.")


def sigma_of(model, specs: list[ActivationSpec], unit: str, level: float) -> float:
    """The sigma of a noise level in a ``NoiseUnit``."""
    if unit != NoiseUnit.PAPER_T:
        return host.sigma_at(model, level, host.PERCENT if unit == NoiseUnit.PERCENT else host.SIGMA)
    context = model.model.model_config.unet_config.get("context_dim")
    timestep = paper_tables.timestep_for(level, paper_tables.architecture(specs), context)
    return host.sigma_at(model, timestep, host.TIMESTEP)
