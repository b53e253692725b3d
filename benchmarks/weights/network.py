"""SD1.5 in its real size on random weights: its layout, and a MODEL to hang LoRAs on."""

from __future__ import annotations

import torch

from studies.common import host

_CHANNELS = [320] * 2 + [640] * 2 + [1280] * 2 + [1280] + [1280] * 3 + [640] * 3 + [320] * 3
_BLOCKS = [
    "down_blocks.0",
    "down_blocks.1",
    "down_blocks.2",
    "mid_block",
    "up_blocks.1",
    "up_blocks.2",
    "up_blocks.3",
]
_HEADS = [2, 2, 2, 1, 3, 3, 3]


def sd15_layout():
    """Rank 1 on queries and values of all attention blocks of SD1.5: 64 modules, 99,648 numbers."""
    names = [
        f"{block}.attentions.{index}"
        for block, count in zip(_BLOCKS, _HEADS, strict=True)
        for index in range(count)
    ]
    shapes = {}
    for name, width in zip(names, _CHANNELS, strict=True):
        for attention, context in (("attn1", width), ("attn2", 768)):
            stem = f"{name}.transformer_blocks.0.{attention}"
            shapes[f"{stem}.to_q"] = ((1, width), (width, 1))
            shapes[f"{stem}.to_v"] = ((1, context), (width, 1))
    return host.pack("nodes.weights.flat_layout").Layout.of(shapes, 1, 27.0)


def sd15_unet() -> dict:
    """SD1.5's U-Net as ComfyUI describes it."""
    return dict(host.pack("nodes.activations.meta_networks_comfy").ARCHITECTURES["sd15"])


def sd15_model(dtype: torch.dtype = torch.float16, filled: bool = False):
    """A MODEL of 860 million parameters; ``filled`` with random weights that keep the signal
    finite.
    """
    host.prepare()
    import comfy.model_patcher
    import comfy.supported_models

    config = comfy.supported_models.SD15(sd15_unet())
    config.set_inference_dtype(dtype, None)
    with torch.inference_mode(False), torch.no_grad():
        model = config.get_model({}, device="cpu")
        for name, parameter in model.diffusion_model.named_parameters() if filled else ():
            _fill(name, parameter.data)
    return comfy.model_patcher.ModelPatcher(
        model, load_device=torch.device("cpu"), offload_device=torch.device("cpu")
    )


def _fill(name: str, values: torch.Tensor) -> None:
    if values.ndim < 2:
        values.fill_(0.0 if name.endswith("bias") else 1.0)
    else:
        bound = (3 / values[0].numel()) ** 0.5
        values.uniform_(-bound, bound)
