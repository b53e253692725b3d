"""The demo denoiser as an ordinary MODEL: ComfyUI's UNetModel with v prediction and size
conditioning.

The schedule is SD's, rescaled to zero terminal SNR (arXiv 2305.08891).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import comfy.conds
import comfy.latent_formats
import comfy.model_base
import comfy.model_management
import comfy.model_patcher
import comfy.supported_models_base
import torch

from . import architecture, assets

if TYPE_CHECKING:
    from ..host.socket_types import ModelPatcher


class DemoLatent(comfy.latent_formats.LatentFormat):
    """Latents of zero mean and unit variance per channel; the colors of the live preview are a
    linear fit.
    """

    latent_channels = architecture.LATENT_CHANNELS

    def __init__(self):
        self.mean: Any = None  # both until `fit`
        self.std: Any = None

    def fit(
        self, mean: torch.Tensor, std: torch.Tensor, rgb: torch.Tensor, rgb_bias: torch.Tensor
    ) -> None:
        """Take the statistics (C,) of the training latents, and the fit (C, 3), (3,) from latent to
        color.
        """
        self.mean = mean.view(1, -1, 1, 1)
        self.std = std.view(1, -1, 1, 1)
        self.latent_rgb_factors = rgb.tolist()
        self.latent_rgb_factors_bias = rgb_bias.tolist()

    def process_in(self, latent: torch.Tensor) -> torch.Tensor:
        return (latent - self.mean.to(latent)) / self.std.to(latent)

    def process_out(self, latent: torch.Tensor) -> torch.Tensor:
        return latent * self.std.to(latent) + self.mean.to(latent)


class DemoConfig(comfy.supported_models_base.BASE):
    """What ComfyUI's BaseModel wants to know of a model."""

    unet_config = architecture.UNET
    unet_extra_config: ClassVar[dict] = {}
    latent_format = DemoLatent
    sampling_settings: ClassVar = {
        "beta_schedule": "linear",
        "linear_start": 0.00085,
        "linear_end": 0.012,
        "zsnr": True,
    }
    memory_usage_factor = 0.5


class DemoModel(comfy.model_base.BaseModel):
    """BaseModel whose vector holds original height and width, crop and mirroring (pixels of a
    128-pixel image).

    Conditioning keys: ``height``, ``width`` (where absent: the image's own size), ``crop_h``,
    ``crop_w``, ``mirror`` (0 or 1). Sizes over 128 mean "sharp", as 128 does: larger images were
    never shrunk in training.
    """

    metadata_fields = architecture.METADATA
    trained_size = architecture.SIZE

    def encode_adm(self, **kwargs: Any) -> torch.Tensor:
        size = architecture.SIZE
        numbers = [
            min(kwargs.get("height", size), size),
            min(kwargs.get("width", size), size),
            kwargs.get("crop_h", 0),
            kwargs.get("crop_w", 0),
            size * float(kwargs.get("mirror", 0)),
        ]
        return architecture.metadata_vector(torch.tensor([numbers], dtype=torch.float32))


def load(world: str, disable_dynamic: bool = False) -> ModelPatcher:
    """The denoiser of a demo world in the patcher class that the running ComfyUI uses.

    ``disable_dynamic`` asks for a plain ModelPatcher: newer ComfyUI calls this function again with
    it when something needs the weights outside of its dynamic memory management.
    """
    management = comfy.model_management
    weights = assets.read_denoiser(world)
    statistics = {
        name: weights.pop(f"latent.{name}").float() for name in ("mean", "std", "rgb", "rgb_bias")
    }
    config = DemoConfig(architecture.UNET)
    device = management.get_torch_device()
    dtype = management.unet_dtype(
        model_params=sum(value.numel() for value in weights.values()),
        supported_dtypes=config.supported_inference_dtypes,
    )
    config.set_inference_dtype(
        dtype, management.unet_manual_cast(dtype, device, config.supported_inference_dtypes)
    )
    config.latent_format.fit(**statistics)
    model = DemoModel(
        config, comfy.model_base.ModelType.V_PREDICTION, device=management.unet_offload_device()
    )
    plain = comfy.model_patcher.ModelPatcher
    patcher_class = (
        plain if disable_dynamic else getattr(comfy.model_patcher, "CoreModelPatcher", plain)
    )
    patcher = patcher_class(
        model, load_device=device, offload_device=management.unet_offload_device()
    )
    _load_weights(patcher, weights, dtype, world)
    patcher.cached_patcher_init = (load, (world,))
    return patcher


def _load_weights(
    patcher: ModelPatcher, weights: dict[str, torch.Tensor], dtype: torch.dtype, world: str
) -> None:
    # ComfyUI's dynamic memory management wants tensors handed over, not copied into what it may
    # have on another device.
    dynamic = hasattr(patcher, "is_dynamic") and patcher.is_dynamic()
    weights = {name: value.to(dtype) for name, value in weights.items()}
    try:
        patcher.model.diffusion_model.load_state_dict(weights, assign=dynamic)
    except RuntimeError as error:
        raise ValueError(
            f"The denoiser of {world} does not fit this version of the pack "
            f"({str(error).splitlines()[1].strip()}): restore assets/{world}."
        ) from None
