"""Networks of the sizes that people use, with random weights."""

from __future__ import annotations

from copy import copy

import torch

from studies.common import host

#: Name, ComfyUI's class, what replaces numbers of its configuration, and the side of the latent on
#: a GPU.
NETWORKS = {
    "SD1.5": ("SD15", "sd15", {}, 64),
    "narrow SD1.5": ("SD15", "sd15", {"model_channels": 64}, 64),
    "narrowest SDXL with 1 of 10 blocks": (
        "SDXL",
        "sdxl",
        {
            "model_channels": 32,
            "transformer_depth": [0, 0, 1, 1, 1, 1],
            "transformer_depth_middle": 1,
            "transformer_depth_output": [0, 0, 0, 1, 1, 1, 1, 1, 1],
        },
        128,
    ),
    "narrow SDXL": ("SDXL", "sdxl", {"model_channels": 64}, 128),
    "SDXL": ("SDXL", "sdxl", {}, 128),
    "SDXL with 2 of 10 blocks": (
        "SDXL",
        "sdxl",
        {
            "transformer_depth": [0, 0, 2, 2, 2, 2],
            "transformer_depth_middle": 2,
            "transformer_depth_output": [0, 0, 0, 2, 2, 2, 2, 2, 2],
        },
        128,
    ),
}
CPU_SIDE = 16  # 128 pixels: what a tap adds besides copies weighs more than in larger images
SEED = 0


class Bench:
    """A network behind ComfyUI's sampling path, and what is evaluated."""

    def __init__(self, name: str, side: int | None = None):
        kind, blueprint, changes, full = NETWORKS[name]
        self.config = config = {
            **host.pack("nodes.activations.meta_networks_comfy").ARCHITECTURES[blueprint],
            **changes,
        }
        self.model = _model(kind, config)
        self.side = side or (full if torch.cuda.is_available() else CPU_SIDE)
        generator = torch.Generator().manual_seed(SEED)
        self.latent = {"samples": torch.randn(1, 4, self.side, self.side, generator=generator)}
        words = torch.randn(1, 77, config["context_dim"], generator=generator)
        self.positive = [[words, {"pooled_output": torch.randn(1, 1280, generator=generator)}]]
        self.network = self.model.model.diffusion_model
        self.entries = host.pack("nodes.activations.catalog_unet").catalog(self.network)

    def with_model(self, model) -> Bench:
        """The same with another MODEL."""
        other = copy(self)
        other.model = model
        return other

    def chosen(self, preset: str) -> list:
        """The entries of a preset."""
        return host.pack("nodes.activations.select_ids").select(self.entries, preset)


def _model(kind: str, unet: dict):
    import comfy.model_management
    import comfy.model_patcher
    import comfy.supported_models

    config = getattr(comfy.supported_models, kind)(dict(unet))
    config.set_inference_dtype(torch.float32, None)
    with torch.inference_mode(False), torch.no_grad():
        model = config.get_model({}, device="cpu")
        generator = torch.Generator().manual_seed(SEED)
        for name, parameter in model.diffusion_model.named_parameters():
            if parameter.ndim < 2:
                parameter.data.fill_(0.0 if name.endswith("bias") else 1.0)
            else:
                parameter.data.normal_(generator=generator).div_(parameter[0].numel() ** 0.5)
    device = comfy.model_management.get_torch_device()
    return comfy.model_patcher.ModelPatcher(
        model, load_device=device, offload_device=torch.device("cpu")
    )
