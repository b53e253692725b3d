"""Memory of the first denoising step: the real number of rows is requested, and what does not fit
runs in parts.
"""

import pytest
import torch

SHAPE = (24, 8, 8)


@pytest.fixture(scope="module")
def demo(app):
    model, clip, _ = app.run("GBX_LoadDemoModel", weights="avatars-v2")
    return model, app.run("CLIPTextEncode", clip=clip, text="portrait, smiling")[0]


def predicted(app, demo, noise, factors):
    model, conditioning = demo
    with torch.inference_mode():
        first_step = app.module("nodes.neurons.first_step_comfy")
        return first_step.at_first_step(
            model, conditioning, SHAPE, 961, lambda predict: predict(noise, factors), len(noise)
        )


def test_rows_that_do_not_fit_are_evaluated_in_parts(app, demo, monkeypatch):
    import comfy.model_management as management

    path = "output_blocks.5.1.transformer_blocks.0.attn2.to_v"
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(7, *SHAPE, generator=generator)
    factors = {path: (torch.rand(7, 64, generator=generator) > 0.5).float()}
    whole, calls = predicted(app, demo, noise, factors), []
    module = demo[0].model.diffusion_model.get_submodule(path)
    handle = module.register_forward_hook(lambda _module, _args, output: calls.append(len(output)))
    room = 1.5 * demo[0].model.memory_required([2, *SHAPE])
    monkeypatch.setattr(
        management,
        "get_free_memory",
        lambda _device=None, both=False: (room, room) if both else room,
    )
    try:
        parts = predicted(app, demo, noise, factors)
    finally:
        handle.remove()
    assert calls == [2, 2, 2, 1]
    # what the network adds to the noise, which is small beside it
    assert (parts - whole).abs().max() < 1e-3 * (whole - noise).abs().max()


def test_comfyui_makes_room_for_all_rows(app, demo, monkeypatch):
    import comfy.sampler_helpers as helpers

    shapes, prepare = [], helpers.prepare_sampling

    def recorded(patcher, shape, *args, **kwargs):
        shapes.append(tuple(shape))
        return prepare(patcher, shape, *args, **kwargs)

    monkeypatch.setattr(helpers, "prepare_sampling", recorded)
    predicted(app, demo, torch.randn(5, *SHAPE), None)
    assert shapes == [(5, *SHAPE)]
