"""Higher Resolution on SD3's own transformer."""

import gc
import weakref

import conditioned
import pytest
import sd3
import torch
from conditioned import guider, sample

_OTHERS = {
    "rotary_method": "ntk",
    "rotary_strength": 2.0,
    "rotary_exponent": 2.0,
    "downscale_end_percent": 0.5,
}


@pytest.fixture(scope="module")
def model(app):
    return sd3.model()


@pytest.fixture(scope="module")
def resampled(app, model):
    def run(base_size=1024, alignment="corners", of=None):
        return app.run(
            "GBX_PositionalResample",
            model=of or model,
            base_size=base_size,
            alignment=alignment,
            **_OTHERS,
        )[0]

    return run


def embedding(patcher, height, width):
    """The positions that the network adds for an image of that many pixels."""
    return patcher.get_model_object("diffusion_model.cropped_pos_embed")((height // 8, width // 8))


def mmdit(name):
    from comfy.ldm.modules.diffusionmodules import mmdit

    return getattr(mmdit, name)


def test_at_the_base_size_it_is_stock_and_as_core_says(model, resampled):
    """1024 px: positions 0, .25, ..., 15.75, which core's formula with center and reach 7.875 gives
    too.
    """
    ours, stock = embedding(resampled(), 1024, 1024), embedding(model, 1024, 1024)
    assert torch.equal(ours, stock)
    by_core = mmdit("get_2d_sincos_pos_embed_torch")(128, 64, 64, 7.875, 7.875)
    assert torch.allclose(stock[0], by_core, atol=4e-6)
    assert torch.equal(embedding(resampled(), 768, 512), embedding(model, 768, 512))


@pytest.mark.parametrize(
    ("side", "step", "stock_first"), [(1536, 1 / 6, -4.0), (2048, 0.125, -8.0)]
)
def test_larger_images_by_core_s_own_sinusoids(model, resampled, side, step, stock_first):
    count, one = side // 16, mmdit("get_1d_sincos_pos_embed_from_grid_torch")
    ours = embedding(resampled(), side, side)[0].unflatten(0, (count, count))
    wanted = one(64, torch.arange(count, dtype=torch.float64) * step, dtype=torch.float64).float()
    assert torch.allclose(ours[0, :, :64], wanted, atol=2e-5)
    assert torch.allclose(ours[:, 0, 64:], wanted, atol=2e-5)
    stock = embedding(model, side, side)[0].unflatten(0, (count, count))
    beyond = one(
        64, stock_first + 0.25 * torch.arange(count, dtype=torch.float64), dtype=torch.float64
    ).float()
    assert torch.allclose(stock[0, :, :64], beyond, atol=2e-5)


def test_twice_the_size_holds_the_trained_positions(model, resampled):
    large = embedding(resampled(), 2048, 2048)[0].unflatten(0, (128, 128))[::2, ::2]
    assert torch.allclose(large, embedding(model, 1024, 1024)[0].unflatten(0, (64, 64)), atol=2e-5)


def test_sides_exchanged(resampled):
    wide, tall = embedding(resampled(), 768, 1536)[0], embedding(resampled(), 1536, 768)[0]
    turned = tall.unflatten(0, (96, 48)).transpose(0, 1)
    turned = torch.cat([turned[..., 64:], turned[..., :64]], dim=-1)
    assert torch.allclose(wide.unflatten(0, (48, 96)), turned, atol=2e-5)


def run(patcher, positive=None, side=16):
    return sample(
        guider(patcher, positive or sd3.prompt(), sd3.prompt(1), 3.0), [1.0, 0.5, 0.0], side=side
    )


def test_images_up_to_the_base_are_stock(model, resampled):
    assert torch.equal(run(resampled(128)), run(model))


def test_larger_images_change_and_the_model_does_not(model, resampled):
    before, moved = run(model, side=24), resampled(128)
    first = run(moved, side=24)
    assert not torch.equal(first, before)
    assert torch.equal(first, run(moved, side=24))
    assert torch.equal(run(model, side=24), before)
    assert not torch.equal(run(resampled(128, "centers"), side=24), first)


def test_controlnets_follow(app, model, resampled):
    """The control network adds the positions of the model that it is used with, and only during the
    call.
    """
    net = sd3.controlnet()
    network, seen = net.control_model, []
    handle = network.joint_blocks[0].register_forward_pre_hook(
        lambda module, args, kwargs: seen.append(args[1].clone()), with_kwargs=True
    )
    hint = torch.randn(1, 16, 24, 24, generator=torch.Generator().manual_seed(1))
    net.set_cond_hint(hint, 0.7, (0.0, 1.0))
    positive = [
        [
            sd3.prompt()[0][0],
            {**sd3.prompt()[0][1], "control": net, "control_apply_to_uncond": True},
        ]
    ]
    run(model, positive, side=24)
    stock = list(seen)
    seen.clear()
    run(resampled(128), positive, side=24)
    handle.remove()
    shift = embedding(resampled(128), 192, 192) - embedding(model, 192, 192)
    assert torch.allclose(seen[0] - stock[0], shift.expand_as(seen[0]), atol=1e-5)
    assert "cropped_pos_embed" not in vars(network)
    seen.clear()
    twice = resampled(
        128, of=resampled(128, "centers")
    )  # the last node's positions, in both networks
    handle = network.joint_blocks[0].register_forward_pre_hook(
        lambda module, args, kwargs: seen.append(args[1].clone()), with_kwargs=True
    )
    run(twice, positive, side=24)
    handle.remove()
    assert torch.allclose(seen[0] - stock[0], shift.expand_as(seen[0]), atol=1e-5)
    assert "cropped_pos_embed" not in vars(network)


@pytest.mark.parametrize("family", ["pixart", "hydit"])
def test_other_families_are_refused(resampled, family):
    with pytest.raises(
        ValueError, match="has no positions that this node can scale: connect a U-Net"
    ):
        resampled(of=conditioned.model(family))


@pytest.mark.parametrize(("side", "last"), [(512, 31.0), (1024, 31.5), (2048, 31.75)])
def test_pixart_already_stays_inside(app, monkeypatch, side, last):
    """Its own transformer's positions: 512 px 0 to 31, 1024 px 0 to 31.5, 2048 px 0 to 31.75."""
    from comfy.ldm.pixart import pixartms

    class FoundError(Exception):
        pass

    inner = pixartms.get_2d_sincos_pos_embed_torch

    def caught(*args, **settings):
        raise FoundError(inner(*args, **{**settings, "dtype": torch.float64}))

    monkeypatch.setattr(pixartms, "get_2d_sincos_pos_embed_torch", caught)
    network, tokens = conditioned.model("pixart").model.diffusion_model, side // 16
    network.pe_interpolation = side / 512  # as the checkpoints of the three sizes have it
    with pytest.raises(FoundError) as found, torch.inference_mode():
        network(torch.zeros(1, 4, side // 8, side // 8), torch.zeros(1), torch.zeros(1, 12, 32))
    table = found.value.args[0].unflatten(0, (tokens, tokens))
    assert torch.allclose(table[-1, -1, 0], torch.tensor(last, dtype=torch.float64).sin())
    assert torch.allclose(table[0, 0, 0], torch.zeros((), dtype=torch.float64))


def test_the_report_lists_positions(app, model):
    text = app.run(
        "GBX_PositionalResample", model=model, base_size=0, alignment="corners", **_OTHERS
    )[1]
    assert (
        "Table of 192 positions per side" in text
        and "1536 px: 96 positions from 0 to 15.8333" in text
    )


@pytest.mark.parametrize("after", ["it", "another run"])
def test_a_resampled_model_that_nobody_holds_is_gone(resampled, after):
    """ComfyUI warns of a leak, and searches for circles, when a network outlives its MODELs."""

    def used() -> weakref.ref:
        model = sd3.model()
        moved = resampled(128, of=resampled(128, "centers", of=model))
        for one in (
            (moved, model) if after == "another run" else (moved,)
        ):  # which takes the patches off again
            run(one, side=24)
        return weakref.ref(model.model.diffusion_model)

    gc.collect()
    gc.disable()
    try:
        assert used()() is None
    finally:
        gc.enable()
