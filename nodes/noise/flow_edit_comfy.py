"""FlowEdit in ComfyUI: the model's own evaluation with two prompts, noise levels and scales."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import comfy.model_management
import comfy.samplers
import comfy.utils
import torch

from ..host.evaluate import untouched
from ..host.latent_shapes import join, matching_channels, split, with_silence
from ..host.progress import Progress, check_stop
from ..host.step_caches import without_step_caches
from .flow_edit import follow_difference
from .image_to_noise_comfy import check_encoded, check_levels
from .noise_objects_comfy import SeededNoise

if TYPE_CHECKING:
    from ..host.socket_types import ModelPatcher

_SEEDS = 2**63 - 1  # as many as torch draws from


def edit(
    patcher: ModelPatcher,
    prompts: dict[str, list],
    latent: dict,
    *,
    sigmas: torch.Tensor,
    cfg: tuple[float, float],
    seed: int,
) -> torch.Tensor:
    """The samples of a LATENT, edited in the VAE's scale.

    ``prompts``: CONDITIONING by "source", "target" and "negative". ``cfg``: of source and target.
    A noise mask limits the edit. Raises ValueError for an empty LATENT, and for noise levels that
    do not fall or reach 0 before the last.
    """
    check_encoded(latent)
    check_levels(sigmas)
    given = matching_channels(latent["samples"], patcher)
    samples = with_silence(given, patcher)
    mask = latent.get("noise_mask")
    if mask is not None and len(split(samples)) > 1:
        raise ValueError("A noise mask on video with sound is not supported: remove the mask.")
    guider = _TwoPrompts(without_step_caches(patcher), prompts, cfg)
    steps = len(sigmas) - 1
    sampler = _FlowEdit({**latent, "samples": samples}, seed, steps)
    edited = guider.sample(
        join([torch.zeros_like(part) for part in split(samples)], like=samples),
        samples,
        sampler,
        sigmas,
        denoise_mask=mask,
        callback=_callback(patcher, samples, steps),
        disable_pbar=True,
        seed=seed,
    )
    parts = split(edited)[: len(split(given))]
    device = comfy.model_management.intermediate_device()
    return join([part.to(device, split(given)[0].dtype) for part in parts], like=given)


def _callback(patcher: ModelPatcher, samples: torch.Tensor, steps: int) -> Callable:
    """Progress and, of latents of one part, ComfyUI's preview after each step."""
    import latent_preview

    if len(split(samples)) == 1:
        return latent_preview.prepare_callback(patcher, steps)
    progress = Progress(steps)
    return lambda step, *_: progress.show(step + 1)


class _TwoPrompts(comfy.samplers.CFGGuider):
    """Evaluates the model with one of two positive prompts, each with its own CFG.

    Whichever prompt is evaluated is the "positive" one: nodes that act on the positive prompt act
    on both, and what one prompt brings for the other side of CFG (areas, a ControlNet) comes with
    it alone.
    """

    def __init__(self, patcher: ModelPatcher, prompts: dict[str, list], cfg: tuple[float, float]):
        super().__init__(patcher)
        self.inner_set_conds(
            {
                "positive": prompts["target"],
                "negative": prompts["negative"],
                "source": prompts["source"],
            }
        )
        self.conds: dict[str, list] = {}
        self._cfg = dict(zip(("source", "target"), cfg, strict=True))
        self._sides: dict[str, dict[str, list]] = {}
        self._shapes: dict[str, Any] = {}

    def inner_sample(self, *given: Any, **more: Any) -> torch.Tensor:
        """ComfyUI's, which prepares the prompts of the target; `prepare_source` does the others."""
        source, negative = self.conds.pop("source"), self.conds["negative"]
        self._sides = {"source": {"positive": source, "negative": negative}}
        self._shapes = {name: more[name] for name in ("latent_shapes",) if name in more}
        try:
            return super().inner_sample(*given, **more)
        finally:
            # ComfyUI cleans up after the ControlNets of all that is here.
            self.conds = {**self.conds, "source": self._sides["source"]["positive"]}
            self._sides = {}

    def prepare_source(
        self,
        noise: torch.Tensor,
        latent_image: torch.Tensor,
        denoise_mask: torch.Tensor | None,
        seed: int | None,
    ) -> None:
        """Prepare the source's prompts as ComfyUI does those of the target."""
        self._sides["target"] = self.conds
        self._sides["source"] = comfy.samplers.process_conds(
            self.inner_model,
            noise,
            self._sides["source"],
            self.model_patcher.load_device,
            latent_image,
            denoise_mask,
            seed,
            **self._shapes,
        )

    def denoised(
        self, role: str, state: torch.Tensor, sigma: float, extra_args: dict
    ) -> torch.Tensor:
        """The model's prediction with the prompt "source" or "target"."""
        check_stop()
        self.conds = self._sides[role]
        self.cfg = self._cfg[role]
        level = torch.full((len(state),), sigma, device=state.device, dtype=state.dtype)
        try:
            return self(state, level, **extra_args)
        finally:
            self.conds = self._sides["target"]


class _FlowEdit(comfy.samplers.Sampler):
    def __init__(self, latent: dict, seed: int, steps: int):
        self._latent = latent
        draws = torch.Generator().manual_seed(seed)
        self._seeds = torch.randint(_SEEDS, (steps,), generator=draws).tolist()

    def sample(
        self,
        model_wrap: _TwoPrompts,
        sigmas: torch.Tensor,
        extra_args: dict,
        callback: Callable | None,
        noise: torch.Tensor,
        latent_image: torch.Tensor,
        denoise_mask: torch.Tensor | None = None,
        disable_pbar: bool = False,
    ) -> torch.Tensor:
        sampling = model_wrap.inner_model.model_sampling
        steps = len(sigmas) - 1
        model_wrap.prepare_source(noise, latent_image, denoise_mask, extra_args.get("seed"))

        def denoise(role: str) -> Callable[[torch.Tensor, float], torch.Tensor]:
            return lambda state, sigma: model_wrap.denoised(role, state, sigma, extra_args)

        def noised(step: int, sigma: float) -> torch.Tensor:
            drawn = self._drawn(step).to(latent_image)
            return sampling.noise_scaling(sigmas[step], drawn, latent_image, max_denoise=False)

        def shown(step: int, edited: torch.Tensor) -> None:
            if callback is not None:
                callback(step, edited, edited, steps)

        return follow_difference(
            denoise("source"),
            denoise("target"),
            noised,
            latent=latent_image,
            sigmas=sigmas.tolist(),
            mask=denoise_mask,
            shown=shown,
        )

    def _drawn(self, step: int) -> torch.Tensor:
        """Noise of a seed of its own for each step, in the shape in which a sampler has it."""
        with untouched():
            parts = split(SeededNoise(self._seeds[step]).generate_noise(self._latent))
        # Samplers get the parts of a LATENT as one row of numbers an image.
        return parts[0] if len(parts) == 1 else comfy.utils.pack_latents(parts)[0]
