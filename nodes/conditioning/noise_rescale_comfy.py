"""A MODEL's noise schedule: where a sigma lies in it, and the same schedule for images of another
size.
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import comfy.model_base
import comfy.model_sampling
import comfy.samplers
import torch

from ..host.evaluate import name_of
from . import noise_rescale

if TYPE_CHECKING:
    from ..host.socket_types import ModelPatcher

SAMPLER_ONLY = "sampler_only"
RETIMED = "retimed"
MODES = (SAMPLER_ONLY, RETIMED)
_ON_CPU: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()
_ENDLESS = 1e8  # ComfyUI's percent_to_sigma gives 999999999.9 for "from the very start"


def noise_fraction(sampling: Any, sigma: float) -> float:
    """The fraction of noise u = t / T in training time at a sigma: 0 clean, 1 pure noise.

    Discrete schedules: the timestep over the last one. Flow models: the time itself. Continuous
    schedules (EDM): the place of the sigma in the table of a thousand, by logarithm.
    """
    while isinstance(sampling, _Rescaled):
        sigma = (
            sigma if sampling.mode == SAMPLER_ONLY else float(sampling.unmoved(torch.tensor(sigma)))
        )
        sampling = sampling.base
    if isinstance(sampling, comfy.model_sampling.CONST):
        return min(max(sigma, 0.0), 1.0)
    if sigma <= 0:
        return 0.0
    sampling = _on_cpu(sampling)
    if _is_discrete(sampling):
        # Not the length of the table: distilled models (LCM) keep 50 sigmas of the 1000 timesteps.
        place = float(sampling.timestep(torch.tensor([sigma])))
        last = sampling.num_timesteps - 1
    else:
        table = sampling.log_sigmas
        place = float((torch.tensor(sigma).log() - table).abs().argmin())
        last = len(table) - 1
    return min(max(place / last, 0.0), 1.0)


def _on_cpu(sampling: Any) -> Any:
    """A schedule whose tables lie on the CPU, so that looking a place up in them does not wait for
    the device.
    """
    if all(table.device.type == "cpu" for table in sampling.buffers()):
        return sampling
    if sampling not in _ON_CPU:
        _ON_CPU[sampling] = copy.deepcopy(sampling).cpu()
    return _ON_CPU[sampling]


def schedule_sigmas(patcher: ModelPatcher, scheduler: str, steps: int) -> torch.Tensor:
    """The sigmas of one of ComfyUI's schedulers for a MODEL: (steps + 1,), the last one 0."""
    return comfy.samplers.calculate_sigmas(
        patcher.get_model_object("model_sampling"), scheduler, steps
    )


def schedulers() -> list[str]:
    """ComfyUI's schedulers."""
    return list(comfy.samplers.SCHEDULER_NAMES)


def rescaled_sigmas(patcher: ModelPatcher, sigmas: torch.Tensor) -> torch.Tensor:
    """The sigmas of any scheduler for the MODEL before ``rescaled``, moved by its law; its last 0
    stays 0.
    """
    table = patcher.get_model_object("model_sampling")
    return table.moved(sigmas) if isinstance(table, _Rescaled) else sigmas


def schedules_and_law(
    patcher: ModelPatcher, rescaled_patcher: ModelPatcher, steps: int
) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """For each scheduler its sigmas on a rescaled MODEL, and what the law makes of its sigmas on
    the MODEL before.
    """
    return {
        name: (
            schedule_sigmas(rescaled_patcher, name, steps),
            rescaled_sigmas(rescaled_patcher, schedule_sigmas(patcher, name, steps)),
        )
        for name in schedulers()
    }


def shift_of(patcher: ModelPatcher) -> tuple[float, float] | None:
    """The shift of a MODEL's schedule now and as trained; None for models without one.

    Behind ModelSamplingFlux, ModelSamplingSD3 and the like both differ. A rescale is not counted.
    """
    table = patcher.get_model_object("model_sampling")
    while isinstance(table, _Rescaled):
        table = table.base
    trained = patcher.model.model_sampling
    shifts = getattr(table, "shift", None), getattr(trained, "shift", None)
    if (
        shifts[0] is None
        or shifts[1] is None
        or isinstance(table, comfy.model_sampling.StableCascadeSampling)
    ):
        return None
    return float(shifts[0]), float(shifts[1])


def sigma_range(patcher: ModelPatcher) -> tuple[float, float]:
    """The smallest and the largest sigma of a MODEL's schedule."""
    table = patcher.get_model_object("model_sampling")
    return float(table.sigma_min), float(table.sigma_max)


def trained_size(patcher: ModelPatcher) -> int | None:
    """Pixels a side that a MODEL of this kind was trained at; None when the model does not say."""
    own = getattr(patcher.model, "trained_size", None)
    kind = type(patcher.model.model_config).__name__
    if kind == "SD20" and patcher.model.model_type == comfy.model_base.ModelType.V_PREDICTION:
        return 768
    return own or _TRAINED.get(kind)


