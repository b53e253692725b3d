"""Evaluate a MODEL many times at its first denoising step, inside one sampling run of ComfyUI's
own.

The run is prepared once, so that an evaluation costs little more than the network; LoRAs,
ControlNets, areas and size metadata take part exactly as in a KSampler.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import comfy.model_management
import comfy.model_sampling
import comfy.samplers
import comfy.utils
import torch

from ..host.evaluate import takes_batches
from ..host.hooks import forward_hooks, refuse_compiled
from ..host.latent_shapes import matching_channels, pixels_a_position, split, with_silence
from .memorization_score import OFFICIAL_TIMESTEP, seeded_noise
from .neuron_factors_comfy import Factors, scaled, values_of_text
from .neuron_layers import (
    NeuronLayer,
    NeuronType,
    block_of,
    has_value_layers,
    is_text_values,
    keep_text_value_widths,
    knows_text_values,
    neuron_layers,
    text_value_layers,
)

if TYPE_CHECKING:
    from ..common.attention import AttentionCall
    from ..host.socket_types import ModelPatcher

Result = TypeVar("Result")

#: Why there are no value neurons.
UNREADABLE = (
    "How this MODEL reads its text cannot be seen, so it has no value neurons: set neuron_type to "
    "feed_forward."
)


def latent_shape(patcher: ModelPatcher, width: int, height: int) -> tuple[int, ...]:
    """The shape (C, H, W) of this MODEL's latents for an image of that many pixels; (C, 1, H, W),
    one frame, where its latents have frames.

    Raises ValueError for a model of something else, such as sound.
    """
    latent_format = patcher.get_model_object("latent_format")
    dimensions = latent_format.latent_dimensions
    if dimensions not in (2, 3):
        raise ValueError(
            "This MODEL does not generate images, which is not supported: use a model of images."
        )
    side = pixels_a_position(patcher)
    frames = (1,) * (dimensions - 2)
    shape = (1, latent_format.latent_channels, *frames, height // side, width // side)
    empty = matching_channels(torch.zeros(shape), patcher)
    return tuple(split(empty)[0].shape[1:])


def at_first_step(
    patcher: ModelPatcher,
    conditioning: list,
    shape: tuple[int, ...],
    timestep: int,
    work: Callable[[FirstStep], Result],
    rows: int = 1,
) -> Result:
    """Run ``work(predict)`` with a conditioning and return what it returns.

    ``predict(noise (N, *shape), factors=None)`` gives the noise that the network sees, float32,
    without CFG, at ``timestep`` (0 to 999) when its input is just that noise; ``factors`` scale the
    neurons of layers, see ``neuron_factors.scaled``. It stops with ComfyUI's interrupt before an
    evaluation when the user has pressed Stop. ``rows``: how many rows of noise one evaluation has,
    for which ComfyUI makes room in memory.

    Models without discrete timesteps, such as flow models, begin at their highest noise level,
    whatever ``timestep``. Flow models predict noise - image instead of the noise. Less the noise
    both are the negative image that the network sees in pure noise, but for a scale. Raises
    ValueError for a MODEL that has no such step, or that runs through torch.compile.
    """
    refuse_unscored(patcher)
    refuse_compiled(patcher)
    guider = comfy.samplers.CFGGuider(patcher)
    guider.inner_set_conds({"positive": conditioning})
    sampling = patcher.get_model_object("model_sampling")
    sigma = sigma_at_timestep(sampling, timestep) if has_timesteps(sampling) else sampling.sigma_max
    rows = rows if takes_batches(patcher.model) else 1
    blank = with_silence(torch.zeros(rows, *shape), patcher)
    sampler = _Work(work, [part.shape for part in split(blank)[1:]])
    guider.sample(
        blank, blank, sampler, torch.tensor([float(sigma), 0.0]), disable_pbar=True, seed=0
    )
    return sampler.result


def is_flow(patcher: ModelPatcher) -> bool:
    """Whether a MODEL is a flow model, such as SD3 and Flux."""
    return isinstance(patcher.get_model_object("model_sampling"), comfy.model_sampling.CONST)


def has_timesteps(sampling: Any) -> bool:
    """Whether a model_sampling counts its noise levels, such as that of SD and SDXL; those of flow
    models, EDM and Cosmos do not.
    """
    is_flow = isinstance(sampling, comfy.model_sampling.CONST)
    return hasattr(sampling, "num_timesteps") and not is_flow


def sigma_at_timestep(sampling: Any, timestep: float | torch.Tensor) -> torch.Tensor:
    """The noise levels of timesteps, thousandths of the way from the image to noise: float32, as
    many as there are timesteps.
    """
    timesteps = torch.as_tensor(timestep, dtype=torch.float32)
    if has_timesteps(sampling):
        return sampling.sigma(timesteps * (sampling.num_timesteps / 1000)).float()
    highest = float(sampling.sigma_max)
    levels = [
        min(float(sampling.percent_to_sigma(1 - one / 1000)), highest)
        for one in timesteps.flatten().tolist()
    ]
    return torch.tensor(levels, device=timesteps.device).view_as(timesteps)


def refuse_unscored(patcher: ModelPatcher) -> None:
    """Raise ValueError for a MODEL that does not begin with noise."""
    sampling = patcher.get_model_object("model_sampling")
    # Of newer ComfyUI there is a second one, for flow models.
    classes = ("IMG_TO_IMG", "IMG_TO_IMG_FLOW")
    found = [getattr(comfy.model_sampling, name, None) for name in classes]
    if isinstance(sampling, tuple(kind for kind in found if kind is not None)):
        raise ValueError(
            "This MODEL turns one image into another and sees no noise, so it has no first step in "
            "pure noise: use a model that generates images from noise."
        )


class FirstStep:
    """``predict`` of a run: the noise that the network sees in noise (N, C, ...); see
    ``at_first_step``.

    Rows that do not fit in free memory at once are evaluated in parts; otherwise what an evaluation
    has in common with the one before it is not computed again, unless ``replay`` is False. A sound
    of the shapes ``sounds``, without which the network makes no image, begins with the same noise
    in all evaluations.
    """

    def __init__(
        self,
        model_wrap: Any,
        sigma: torch.Tensor,
        like: torch.Tensor,
        extra_args: dict,
        sounds: list[torch.Size],
    ):
        from .replay import Replay

        generator = torch.Generator().manual_seed(0)
        self._sounds = [torch.randn(shape, generator=generator) for shape in sounds]

        self._model = model_wrap
        self._sigma = sigma
        self._like = like
        self._extra = extra_args
        self._network = model_wrap.inner_model.diffusion_model
        self._sampling = model_wrap.inner_model.model_sampling
        wrappers = (
            extra_args.get("model_options", {}).get("transformer_options", {}).get("wrappers", {})
        )
        # What wraps the network may watch each of its layers, or count its calls.
        self._replay = (
            None if any(map(any, map(dict.values, wrappers.values()))) else Replay(self._network)
        )

    def __call__(
        self, noise: torch.Tensor, factors: Factors | None = None, replay: bool = True
    ) -> torch.Tensor:
        count = self._rows_at_once(noise.shape)
        factors = factors or {}
        if count >= len(noise):
            return (
                self._predict_again(noise, factors)
                if replay and factors
                else self._predict(noise, factors)
            )
        if self._replay:
            self._replay.forget()
        parts = []
        for first in range(0, len(noise), count):
            rows = slice(first, first + count)
            of_rows = {
                path: factor if factor.ndim == 1 else factor[rows]
                for path, factor in factors.items()
            }
            parts.append(self._predict(noise[rows], of_rows))
        return torch.cat(parts)

    def activations(
        self, noise: torch.Tensor, widths: dict[str, int], reduce: Callable
    ) -> dict[str, Any]:
        """``reduce`` of the neurons of layers (rows, tokens, width) by path, float32: the last
        ``widths`` channels of what a layer reads, or a block's values at the text's positions.

        Blocks whose image does not read the text are left out.
        """
        seen: dict[str, Any] = {}

        def keep(path: str, hidden: torch.Tensor) -> None:
            units = hidden[..., -widths[path] :].float()
            # tokens may stand on their grid (Cosmos), or be those of the one row (MiniMax H3)
            seen[path] = reduce(units.flatten(1, -2) if units.ndim > 2 else units[None])

        def keep_values(path: str, attention: AttentionCall) -> None:
            values = values_of_text(attention)
            if values is not None and path not in seen:
                seen[path] = reduce(values.movedim(1, 2).flatten(2).float())

        inputs = [
            (path, functools.partial(keep, path)) for path in widths if not is_text_values(path)
        ]
        attentions = [
            (block_of(path), functools.partial(keep_values, path))
            for path in widths
            if is_text_values(path)
        ]
        with forward_hooks(self._network, ((), inputs, attentions), watches=True):
            self._predict(noise, {})
        return {path: seen[path] for path in widths if path in seen}

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
        blank = torch.zeros_like(self._like[:1])
        shapes = []
        if self._sounds:
            parts = [noise, *(sound.to(noise) for sound in self._sounds)]
            noise, shapes = comfy.utils.pack_latents(parts)
        # as a sampler begins: for models that count timesteps the network's input is the noise then
        x = self._sampling.noise_scaling(self._sigma, noise.to(self._like), blank, True)
        with scaled(self._network, factors):
            denoised = self._model(x, self._sigma.expand(len(x)), **self._extra)
        predicted = ((x - denoised) / self._sigma).float()
        return comfy.utils.unpack_latents(predicted, shapes)[0] if shapes else predicted

    def _rows_at_once(self, shape: torch.Size) -> int:
        """How many rows fit in free memory, by ComfyUI's own estimate and margin; halved until they
        do.
        """
        if not takes_batches(self._model.inner_model):
            return 1
        free = comfy.model_management.get_free_memory(self._like.device)
        count = shape[0]
        while (
            count > 1 and self._model.inner_model.memory_required([count, *shape[1:]]) * 1.5 > free
        ):
            count = (count + 1) // 2
        return count


class _Work(comfy.samplers.Sampler):
    """A sampler that lets ``work`` evaluate the model as often as it likes."""

    def __init__(self, work: Callable, sounds: list[torch.Size]):
        self._work = work
        self._sounds = sounds
        self.result: Any = None

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
        step = FirstStep(
            model_wrap, sigmas[0], like=noise, extra_args=extra_args, sounds=self._sounds
        )
        self.result = self._work(step)
        return noise


def value_outputs(
    patcher: ModelPatcher, contexts: torch.Tensor, paths: list[str]
) -> dict[str, torch.Tensor]:
    """What layers put out for text embeddings (N, tokens, D): path -> (N, tokens, channels), on the
    model's device.

    Computed by the layers as the patcher has loaded them, so that LoRAs count. Raises ValueError
    for embeddings that another model's text encoder made.
    """
    for width in {patcher.model.diffusion_model.get_submodule(path).in_features for path in paths}:
        if contexts.shape[-1] != width:
            raise ValueError(
                f"The text embedding has {contexts.shape[-1]} channels and this MODEL reads "
                f"{width}: connect the CLIP that belongs to the MODEL."
            )
    comfy.model_management.load_models_gpu([patcher])
    model = patcher.model
    contexts = contexts.to(patcher.load_device, model.manual_cast_dtype or model.get_dtype())
    return {path: model.diffusion_model.get_submodule(path)(contexts) for path in paths}


def activations(
    patcher: ModelPatcher,
    conditioning: list,
    noise: torch.Tensor,
    timestep: int,
    widths: dict[str, int],
    reduce: Callable,
) -> dict[str, Any]:
    """``reduce`` of the neurons of layers (rows, tokens, width), by path, at the first step.

    ``noise`` (rows, C, ...); ``widths``: how many neurons each layer has, which counts for
    feed-forward layers. See ``at_first_step``.
    """
    work = functools.partial(FirstStep.activations, noise=noise, widths=widths, reduce=reduce)
    rows, *shape = noise.shape
    return at_first_step(
        patcher,
        conditioning,
        shape=tuple(shape),
        timestep=timestep,
        work=work,
        rows=rows,
    )


def layers_of_type(
    patcher: ModelPatcher,
    neuron_type: str,
    conditioning: Callable[[], list],
    shape: tuple[int, ...],
) -> list[NeuronLayer]:
    """The layers of one type of neurons of a MODEL.

    The values of a transformer at the text's positions are found by evaluating it once with a
    CONDITIONING and a latent of a ``shape``. Raises ValueError for a MODEL without any.
    """
    network = patcher.model.diffusion_model
    if neuron_type != NeuronType.VALUE or has_value_layers(network):
        return neuron_layers(network, neuron_type)
    if not knows_text_values(network):
        widths = activations(
            patcher,
            conditioning(),
            noise=seeded_noise(shape, 1, 0),
            timestep=OFFICIAL_TIMESTEP,
            widths={layer.path: 0 for layer in text_value_layers(network)},
            reduce=lambda values: values.shape[-1],
        )
        if not widths:
            raise ValueError(UNREADABLE)
        keep_text_value_widths(network, widths)
    return text_value_layers(network)


def embedding(conditioning: list) -> torch.Tensor:
    """The text embedding (1, tokens, D) of a CONDITIONING."""
    return conditioning[0][0]


def probe_outputs(patcher: ModelPatcher, paths: list[str]) -> dict[str, torch.Tensor]:
    """Outputs (64, channels) of layers for one fixed random input: which distinguish one model from
    another.
    """
    result = {}
    for path in paths:
        if is_text_values(path):
            result[path] = _probed_block(patcher, block_of(path))
            continue
        width = patcher.model.diffusion_model.get_submodule(path).in_features
        probe = torch.randn(1, 64, width, generator=torch.Generator().manual_seed(2406))
        result[path] = value_outputs(patcher, probe, [path])[path][0].float().cpu()
    return result


def _probed_block(patcher: ModelPatcher, block: str) -> torch.Tensor:
    """What the linear layers of a block put out for a fixed random input each, side by side
    (1, channels).
    """
    comfy.model_management.load_models_gpu([patcher])
    model = patcher.model
    dtype = model.manual_cast_dtype or model.get_dtype()
    generator = torch.Generator().manual_seed(2406)
    outputs = []
    for name, module in model.diffusion_model.get_submodule(block).named_modules():
        if hasattr(module, "in_features") and ".experts." not in f".{name}":
            probe = torch.randn(1, module.in_features, generator=generator)
            outputs.append(module(probe.to(patcher.load_device, dtype)).float().cpu())
    return torch.cat(outputs, 1)
