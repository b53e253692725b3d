"""Reduced networks of ComfyUI's own classes with random weights: MODEL, LATENT, VAE, CONDITIONING.

`networks.json` holds their configurations in the order of their use. Blocks, keys, noise schedule
and latent format are ComfyUI's own; widths and depths are smaller. What such a network generates
means nothing: it shows that a node runs on the architecture, and what it changes there.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

#: Width of a text token where the configuration names no other.
TEXT_WIDTH = 64
#: Networks whose LATENT has a video and a sound part, and the shapes of the sound.
_SOUND = {"LTXAV": lambda frames: (1, 8, 4 * frames, 16), "MiniMaxH3": lambda frames: (1, 32, 2, 8)}
_VIDEO_CHANNELS = {"LTXAV": 128, "MiniMaxH3": 24}
# Fields of a network's configuration that older ComfyUI does not know, with the value that changes
# nothing.
_NEWER_FIELDS = {
    "txt_ids_dims": [],
    "vec_in_dim": None,
    "meanflow_sum": False,
    "vision_in_dim": None,
    "use_cond_type_embedding": False,
    "default_ref_method": "index",
    "ref_index_scale": 10.0,
    "global_modulation": False,
    "mlp_silu_act": False,
    "ops_bias": True,
}
_PARAMS = {
    "flux": "flux.model.FluxParams",
    "flux2": "flux.model.FluxParams",
    "chroma": "chroma.model.ChromaParams",
    "chroma_radiance": "chroma_radiance.model.ChromaRadianceParams",
    "hunyuan_video": "hunyuan_video.model.HunyuanVideoParams",
}


@dataclass(frozen=True, kw_only=True)
class Configuration:
    """A reduced network: its class in comfy.supported_models, the network's configuration, the size
    of a latent as ((frames,) height, width), and how often official templates of its family are
    used.
    """

    name: str
    title: str
    supported: str
    uses: int
    size: tuple[int, ...]
    network: dict[str, Any]
    text_width: int = TEXT_WIDTH
    pooled_width: int = TEXT_WIDTH
    tokens: int = 9
    beside_text: Mapping[str, Any] = field(default_factory=dict)

    @property
    def has_sound(self) -> bool:
        """Whether the LATENT has a video and a sound part."""
        return self.name in _SOUND


def configurations() -> dict[str, Configuration]:
    """All configurations by name, the most used first."""
    entries = json.loads(Path(__file__).with_name("networks.json").read_text("utf-8"))
    result = {}
    for name, entry in entries.items():
        rest = {
            key: entry[key]
            for key in ("text_width", "pooled_width", "tokens", "beside_text")
            if key in entry
        }
        result[name] = Configuration(
            name=name,
            title=entry["title"],
            supported=entry["class"],
            uses=entry["uses"],
            size=tuple(entry["size"]),
            network=_with_tuples(entry["config"]),
            **rest,
        )
    return result


def _with_tuples(config: dict[str, Any]) -> dict[str, Any]:
    """A configuration with tuples where ComfyUI's classes compare or unpack them as such."""
    tuples = ("axes_dims_rope", "axes_dim_rope", "axes_dims", "window_size")
    if config.get("image_model") == "wan2.1":
        tuples = (*tuples, "patch_size")
    return {
        key: tuple(value) if key in tuples and isinstance(value, list) else value
        for key, value in config.items()
    }


def is_loaded_by_host(configuration: Configuration) -> bool:
    """Whether this ComfyUI knows the class."""
    import comfy.supported_models

    return hasattr(comfy.supported_models, configuration.supported)


def _complete(config: dict[str, Any]) -> dict[str, Any]:
    """A configuration that fits the dataclass which holds it in this ComfyUI, if one does."""
    config = dict(config)
    if config.get("nerf_embedder_dtype") == "float32":
        config["nerf_embedder_dtype"] = torch.float32
    family = config.get("image_model")
    if family not in _PARAMS:
        return config
    module, _, name = _PARAMS[family].rpartition(".")
    params = getattr(importlib.import_module(f"comfy.ldm.{module}"), name)
    fields = {item.name for item in dataclasses.fields(params)}
    missing = {key: value for key, value in _NEWER_FIELDS.items() if key in fields}
    wanted = {**missing, **config}
    optional = {*_NEWER_FIELDS, "byt5", "meanflow", "in_dim", "out_dim"}
    return {key: value for key, value in wanted.items() if key in fields or key not in optional}


def model(configuration: Configuration, seed: int = 0):
    """A MODEL of random weights in float32; the same seed gives the same weights."""
    import comfy.supported_models

    base = getattr(comfy.supported_models, configuration.supported)
    config = _complete(configuration.network)
    _narrow_language_adapters()
    with torch.inference_mode(False), torch.no_grad():
        # ComfyUI writes fields of a class over the configuration, such as Z-Image's width.
        extra = {k: v for k, v in base.unet_extra_config.items() if k not in config}
        namespace = {"unet_extra_config": extra, "__module__": base.__module__}
        supported = type(base.__name__, (base,), namespace)(config)
        supported.set_inference_dtype(torch.float32, None)
        network = supported.get_model({}, device="cpu")
        generator = torch.Generator().manual_seed(seed)
        fill(network.diffusion_model, generator)
        _fill_buffers(configuration, network.diffusion_model, generator)
        return _patcher(supported, network)


def _narrow_language_adapters() -> None:
    """Anima's adapter of language models has fixed widths: a wide one takes seconds to make."""
    try:
        from comfy.ldm.anima.model import LLMAdapter
    except ImportError:
        return
    rest = LLMAdapter.__init__.__defaults__[5:]
    LLMAdapter.__init__.__defaults__ = (TEXT_WIDTH, TEXT_WIDTH, TEXT_WIDTH, 2, 4, *rest)