def rescaled(patcher: ModelPatcher, factor: float, mode: str) -> ModelPatcher:
    """A clone of a MODEL whose noise is ``factor`` times as strong, relative to the image, at every
    noise level.

    ``SAMPLER_ONLY``: the network is still given the true noise level. ``RETIMED``: it is given the
    level at which it would have stood without this, as in the paper's fine-tuning. Raises
    ValueError for models that draw no noise.
    """
    base = patcher.get_model_object("model_sampling")
    law = (
        noise_rescale.scaled_time
        if isinstance(base, comfy.model_sampling.CONST)
        else noise_rescale.scaled_sigma
    )
    if not isinstance(base, _NOISE_SAMPLES) or isinstance(base, comfy.model_sampling.IMG_TO_IMG):
        raise ValueError(
            f"{name_of(patcher.model)} does not sample from noise: there is nothing to rescale."
        )
    clone = patcher.clone()
    if factor != 1:
        clone.add_object_patch("model_sampling", _rescaled_sampling(base, factor, law, mode))
    return clone


class _Rescaled:
    """Goes before the class of a model's sampling and moves its sigmas; positions in the schedule
    stay as they were.
    """

    base: Any
    factor: float
    law: Callable
    mode: str
    # of the class that this one goes before
    sigma_min: torch.Tensor
    sigma_max: torch.Tensor

    def timestep(self, sigma: Any) -> torch.Tensor:
        if self.mode == RETIMED:
            position = self.base.timestep(self.unmoved(sigma))
        else:
            position = self.base.timestep(sigma.clamp(max=self.base.sigma_max.to(sigma)))
        if sigma.ndim == 0:
            # Core's normal scheduler reads the positions of its two ends, as scalars: they are the
            # base's own ends. Chosen on the device, which a comparison in Python would wait for.
            for moved, end in (
                (self.sigma_min, self.base.sigma_min),
                (self.sigma_max, self.base.sigma_max),
            ):
                position = torch.where(
                    sigma == moved.to(sigma), self.base.timestep(end).to(position), position
                )
        return position

    def sigma(self, timestep: torch.Tensor) -> torch.Tensor:
        return self.moved(self.base.sigma(timestep))

    def percent_to_sigma(self, percent: float) -> float:
        sigma = self.base.percent_to_sigma(percent)
        return (
            sigma
            if sigma > _ENDLESS
            else float(self.moved(torch.tensor(sigma, dtype=torch.float64)))
        )

    def moved(self, sigma: Any) -> torch.Tensor:
        """The sigmas of the new schedule; what stands for pure noise in a zero-terminal-SNR
        schedule stays.
        """
        moved = self.law(self.factor, sigma)
        last = self._pure_noise(sigma)
        return (
            moved if last is None else torch.where(sigma < last, torch.minimum(moved, last), sigma)
        )

    def unmoved(self, sigma: Any) -> torch.Tensor:
        """Back from the new schedule to the base's own."""
        unmoved = self.law(1 / self.factor, sigma)
        last = self._pure_noise(sigma)
        return unmoved if last is None else torch.where(sigma < last, unmoved, sigma)

    def _pure_noise(self, sigma: Any) -> torch.Tensor | None:
        return (
            self.base.sigma_max.to(sigma) * (1 - 1e-6)
            if getattr(self.base, "zsnr", False)
            else None
        )


def _rescaled_sampling(base: Any, factor: float, law: Callable, mode: str) -> Any:
    own = type(base)
    kind: Any = (
        own if issubclass(own, _Rescaled) else type(f"Rescaled{own.__name__}", (_Rescaled, own), {})
    )
    sampling = kind.__new__(kind)
    sampling.__dict__ = copy.deepcopy(base.__dict__)
    sampling.base = base
    sampling.factor = factor
    sampling.law = law
    sampling.mode = mode
    sigmas = sampling.moved(base.sigmas.double())
    sampling.register_buffer("sigmas", sigmas.float())
    sampling.register_buffer("log_sigmas", sigmas.log().float())
    return sampling


def _is_discrete(sampling: Any) -> bool:
    kinds = comfy.model_sampling
    return isinstance(sampling, kinds.ModelSamplingDiscrete) and not isinstance(
        sampling, kinds.ModelSamplingDiscreteEDM | kinds.StableCascadeSampling
    )


_NOISE_SAMPLES = (
    comfy.model_sampling.EPS,
    comfy.model_sampling.CONST,
    comfy.model_sampling.COSMOS_RFLOW,
)
_TRAINED = {
    "SD15": 512, "SD20": 512, "SDXL": 1024, "SDXLRefiner": 1024, "SSD1B": 1024,
    "Segmind_Vega": 1024,
    "SD3": 1024, "Flux": 1024, "FluxSchnell": 1024, "AuraFlow": 1024, "PixArtAlpha": 1024,
    "PixArtSigma": 1024,
    "HunyuanDiT": 1024, "HunyuanDiT1": 1024, "Stable_Cascade_C": 1024, "QwenImage": 1024,
    "Chroma": 1024,
    "Lumina2": 1024, "ZImage": 1024, "Flux2": 1024, "FluxInpaint": 1024, "Krea2": 1024,
    "MageFlow": 1024, "Anima": 1024,
    # Of video: the square of as many pixels as the official templates have.
    "WAN21_T2V": 640, "WAN21_I2V": 640, "WAN22_T2V": 960, "LTXV": 640, "LTXAV": 640,
    "HunyuanVideo": 640, "HunyuanVideo15": 960, "WAN22_Animate": 640, "WAN21_Vace": 720,
    "MiniMaxH3": 1024,
}  # fmt: skip
