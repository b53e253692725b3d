"""Networks without weights: their modules on the meta device, from a name or from the header of a
file.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import folder_paths
import torch

_UNET = {
    "image_size": 32,
    "use_checkpoint": False,
    "legacy": False,
    "use_spatial_transformer": True,
    "in_channels": 4,
    "out_channels": 4,
    "model_channels": 320,
}
#: Configurations of ComfyUI's UNetModel by name.
ARCHITECTURES: dict[str, dict] = {
    "sd15": {
        **_UNET, "num_res_blocks": [2, 2, 2, 2], "channel_mult": [1, 2, 4, 4],
        "transformer_depth": [1] * 6 + [0, 0],
        "transformer_depth_middle": 1, "transformer_depth_output": [1] * 9 + [0] * 3,
        "context_dim": 768,
        "adm_in_channels": None, "use_linear_in_transformer": False, "num_heads": 8,
    },
    "sdxl": {
        **_UNET, "num_res_blocks": [2, 2, 2], "channel_mult": [1, 2, 4],
        "transformer_depth": [0, 0, 2, 2, 10, 10],
        "transformer_depth_middle": 10, "transformer_depth_output": [0, 0, 0, 2, 2, 2, 10, 10, 10],
        "context_dim": 2048, "adm_in_channels": 2816, "num_classes": "sequential",
        "use_linear_in_transformer": True,
        "num_heads": -1, "num_head_channels": 64,
    },
}  # fmt: skip
#: ComfyUI's folders of files with a denoiser, and what such a file is called in a sentence.
FOLDERS = {"checkpoints": "checkpoint", "diffusion_models": "diffusion model"}


def network(
    kind: str, name: str, further: Mapping[str, dict] = MappingProxyType({})
) -> torch.nn.Module:
    """The denoiser of an architecture ("architecture", a name of ARCHITECTURES or ``further``) or
    of a file in FOLDERS.

    Raises ValueError with a sentence when there is none, or when the header does not identify the
    network.
    """
    if kind == "architecture":
        known = {**ARCHITECTURES, **further}
        if name not in known:
            raise ValueError(f"There is no architecture '{name}': there are {', '.join(known)}.")
        return _unet(known[name])
    if kind not in FOLDERS:
        raise ValueError(
            f"'{kind}' is not a kind of network: take architecture, {', '.join(FOLDERS)}."
        )
    path = folder_paths.get_full_path(kind, name)
    if path is None:
        raise ValueError(f"There is no {FOLDERS[kind]} '{name}' in models/{kind}.")
    return _of_file(path, name)


def _unet(configuration: dict) -> torch.nn.Module:
    import comfy.ops
    from comfy.ldm.modules.diffusionmodules.openaimodel import UNetModel

    return UNetModel(**configuration, device="meta", operations=comfy.ops.disable_weight_init)


def _of_file(path: str, name: str) -> torch.nn.Module:
    from comfy import model_base, model_detection

    weights = _shapes(path, name)
    try:
        prefix = model_detection.unet_prefix_from_state_dict(weights)
        prefix = prefix if any(key.startswith(prefix) for key in weights) else ""
        config = model_detection.model_config_from_unet(weights, prefix)
        config.model_type = lambda *_: (
            model_base.ModelType.EPS
        )  # ComfyUI reads it from weights, and here are none
        config.set_inference_dtype(torch.float32, None)
        return config.get_model(weights, prefix, device=torch.device("meta")).diffusion_model
    except (
        Exception
    ) as error:  # whatever ComfyUI's detection stumbles over in a file that is no such model
        raise ValueError(
            f"The header of {name} does not identify the network: run the workflow once."
        ) from error


def _shapes(path: str, name: str) -> dict[str, torch.Tensor]:
    """The tensors of a file without their numbers."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            return {
                key: torch.empty(file.get_slice(key).get_shape(), device="meta")
                for key in file.keys()  # noqa: SIM118
            }
    except (
        SafetensorError,
        OSError,
        RuntimeError,
        TypeError,
        OverflowError,
    ):  # the last three: sides that overflow
        raise ValueError(f"{name} has no header that can be read: run the workflow once.") from None
