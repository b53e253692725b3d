"""Higher Resolution on ComfyUI's own networks: rotary positions of transformers, features of
U-Nets.
"""

from types import SimpleNamespace

import conditioned
import pytest
import tiny_transformers
import torch
from conditioned import guider

ROTARY = ("Flux", "Chroma", "QwenImage", "Lumina2", "ZImage")
DEFAULTS = {
    "base_size": 64,
    "alignment": "corners",
    "rotary_method": "ntk",
    "rotary_strength": 2.0,
    "rotary_exponent": 2.0,
    "downscale_end_percent": 0.5,
}


@pytest.fixture(scope="module")
def higher(app):
    def run(model, **changes):
        return app.run("GBX_PositionalResample", model=model, **{**DEFAULTS, **changes})[0]

    return run


@pytest.fixture(scope="module", params=ROTARY)
def transformer(app, request):
    return tiny_transformers.model(request.param)


@pytest.fixture(scope="module")
def unet(app):
    return conditioned.model("sdxl")


def transform(patcher, side=12, sigma=0.6):
    """One prediction for a latent of side x side."""
    latent = tiny_transformers.latent(patcher, 1, side, side)["samples"]
    return predict(patcher, tiny_transformers.conditioning(), latent, sigma)


def predict(patcher, positive, latent, sigma):
    import comfy.samplers

    made = guider(patcher, positive, positive, 1.0)
    with torch.inference_mode():
        return made.sample(
            torch.zeros_like(latent),
            latent,
            comfy.samplers.sampler_object("euler"),
            torch.tensor([sigma, sigma / 2]),
            disable_pbar=True,
            seed=0,
        )


def test_rotary_up_to_the_base_or_without_strength_is_stock(higher, transformer):
    stock = transform(transformer, side=12)
    assert torch.equal(transform(higher(transformer, base_size=96)), stock)
    assert torch.equal(transform(higher(transformer, rotary_strength=0.0)), stock)
    larger = transform(higher(transformer))
    assert torch.isfinite(larger).all() and not torch.equal(larger, stock)
    assert torch.equal(transform(transformer), stock)


def test_rotations_are_those_of_core_with_a_larger_base(higher, transformer):
    """NTK at noise t: core's rope() with theta' = theta s^(kappa D / (D - 2)), for rows and for
    columns apart.
    """
    from comfy.ldm.flux.math import rope
    from comfy.patcher_extension import WrappersMP

    network, seen, sigma = transformer.model.diffusion_model, [], 0.6
    embedder = getattr(network, "pe_embedder", None) or network.rope_embedder

    def watched(executor, *args, **kwargs):
        handle = embedder.register_forward_hook(
            lambda module, args, output: seen.append((args[0], output))
        )
        try:
            return executor(*args, **kwargs)
        finally:
            handle.remove()

    moved = higher(transformer)
    moved.add_wrapper_with_key(WrappersMP.APPLY_MODEL, "watched", watched)
    latent = tiny_transformers.latent(transformer, 1, 12, 16)["samples"]
    predict(moved, tiny_transformers.conditioning(), latent, sigma)
    (ids, rotations), start = seen[0], 0
    for axis, ratio in enumerate((1.0, 12 * 8 / 64, 16 * 8 / 64)):
        width = embedder.axes_dim[axis]
        theta = embedder.theta * ratio ** (2 * sigma**2 * width / (width - 2))
        wanted = rope(ids[..., axis], width, theta)[:, None]
        assert torch.allclose(rotations[..., start : start + width // 2, :, :], wanted, atol=2e-5)
        start += width // 2
    assert not embedder._forward_hooks


def test_controlnets_with_rotary_positions_follow(higher, app):
    from comfy.ldm.flux.layers import EmbedND
    from comfy.patcher_extension import WrappersMP

    model = tiny_transformers.model("Flux")
    moved = higher(model)
    (wrapper,) = moved.get_all_wrappers(WrappersMP.CALC_COND_BATCH)
    control = torch.nn.Module()
    control.pe_embedder = EmbedND(32, 10000, [8, 12, 12])
    conds = [[{"control": SimpleNamespace(control_model=control, previous_controlnet=None)}]]
    ids = torch.arange(10.0)[None, :, None].expand(1, -1, 3)
    stock = control.pe_embedder(ids)
    inside = wrapper(
        lambda *_: control.pe_embedder(ids),
        moved.model,
        conds,
        torch.zeros(1, 16, 12, 12),
        torch.tensor([1.0]),
        {},
    )
    assert torch.equal(inside[..., :4, :, :], stock[..., :4, :, :])
    assert not torch.equal(inside, stock)
    assert torch.equal(control.pe_embedder(ids), stock)


def denoised(patcher, side=16, sigma=10.0):
    latent = torch.randn(1, 4, side, side, generator=torch.Generator().manual_seed(2))
    return predict(patcher, conditioned.prompt("sdxl"), latent, sigma)


def test_a_unet_is_stock_up_to_the_base_and_without_downscale(higher, unet):
    stock = denoised(unet)
    assert torch.equal(denoised(higher(unet, base_size=128)), stock)
    assert torch.equal(denoised(higher(unet, downscale_end_percent=0.0)), stock)
    assert torch.equal(
        denoised(higher(unet), sigma=0.5), denoised(unet, sigma=0.5)
    )  # beyond half of the run
    assert not torch.equal(denoised(higher(unet)), stock)
    assert torch.equal(denoised(unet), stock)


@pytest.mark.parametrize(("base", "factor"), [(64, 2.0), (80, 1.6)])
def test_features_are_those_of_core_s_downscale_by_the_ratio(app, higher, unet, base, factor):
    """PatchModelAddDownscale behind input block 3, the first downsampling of SDXL, bicubic both
    ways.
    """
    core = app.run(
        "PatchModelAddDownscale",
        model=unet,
        block_number=3,
        downscale_factor=factor,
        start_percent=0.0,
        end_percent=0.5,
        downscale_after_skip=True,
        downscale_method="bicubic",
        upscale_method="bicubic",
    )[0]
    assert torch.equal(denoised(higher(unet, base_size=base)), denoised(core))


def test_with_a_latent_the_noise_follows_the_size(app, unet):
    latent = {"samples": torch.zeros(1, 4, 16, 16)}
    moved, report = app.run("GBX_PositionalResample", model=unet, latent=latent, **DEFAULTS)
    sigmas = [patcher.get_model_object("model_sampling").sigmas for patcher in (moved, unet)]
    assert torch.allclose(sigmas[0], 2 * sigmas[1])
    assert "s = 2.0000, noise stronger (sampler_only)" in report and "by 2 at 128" in report
    assert (
        "Base size 64 is far from 1024, the size that this kind of model was trained at" in report
    )


def test_an_unknown_trained_size_is_one_sentence(higher, app, monkeypatch):
    rescale = app.module("nodes.conditioning.noise_rescale_comfy")
    monkeypatch.setattr(rescale, "trained_size", lambda model: None)
    with pytest.raises(
        ValueError, match="It is not known at what size WAN21 was trained: set base_size"
    ):
        higher(tiny_transformers.model("WAN21_T2V"), base_size=0)
