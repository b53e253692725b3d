"""Evaluate a MODEL once at a noise level, through ComfyUI's own sampling path.

LoRAs, ControlNets, areas, hooks and SDXL's size metadata take part exactly as in a KSampler.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import comfy.model_management
import comfy.sample
import comfy.samplers
import torch

from .latent_shapes import batched, join, split, with_silence

if TYPE_CHECKING:
    from .socket_types import VAE, BaseModel, ModelPatcher

TIMESTEP = "timestep"
PERCENT = "percent"
SIGMA = "sigma"
_STEPS = 1000
#: Latents that are sampled together at most: more gain little, and Stop waits for a call.
_SAMPLED_TOGETHER = 8
#: Margin of ComfyUI's own estimate of what a row takes.
_MARGIN = 1.5
#: Networks, by `name_of`, that evaluate one latent at a time, or lay the texts of a batch in one
#: row (PixArt), where a change that differs between rows does not find them.
_ONE_AT_A_TIME = ("MiniMaxH3", "PixArt")


def sigma_at(patcher: ModelPatcher, value: float, unit: str) -> float:
    """The sigma of a noise level, kept inside the model's range.

    ``unit``: TIMESTEP (0 to 999; for a flow model, whose sigma is the time, thousandths of it),
    PERCENT (of the sampling range, 0 is pure noise and 1 is none, as in ComfyUI's own nodes) or
    SIGMA.
    """
    sampling = patcher.get_model_object("model_sampling")
    if unit == PERCENT:
        sigma = sampling.percent_to_sigma(value)
    elif unit == TIMESTEP and hasattr(sampling, "num_timesteps"):
        sigma = float(sampling.sigma(torch.tensor(float(value))))
    else:
        sigma = value if unit == SIGMA else value / _STEPS
    return min(max(float(sigma), float(sampling.sigma_min)), float(sampling.sigma_max))


def sigmas_of(
    patcher: ModelPatcher, start_percent: float, end_percent: float
) -> tuple[float, float]:
    """The noise levels from which and to which a patch acts; 0 and 1 leave nothing of the run
    out.
    """
    sampling = patcher.get_model_object("model_sampling")
    first = float("inf") if start_percent <= 0 else float(sampling.percent_to_sigma(start_percent))
    last = 0.0 if end_percent >= 1 else float(sampling.percent_to_sigma(end_percent))
    return first, last


def timestep_of(patcher: ModelPatcher, sigma: float) -> float:
    """The timestep that the network is given at a sigma: for SD1.5 and SDXL the integer
    timestep.
    """
    return float(patcher.get_model_object("model_sampling").timestep(torch.tensor(sigma)))


@dataclass
class _Evaluated:
    timestep: torch.Tensor
    levels: tuple[float, ...] = ()


_evaluated: _Evaluated | None = None


@contextmanager
def evaluating(timestep: torch.Tensor) -> Iterator[None]:
    """One evaluation at noise levels (rows,): within it ``levels_of`` the same tensor waits for the
    device once.

    Blocks of several patches of a MODEL lie within each other. ComfyUI hands the tensor of an
    evaluation to each call of the network as ``transformer_options["sigmas"]``.
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


def name_of(model: BaseModel) -> str:
    """The name of a MODEL's inner model, as ComfyUI calls the architecture ("SD15", "SDXL",
    "Flux").
    """
    name = type(model).__name__
    return type(model.model_config).__name__ if name == "BaseModel" else name


def takes_batches(model: BaseModel) -> bool:
    """Whether a MODEL's network evaluates several latents in a call and keeps their rows apart."""
    return name_of(model) not in _ONE_AT_A_TIME


@contextmanager
def untouched() -> Iterator[None]:
    """Give the global generators back as they were, whatever is seeded or drawn inside."""
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    with torch.random.fork_rng(devices=list(devices)):
        yield


def noise_for(latent: torch.Tensor, seed: int) -> torch.Tensor:
    """The noise that KSampler makes from this seed, drawn without touching the global generator.

    Latents of several parts (video with sound) get theirs one after the other.
    """
    generator = torch.Generator("cpu").manual_seed(seed)
    noise = [
        torch.randn(part.shape, dtype=part.dtype, generator=generator) for part in split(latent)
    ]
    return join(noise, like=latent)


def evaluate(
    patcher: ModelPatcher, positive: list, samples: dict, sigma: float, seed: int
) -> torch.Tensor:
    """Noise a LATENT to ``sigma`` and evaluate the MODEL on it once, without CFG; returns the
    denoised latent.

    Clean latents as the VAE encodes them; stops before the evaluation when the user has pressed
    Stop.
    """
    comfy.model_management.throw_exception_if_processing_interrupted()
    latent = comfy.sample.fix_empty_latent_channels(patcher, samples["samples"])
    latent = with_silence(latent, patcher)
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
        self,
        model_wrap: Any,
        sigmas: torch.Tensor,
        extra_args: dict,
        callback: Callable,
        noise: torch.Tensor,
        latent_image: torch.Tensor | None = None,
        denoise_mask: torch.Tensor | None = None,
        disable_pbar: bool = False,
    ) -> torch.Tensor:
        sampling = model_wrap.inner_model.model_sampling
        noised = sampling.noise_scaling(sigmas[0], noise, latent_image, max_denoise=False)
        return model_wrap(noised, sigmas[0].expand(noised.shape[0]), **extra_args)


