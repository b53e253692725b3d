"""Composition Noise inside a real ComfyUI: stock at strength 0, and the same start through both of its outputs."""

import pytest
import torch

SEED = 77


def gaussian(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.fixture(scope="module")
def demo(app):
    """Demo MODEL, positive and negative conditioning."""
    model, clip, _ = app.run("GBX_LoadDemoModel", weights="avatars-v2")
    return model, *(app.run("CLIPTextEncode", clip=clip, text=text)[0] for text in ("blue hoodie", ""))


@pytest.fixture(scope="module")
def composed(app, demo):
    def run(latent, **changed):
        given = {"guide": {"samples": gaussian(1, 24, 16, 16, seed=3)}, "seed": SEED, "strength": 0.8, "cutoff": 2.0}
        return app.run(
            "GBX_CompositionNoise", latent=latent, **{**given, "low_cutoff": 0.0, "model": demo[0], **changed}
        )

    return run


def empty():
    return {"samples": torch.zeros(2, 24, 16, 16)}


def ksampler(app, demo, latent, seed=SEED):
    model, positive, negative = demo
    return app.run(
        "KSampler",
        model=model,
        seed=seed,
        steps=2,
        cfg=2.0,
        sampler_name="euler",
        scheduler="normal",
        positive=positive,
        negative=negative,
        latent_image=latent,
        denoise=1.0,
    )[0]["samples"]


def advanced(app, demo, noise):
    model, positive, negative = demo
    guider = app.run("CFGGuider", model=model, positive=positive, negative=negative, cfg=2.0)[0]
    sampler = app.run("KSamplerSelect", sampler_name="euler")[0]
    sigmas = app.run("BasicScheduler", model=model, scheduler="normal", steps=2, denoise=1.0)[0]
    return app.run(
        "SamplerCustomAdvanced", noise=noise, guider=guider, sampler=sampler, sigmas=sigmas, latent_image=empty()
    )[0]["samples"]


def test_strength_zero_is_stock(app, demo, composed):
    latent = empty()
    noise, for_ksampler, seed, *_ = composed(latent, strength=0.0)
    assert for_ksampler is latent and seed == SEED
    stock = app.run("RandomNoise", noise_seed=SEED)[0]
    assert torch.equal(noise.generate_noise(latent), stock.generate_noise(latent))
    assert torch.equal(advanced(app, demo, noise), ksampler(app, demo, latent))


def test_noise_and_latent_give_the_same_images(app, demo, composed):
    noise, for_ksampler, seed, report, figure = composed(empty())
    one, other = advanced(app, demo, noise), ksampler(app, demo, for_ksampler, seed)
    assert torch.allclose(one, other, atol=1e-3 * float(one.abs().max()))
    assert not torch.allclose(one, ksampler(app, demo, empty()), atol=1e-2)
    assert "Band of 0 to 2 cycles" in report and figure.shape[-1] == 3


def test_an_empty_latent_of_other_channels_is_repaired_as_in_a_ksampler(composed):
    stock = {"samples": torch.zeros(2, 4, 16, 16)}
    repaired, own = composed(stock)[1], composed(empty())[1]
    assert torch.equal(repaired["samples"], own["samples"])


def test_the_global_generator_is_left_as_random_noise_leaves_it(composed):
    torch.manual_seed(5)
    before = torch.get_rng_state()
    noise = composed(empty())[0]
    assert torch.equal(torch.get_rng_state(), before)
    noise.generate_noise(empty())


def test_without_a_model_the_latent_output_rests(composed):
    from comfy_execution.graph import ExecutionBlocker

    assert isinstance(composed(empty(), model=None)[1], ExecutionBlocker)


def test_flow_models_take_the_noise_alone(app, demo, composed):
    from comfy_execution.graph import ExecutionBlocker

    flow = app.run("ModelSamplingSD3", model=demo[0], shift=3.0)[0]
    noise, for_ksampler, _, report, _ = composed(empty(), model=flow)
    assert isinstance(for_ksampler, ExecutionBlocker) and "SamplerCustomAdvanced" in report
    assert noise.generate_noise(empty()).shape == (2, 24, 16, 16)
