"""MODELs and CLIPs in true shapes whose networks are left out, so that what nodes and ComfyUI do
around them can be timed.

Weights are memory that nobody has written to or reads.
"""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable, Mapping

import torch
from torch import nn

from studies.common import host

from .sizes import Size, drawn, module

STEPS = 30
_TOKENS = 77
_POOLED = 1280
_ENCODERS = {"sd15": ("l",), "sdxl": ("l", "g")}


def model_of(
    architecture: str,
    layers: Mapping[str, torch.Tensor],
    output: Callable[[torch.Tensor], torch.Tensor],
):
    """A MODEL whose network calls some of its layers, each of which puts out the first rows of a
    tensor, and then puts out ``output`` of its latents.
    """
    import comfy.model_base
    import comfy.model_patcher

    config = _configuration(architecture)
    config.set_inference_dtype(torch.float32, None)
    with torch.device("meta"):
        model = config.get_model({}, device="meta")
    model.to_empty(device="cpu")
    kind = comfy.model_base.ModelType.EPS
    model.model_sampling = comfy.model_base.model_sampling(config, kind)
    network = model.diffusion_model
    for path, tensor in layers.items():
        _replace(network.get_submodule(path), tensor)

    def forward(x: torch.Tensor, *_args: object, **_options: object) -> torch.Tensor:
        for path in layers:
            network.get_submodule(path)(x)
        return output(x)

    network.forward = forward
    cpu = torch.device("cpu")
    return comfy.model_patcher.ModelPatcher(model, cpu, cpu)


def _replace(layer: nn.Module, tensor: torch.Tensor) -> None:
    layer.forward = lambda x, *_args, **_options: tensor[: len(x)]


def _configuration(architecture: str):
    import comfy.supported_models

    kinds = {"sd15": comfy.supported_models.SD15, "sdxl": comfy.supported_models.SDXL}
    network = module("activations.meta_networks_comfy").ARCHITECTURES[architecture]
    return kinds[architecture](dict(network))


def clip_of(size: Size):
    """A CLIP of ComfyUI's own classes that gives every text the same embedding."""
    import comfy.sd

    target = _configuration(size.architecture).clip_target({})
    on_meta = {"initial_device": torch.device("meta"), "dtype": torch.float32}
    clip = comfy.sd.CLIP(target, model_options=on_meta)
    clip.cond_stage_model.to_empty(device="cpu")
    embedding = drawn(1, _TOKENS, size.width)
    pooled = drawn(1, _POOLED)
    clip.cond_stage_model.encode_token_weights = lambda _tokens: (embedding, pooled)
    return clip


def conditioning(size: Size, seed: int = 0) -> list:
    """A CONDITIONING of random numbers."""
    return [[drawn(1, _TOKENS, size.width, seed=seed), {"pooled_output": drawn(1, _POOLED)}]]


def guider_of(model, size: Size):
    """The guider of a KSampler, with CFG."""
    import comfy.samplers

    guider = comfy.samplers.CFGGuider(model)
    guider.set_conds(conditioning(size), conditioning(size, seed=1))
    guider.set_cfg(7.0)
    return guider


def sampled(guider, side: int) -> torch.Tensor:
    """A run of STEPS steps."""
    import comfy.samplers

    sigmas = torch.linspace(14.6, 0.03, STEPS + 1)
    noise = drawn(1, 4, side, side)
    sampler = comfy.samplers.sampler_object("euler")
    blank = torch.zeros_like(noise)
    return guider.sample(noise, blank, sampler, sigmas, disable_pbar=True, seed=0)


@functools.cache
def _folder() -> tempfile.TemporaryDirectory:
    return tempfile.TemporaryDirectory()


def write_elsewhere() -> None:
    """Let nodes write into a folder that is gone with the process."""
    host.prepare()
    import folder_paths

    folder_paths.set_output_directory(_folder().name)
    folder_paths.set_temp_directory(_folder().name)
