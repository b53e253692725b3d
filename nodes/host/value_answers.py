"""What layers that read the text put out for a prompt, without a pass of the whole network."""

from __future__ import annotations

import comfy.model_management
import torch


def answers(patcher, contexts: torch.Tensor, paths: list[str]) -> dict[str, torch.Tensor]:
    """What layers put out for text embeddings (N, tokens, D): path -> (N, tokens, channels), on the model's device.

    Computed by the layers as the patcher has loaded them, so that LoRAs count. Raises ValueError for embeddings that
    another model's text encoder made.
    """
    for width in {patcher.model.diffusion_model.get_submodule(path).in_features for path in paths}:
        if contexts.shape[-1] != width:
            raise ValueError(
                f"The text embedding has {contexts.shape[-1]} channels and this MODEL reads {width}: connect the CLIP "
                "that belongs to the MODEL."
            )
    comfy.model_management.load_models_gpu([patcher])
    model = patcher.model
    contexts = contexts.to(patcher.load_device, model.manual_cast_dtype or model.get_dtype())
    return {path: model.diffusion_model.get_submodule(path)(contexts) for path in paths}


def embedding(conditioning: list) -> torch.Tensor:
    """The text embedding (1, tokens, D) of a CONDITIONING."""
    return conditioning[0][0]


def fingerprint(patcher, paths: list[str]) -> dict[str, float]:
    """What tells one model's layers from another's in any precision: the mean size of their answer to a fixed input."""
    result = {}
    for path in paths:
        width = patcher.model.diffusion_model.get_submodule(path).in_features
        probe = torch.randn(1, 16, width, generator=torch.Generator().manual_seed(2406))
        result[path] = float(answers(patcher, probe, [path])[path].float().abs().mean())
    return result