def sample_latents(
    patcher: ModelPatcher,
    positive: list,
    negative: list,
    latent: torch.Tensor,
    steps: int,
    cfg: float,
    seed: int,
) -> torch.Tensor:
    """Latents sampled from pure noise, of the shape of ``latent``. Euler with the normal
    schedule.
    """
    blank = join([torch.zeros_like(part) for part in split(latent)], like=latent)
    latent = comfy.sample.fix_empty_latent_channels(patcher, blank)
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
    patcher: ModelPatcher,
    vae: VAE,
    positive: list,
    negative: list,
    shape: tuple[int, ...],
    count: int,
    seed: int,
    **how: Any,
) -> torch.Tensor:
    """``count`` images (B, H, W, 3) from pure noise; ``how``: steps, cfg. Euler with the normal
    schedule. ``shape``: of a latent, (C, H, W) or with frames (C, F, H, W).
    """
    blank = torch.zeros(count, *shape)
    images = vae.decode(
        sample_latents(
            patcher,
            positive,
            negative=negative,
            latent=blank,
            steps=how["steps"],
            cfg=how["cfg"],
            seed=seed,
        )
    )
    return images.flatten(0, -4)  # of one frame each where the latent has frames


def sample_seeds(
    patcher: ModelPatcher,
    positive: list,
    negative: list,
    latent: dict,
    seeds: list[int],
    steps: int,
    cfg: float,
    draw: Callable = noise_for,
) -> torch.Tensor:
    """Latents (N, C, ...) of N seeds in one batch, each as KSampler samples a LATENT of one image
    from that seed.

    Euler with the normal schedule at denoise 1; every seed's noise is KSampler's bit for bit, or
    ``draw(latent, seed)`` of the latent's tensor.
    """
    single = comfy.sample.fix_empty_latent_channels(patcher, latent["samples"])
    return comfy.sample.sample(
        patcher,
        batched([draw(single, seed) for seed in seeds]),
        steps,
        cfg,
        "euler",
        "normal",
        positive,
        negative,
        batched([single] * len(seeds)),
        noise_mask=latent.get("noise_mask"),
        disable_pbar=True,
        seed=seeds[0],
    )


def sample_each(
    patcher: ModelPatcher,
    conditions: Sequence[list],
    latent: dict,
    seeds: Sequence[int],
    *,
    steps: int,
    negative: list | None = None,
    cfg: float = 1.0,
) -> Iterator[torch.Tensor]:
    """A latent (1, C, ...) of each CONDITIONING from a seed of its own, as ``sample_seeds`` samples
    it; without a ``negative`` one there is no CFG.

    Neighbors whose texts can be joined share calls, as many as fit in free memory.
    """
    first = 0
    while first < len(conditions):
        together = list(conditions[first : first + _SAMPLED_TOGETHER])
        rows = len(together) if takes_batches(patcher.model) else 1
        rows = _rows_in_memory(patcher, rows, split(latent["samples"])[0].shape[1:])
        positive = joined_conditioning(together[:rows])
        while positive is None:
            rows -= 1
            positive = joined_conditioning(together[:rows])
        sampled = sample_seeds(
            patcher,
            positive,
            negative=positive if negative is None else negative,
            latent=latent,
            seeds=list(seeds[first : first + rows]),
            steps=steps,
            cfg=1.0 if negative is None else cfg,
        )
        for row in range(rows):
            one = slice(row, row + 1)
            yield join([part[one] for part in split(sampled)], like=sampled)
        first += rows


def joined_conditioning(conditions: Sequence[list]) -> list | None:
    """A CONDITIONING of one row for each of several; None where they hold more than texts of one
    length.
    """
    if len(conditions) == 1:
        return conditions[0]
    if any(len(condition) != 1 for condition in conditions):
        return None
    embeddings = [condition[0][0] for condition in conditions]
    pooled = [condition[0][1].get("pooled_output") for condition in conditions]
    extras = [condition[0][1].keys() - {"pooled_output"} for condition in conditions]
    if any(extras) or len({embedding.shape for embedding in embeddings}) > 1:
        return None
    if all(vector is None for vector in pooled):
        # Networks such as Chroma's ask for the entry, though it is None.
        named = any("pooled_output" in condition[0][1] for condition in conditions)
        return [[torch.cat(embeddings), {"pooled_output": None} if named else {}]]
    if any(vector is None for vector in pooled):
        return None
    return [[torch.cat(embeddings), {"pooled_output": torch.cat(pooled)}]]


def _rows_in_memory(patcher: ModelPatcher, count: int, shape: Sequence[int]) -> int:
    """How many of ``count`` latents of a shape (C, ...) fit in free memory; at least 1."""
    free = comfy.model_management.get_free_memory(patcher.load_device)
    while count > 1 and _MARGIN * patcher.model.memory_required([count, *shape]) > free:
        count = (count + 1) // 2
    return count
