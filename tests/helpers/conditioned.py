"""Small models of every family that takes size metadata, and ways to sample them and to see their
conditioning.
"""

from __future__ import annotations

from contextlib import contextmanager

import reduced
import torch

_PIXART = {
    "image_model": "pixart_alpha",
    "hidden_size": 144,
    "depth": 2,
    "num_heads": 4,
    "caption_channels": 32,
    "model_max_length": 120,
    "in_channels": 4,
    "micro_condition": True,
    "pe_interpolation": 2,
}
_HYDIT = {
    "image_model": "hydit1",
    "hidden_size": 128,
    "depth": 2,
    "num_heads": 4,
    "text_states_dim": 32,
    "text_states_dim_t5": 64,
    "size_cond": True,
    "use_style_cond": True,
    "text_len": 77,
    "text_len_t5": 16,
}
_REFINER = {
    "image_size": 32,
    "use_checkpoint": False,
    "legacy": False,
    "use_spatial_transformer": True,
    "in_channels": 4,
    "out_channels": 4,
    "model_channels": 32,
    "use_temporal_attention": False,
    "use_temporal_resblock": False,
    "num_res_blocks": [2, 2, 2, 2],
    "channel_mult": [1, 2, 4, 4],
    "transformer_depth": [0, 0, 1, 1, 1, 1, 0, 0],
    "transformer_depth_middle": 1,
    "transformer_depth_output": [0, 0, 0, 1, 1, 1, 1, 1, 1, 0, 0, 0],
    "context_dim": 64,
    "adm_in_channels": 64 + 5 * 256,
    "num_classes": "sequential",
    "use_linear_in_transformer": True,
    "num_heads": -1,
    "num_head_channels": 16,
}
_OTHERS = {
    "pixart": ("PixArtAlpha", _PIXART),
    "hydit": ("HunyuanDiT1", _HYDIT),
    "refiner": ("SDXLRefiner", _REFINER),
}
SEED = 5


def model(name: str):
    """MODEL of a family on random weights: "sdxl", "refiner", "pixart", "hydit"; also "sd15" and
    "flux".
    """
    if name in reduced.ARCHITECTURES:
        return reduced.checkpoint(name)[0]
    import comfy.supported_models

    family, settings = _OTHERS[name]
    config = getattr(comfy.supported_models, family)(dict(settings))
    with torch.inference_mode(False), torch.no_grad():
        return reduced._model(config, torch.Generator().manual_seed(0))


def prompt(name: str, seed: int = 0, **metadata) -> list:
    """A CONDITIONING of random text for a family, with entries such as width=512."""
    generator = torch.Generator().manual_seed(100 + seed)

    def draw(*shape):
        return torch.randn(shape, generator=generator)

    if name == "pixart":
        return [[draw(1, 12, 32), dict(metadata)]]
    if name == "hydit":
        masks = {"attention_mask": torch.ones(1, 77), "attention_mask_mt5xl": torch.ones(1, 16)}
        return [[draw(1, 77, 32), {"conditioning_mt5xl": draw(1, 16, 64), **masks, **metadata}]]
    width = {"sdxl": 128, "refiner": 64, "sd15": 64}[name]
    return [[draw(1, 77, width), {"pooled_output": draw(1, 64), **metadata}]]


def scheduled(app, patcher, **changes):
    """Metadata Schedule on a MODEL with its defaults; keywords replace them. ``app`` is the
    fixture.
    """
    given = {
        "curve": "cosine",
        "exponent": 2.0,
        "fields": "original_size",
        "reference_width": 0,
        "reference_height": 0,
        "mode": "value",
        "apply_to": "both",
    }
    return app.run("GBX_MetadataSchedule", model=patcher, **{**given, **changes})[0]


def guider(patcher, positive: list, negative: list, cfg: float):
    """ComfyUI's CFGGuider."""
    import comfy.samplers

    made = comfy.samplers.CFGGuider(patcher)
    made.set_conds(positive, negative)
    made.set_cfg(cfg)
    return made


def sample(
    made, sigmas, side: int = 8, count: int = 1, seed: int = SEED, width: int | None = None
) -> torch.Tensor:
    """Euler samples (count, channels, side, side) of a guider over some sigmas, from seeded
    noise.
    """
    import comfy.samplers

    channels = made.model_patcher.get_model_object("latent_format").latent_channels
    shape = (count, channels, side, width or side)
    noise = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    with torch.inference_mode():
        return made.sample(
            noise,
            torch.zeros(shape),
            comfy.samplers.sampler_object("euler"),
            torch.as_tensor(sigmas),
            disable_pbar=True,
            seed=seed,
        )


@contextmanager
def watched(patcher):
    """Collects the network's conditioning while the block runs: one dictionary a call, its rows by
    "cond_or_uncond".
    """
    seen, inner = [], patcher.model.diffusion_model.forward

    def forward(x, timesteps, context=None, control=None, transformer_options=None, **vectors):
        tensors = {key: value.clone() for key, value in vectors.items() if hasattr(value, "clone")}
        rows = list(transformer_options["cond_or_uncond"])
        seen.append(
            {
                **tensors,
                "rows": rows,
                "timestep": timesteps.clone(),
                "sigma": transformer_options["sigmas"],
            }
        )
        return inner(
            x,
            timesteps,
            context=context,
            control=control,
            transformer_options=transformer_options,
            **vectors,
        )

    patcher.model.diffusion_model.forward = forward
    try:
        yield seen
    finally:
        del patcher.model.diffusion_model.forward


@contextmanager
def one_at_a_time(monkeypatch):
    """Lets ComfyUI believe in so little memory that it evaluates every conditioning alone."""
    import comfy.model_management

    def nearly_none(device=None, torch_free_too=False):
        return (1, 1) if torch_free_too else 1

    with monkeypatch.context() as patch:
        patch.setattr(comfy.model_management, "get_free_memory", nearly_none)
        yield
