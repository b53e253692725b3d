"""What layers that read the text put out for a prompt, without a pass of the whole network."""

from __future__ import annotations

import comfy.model_management
import torch


def answers(patcher, contexts: torch.Tensor, paths: list[str]) -> dict[str, torch.Tensor]:
    """What layers put out for text embeddings (N, tokens, D): path -> (N, tokens, channels), on the model's device.

    Computed by the layers as the patcher has loaded them, so that LoRAs count.
    """
    comfy.model_management.load_models_gpu([patcher])
    model = patcher.model
    contexts = contexts.to(patcher.load_device, model.manual_cast_dtype or model.get_dtype())
    return {path: model.diffusion_model.get_submodule(path)(contexts) for path in paths}


def embedding(conditioning: list) -> torch.Tensor:
    """The text embedding (1, tokens, D) of a CONDITIONING."""
    return conditioning[0][0]
