"""Evaluate a MODEL many times at its first denoising step, inside one sampling run of ComfyUI's own.

The run is prepared once, so that an evaluation costs little more than the network; LoRAs, ControlNets, areas and size
metadata take part exactly as in a KSampler.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import comfy.model_management
import comfy.model_sampling
import comfy.samplers
import torch

from ..host.hooks import forward_hooks, refuse_compiled
from .neuron_factors_comfy import Factors, scaled

Result = TypeVar("Result")


def latent_shape(patcher, width: int, height: int) -> tuple[int, int, int]:
    """Channels, height and width of this MODEL's latents for an image of that many pixels.

    Raises ValueError for a model of something else, such as videos.
    """
    form = patcher.get_model_object("latent_format")
    if form.latent_dimensions != 2:
        raise ValueError("This MODEL does not generate images, which is not supported: use a model of images.")
    factor = getattr(form, "spacial_downscale_ratio", 8)
    return form.latent_channels, height // factor, width // factor


def at_first_step(
    patcher,
    conditioning: list,
    shape: tuple[int, int, int],
    timestep: int,
    work: Callable[[FirstStep], Result],
    rows: int = 1,
) -> Result:
    """Run ``work(predict)`` with a conditioning and return what it returns.

    ``predict(noise (N, C, H, W), factors=None)`` gives the noise that the network sees, float32, without CFG, at
    ``timestep`` (0 to 999) when its input is just that noise; ``factors`` scale the neurons of layers, see
    ``neuron_factors.scaled``. It stops with ComfyUI's interrupt before an evaluation when the user has pressed Stop.
    ``rows``: how many rows of noise one evaluation has, for which ComfyUI makes room in memory.

    Flow models (SD3, Flux) begin at sigma 1, whatever ``timestep``, and predict noise - image instead of the noise.
    Less the noise both are the negative image that the network sees in pure noise, but for a scale.
    Raises ValueError for a MODEL that predicts neither, or that runs through torch.compile.
    """
    refuse_unscored(patcher)
    refuse_compiled(patcher)
    guider = comfy.samplers.CFGGuider(patcher)
    guider.inner_set_conds({"positive": conditioning})
    sampling = patcher.get_model_object("model_sampling")
    sigma = sampling.sigma_max if is_flow(patcher) else sampling.sigma(torch.tensor(float(timestep)))
    blank = torch.zeros(rows, *shape)
    sampler = _Work(work)
    guider.sample(blank, blank, sampler, torch.tensor([float(sigma), 0.0]), disable_pbar=True, seed=0)
    return sampler.result


def is_flow(patcher) -> bool:
    """Whether a MODEL is a flow model, such as SD3 and Flux."""
    return isinstance(patcher.get_model_object("model_sampling"), comfy.model_sampling.CONST)


def refuse_flow(patcher) -> None:
    """Raise ValueError for a MODEL that does not predict noise as SD does (flow models have no timesteps)."""
    if is_flow(patcher):
        raise ValueError(
            "This needs a model that predicts noise over 1000 timesteps, and this MODEL does not: use SD1.x, SD2.x, "
            "SDXL or the demo model."
        )
    refuse_unscored(patcher)


def refuse_unscored(patcher) -> None:
    """Raise ValueError for a MODEL that predicts neither noise over timesteps nor a flow."""
    sampling = patcher.get_model_object("model_sampling")
    predicts_noise = isinstance(sampling, comfy.model_sampling.EPS) and hasattr(sampling, "num_timesteps")
    if not predicts_noise and not is_flow(patcher):
        raise ValueError(
            "Finding NeMo is defined for models that predict noise over 1000 timesteps, and this MODEL does not: "
            "use SD1.x, SD2.x, SDXL, the demo model, or a flow model such as SD3 or Flux."
        )


class FirstStep:
    """``predict`` of a run: the noise that the network sees in noise (N, C, H, W); see ``at_first_step``.

    Rows that do not fit in free memory at once are evaluated in parts; otherwise what an evaluation has in common with
    the one before it is not computed again, unless ``replay`` is False.
    """

    def __init__(self, model_wrap, sigma: torch.Tensor, like: torch.Tensor, extra_args: dict):
        from .replay import Replay

        self._model, self._sigma, self._like, self._extra = model_wrap, sigma, like, extra_args
        self._network = model_wrap.inner_model.diffusion_model
        self._flow = isinstance(model_wrap.inner_model.model_sampling, comfy.model_sampling.CONST)
        wrappers = extra_args.get("model_options", {}).get("transformer_options", {}).get("wrappers", {})
        # What wraps the network may watch each of its layers, or count its calls.
        self._replay = None if any(map(any, map(dict.values, wrappers.values()))) else Replay(self._network)

    def __call__(self, noise: torch.Tensor, factors: Factors | None = None, replay: bool = True) -> torch.Tensor:
        count, factors = self._rows_at_once(noise.shape), factors or {}
        if count >= len(noise):
            return self._predict_again(noise, factors) if replay and factors else self._predict(noise, factors)
        if self._replay:
            self._replay.forget()
        parts = []
        for first in range(0, len(noise), count):
            rows = slice(first, first + count)
            of_rows = {path: factor if factor.ndim == 1 else factor[rows] for path, factor in factors.items()}
            parts.append(self._predict(noise[rows], of_rows))
        return torch.cat(parts)

    def hidden_units(self, noise: torch.Tensor, widths: dict[str, int], reduce: Callable) -> dict[str, Any]:
        """``reduce`` of what layers read (rows, tokens, width) by path: the last ``widths`` channels of it, float32."""
        seen: dict[str, Any] = {}

        def keep(path: str, hidden: torch.Tensor) -> None:
            seen[path] = reduce(hidden[..., -widths[path] :].float())

        receivers = [(path, functools.partial(keep, path)) for path in widths]
        with forward_hooks(self._network, ((), receivers)):
            self._predict(noise, {})
        return seen

    def _predict_again(self, noise: torch.Tensor, factors: Factors) -> torch.Tensor:
        if self._replay is None:
            return self._predict(noise, factors)
        replayed = self._replay.unchanged(noise, factors)
        with self._replay.running(noise, factors, replayed):
            predicted = self._predict(noise, factors)
        if replayed and self._replay.trusted is None:
            whole = self._predict(noise, factors)
            self._replay.trusted = torch.equal(predicted, whole)
            return whole
        return predicted

    def _predict(self, noise: torch.Tensor, factors: Factors) -> torch.Tensor:
        comfy.model_management.throw_exception_if_processing_interrupted()
        x = noise.to(self._like) * (self._sigma if self._flow else (1 + self._sigma**2).sqrt())
        with scaled(self._network, factors):
            denoised = self._model(x, self._sigma.expand(len(x)), **self._extra)
        return ((x - denoised) / self._sigma).float()

    def _rows_at_once(self, shape: torch.Size) -> int:
        """How many rows fit in free memory, by ComfyUI's own estimate and margin; halved until they do."""
        free = comfy.model_management.get_free_memory(self._like.device)
        count = shape[0]
        while count > 1 and self._model.inner_model.memory_required([count, *shape[1:]]) * 1.5 > free:
            count = (count + 1) // 2
        return count