def fill(module: torch.nn.Module, generator: torch.Generator) -> None:
    """Weights scaled by the fan-in, so that signals stay finite; norms are left at one."""
    for name, parameter in module.named_parameters():
        if parameter.ndim < 2:
            parameter.data.fill_(0.0 if name.endswith("bias") else 1.0)
        else:
            values = torch.randn(parameter.shape, generator=generator)
            parameter.data.copy_(values / parameter[0].numel() ** 0.5)


def _fill_buffers(
    configuration: Configuration, network: torch.nn.Module, generator: torch.Generator
) -> None:
    """Values of buffers that a checkpoint would bring, such as tables of positions."""
    for name, buffer in network.named_buffers():
        unset = buffer.is_floating_point() and not bool(torch.isfinite(buffer).all())
        if unset or name.endswith("inv_freq"):
            buffer.copy_(torch.rand(buffer.shape, generator=generator) * 0.1)
    if configuration.supported == "SD3":
        from comfy.ldm.modules.diffusionmodules.mmdit import get_2d_sincos_pos_embed

        table = get_2d_sincos_pos_embed(
            network.hidden_size, network.pos_embed_max_size, scaling_factor=4, offset=16
        )
        network.pos_embed.copy_(torch.from_numpy(table)[None])
    elif configuration.supported.startswith("PixArt"):
        for buffer in network.buffers():
            buffer.copy_(torch.randn(buffer.shape, generator=generator) * 0.1)


def _patcher(supported: Any, network: torch.nn.Module):
    import comfy.model_patcher

    def load_again(disable_dynamic: bool = False):
        copy = supported.get_model({}, device="cpu")
        copy.load_state_dict(network.state_dict(), strict=False)
        return _patcher(supported, copy)

    cpu = torch.device("cpu")
    patcher = comfy.model_patcher.ModelPatcher(network, load_device=cpu, offload_device=cpu)
    patcher.cached_patcher_init = (load_again, ())  # as loaders of newer ComfyUI leave it
    return patcher


def latent(
    configuration: Configuration, patcher: Any, *, scale: int = 1, seed: int | None = 2
) -> dict:
    """A LATENT of one image or video of random numbers, or of zeros where ``seed`` is None."""
    *frames, height, width = configuration.size
    size = (*frames, height * scale, width * scale)
    generator = torch.Generator().manual_seed(seed or 0)

    def filled(shape: tuple[int, ...]) -> torch.Tensor:
        return torch.zeros(shape) if seed is None else torch.randn(shape, generator=generator)

    if configuration.has_sound:
        from comfy.nested_tensor import NestedTensor

        video = filled((1, _VIDEO_CHANNELS[configuration.name], *size))
        sound = filled(_SOUND[configuration.name](frames[0]))
        return {"samples": NestedTensor([video, sound])}
    channels = patcher.get_model_object("latent_format").latent_channels
    return {"samples": filled((1, channels, *size))}


def conditioning(configuration: Configuration, seed: int = 1) -> list:
    """A CONDITIONING of random tokens, for a network whose text encoder this host cannot make."""
    generator = torch.Generator().manual_seed(seed)
    tokens = configuration.tokens
    text = torch.randn(1, tokens, configuration.text_width, generator=generator)
    pooled = torch.randn(1, configuration.pooled_width, generator=generator)
    if configuration.supported.startswith("Stable_Cascade"):
        pooled = pooled[:, None]
    beside: dict[str, Any] = {"pooled_output": pooled}
    for name, value in configuration.beside_text.items():
        if isinstance(value, list):
            beside[name] = torch.randn(value, generator=generator)
        elif isinstance(value, str):
            count = int(value.partition(" ")[2] or tokens)
            beside[name] = torch.ones(1, count, dtype=torch.int64)
        else:
            beside[name] = value
    return [[text, beside]]


class StandInVae:
    """A VAE without weights: averages over squares of pixels, and the first three channels back."""

    def __init__(self, configuration: Configuration, patcher: Any):
        form = patcher.get_model_object("latent_format")
        self.latent_channels = _VIDEO_CHANNELS.get(configuration.name, form.latent_channels)
        # 0.3.75 does not say those of some.
        name = type(form).__name__
        unsaid = 16 if name in ("Flux2", "HunyuanVideo15", "Wan22") else 8
        if name in ("HunyuanImage21", "LTXV"):
            unsaid = 32
        self.downscale_ratio = getattr(form, "spacial_downscale_ratio", unsaid)
        self.has_frames = len(configuration.size) == 3

    def spacial_compression_encode(self) -> int:
        """Pixels a side of a latent position."""
        return self.downscale_ratio

    spacial_compression_decode = spacial_compression_encode

    def encode(self, pixels: torch.Tensor) -> torch.Tensor:
        """Latents (B, C, (1,) h, w) of pixels (B, H, W, 3)."""
        values = pixels[..., :3].movedim(-1, 1).float()
        averages = F.avg_pool2d(values, self.downscale_ratio) * 2 - 1
        channels = averages.repeat(1, -(-self.latent_channels // 3), 1, 1)[
            :, : self.latent_channels
        ]
        return channels.unsqueeze(2) if self.has_frames else channels

    def decode(self, latents: torch.Tensor) -> torch.Tensor:
        """Images (B, H, W, 3) of latents; frames are images of the batch."""
        if getattr(latents, "is_nested", False):
            latents = latents.unbind()[0]
        if latents.ndim == 5:
            latents = latents.movedim(2, 1).flatten(0, 1)
        pixels = F.interpolate(latents[:, :3].float(), scale_factor=self.downscale_ratio)
        return (pixels / 2 + 0.5).clamp(0, 1).movedim(1, -1)