class _Work(comfy.samplers.Sampler):
    """A sampler that lets ``work`` evaluate the model as often as it likes."""

    def __init__(self, work):
        self._work, self.result = work, None

    def sample(
        self, model_wrap, sigmas, extra_args, callback, noise, latent_image=None, denoise_mask=None, disable_pbar=False
    ):
        self.result = self._work(FirstStep(model_wrap, sigmas[0], noise, extra_args))
        return noise


def value_outputs(patcher, contexts: torch.Tensor, paths: list[str]) -> dict[str, torch.Tensor]:
    """What layers put out for text embeddings (N, tokens, D): path -> (N, tokens, channels), on the model's device.

    Computed by the layers as the patcher has loaded them, so that LoRAs count. Raises ValueError for embeddings that
    another model's text encoder made.
    """
    for width in {patcher.model.diffusion_model.get_submodule(path).in_features for path in paths}:
        if contexts.shape[-1] != width:
            raise ValueError(
                f"The text embedding has {contexts.shape[-1]} channels and this MODEL reads {width}: connect the "
                "CLIP that belongs to the MODEL."
            )
    comfy.model_management.load_models_gpu([patcher])
    model = patcher.model
    contexts = contexts.to(patcher.load_device, model.manual_cast_dtype or model.get_dtype())
    return {path: model.diffusion_model.get_submodule(path)(contexts) for path in paths}


def hidden_units(
    patcher, conditioning: list, noise: torch.Tensor, timestep: int, widths: dict[str, int], reduce: Callable
) -> dict[str, Any]:
    """``reduce`` of the hidden units of feed-forward layers (rows, tokens, width), by path, at the first step.

    ``noise`` (rows, C, H, W); ``widths``: how many hidden units each layer has. See ``at_first_step``.
    """
    work = functools.partial(FirstStep.hidden_units, noise=noise, widths=widths, reduce=reduce)
    rows, channels, height, width = noise.shape
    return at_first_step(patcher, conditioning, (channels, height, width), timestep, work, rows)


def embedding(conditioning: list) -> torch.Tensor:
    """The text embedding (1, tokens, D) of a CONDITIONING."""
    return conditioning[0][0]


def probe_outputs(patcher, paths: list[str]) -> dict[str, torch.Tensor]:
    """Outputs (64, channels) of layers for one fixed random input: which distinguish one model from another."""
    result = {}
    for path in paths:
        width = patcher.model.diffusion_model.get_submodule(path).in_features
        probe = torch.randn(1, 64, width, generator=torch.Generator().manual_seed(2406))
        result[path] = value_outputs(patcher, probe, [path])[path][0].float().cpu()
    return result
