"""Composition Noise inside a real ComfyUI: stock at strength 0, and the same start through both of
its outputs.
"""

import pytest
import torch

SEED = 77


def gaussian(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.fixture(scope="module")
def demo(app):
    """Demo MODEL, positive and negative conditioning."""
    model, clip, _ = app.run("GBX_LoadDemoModel", weights="avatars-v2")
    return model, *(
        app.run("CLIPTextEncode", clip=clip, text=text)[0] for text in ("blue hoodie", "")
    )


@pytest.fixture(scope="module")
def vae(app):
    return app.run("GBX_LoadDemoModel", weights="avatars-v2")[2]


@pytest.fixture(scope="module")
def composed(app, demo):
    def run(latent, **changed):
        given = {
            "guide": {"samples": gaussian(1, 24, 16, 16, seed=3)},
            "seed": SEED,
            "strength": 0.8,
            "cutoff": 2.0,
        }
        return app.run(
            "GBX_CompositionNoise",
            latent=latent,
            **{**given, "low_cutoff": 0.0, "model": demo[0], **changed},
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
        "SamplerCustomAdvanced",
        noise=noise,
        guider=guider,
        sampler=sampler,
        sigmas=sigmas,
        latent_image=empty(),
    )[0]["samples"]


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({}, None),
        ({"shape": "custom", "strength": 0.55}, None),
        ({"shape": "soft"}, None),  # sets what was entered
        (
            {"shape": "soft", "cutoff": 3.0},
            "sets strength 0.8 and cutoff 2; those entered, 0.8 and 3, are not used",
        ),
        (
            {"shape": "firm", "strength": 0.0},
            "sets strength 0.4 and cutoff 4; those entered, 0 and 2, are not used",
        ),
    ],
)
def test_the_report_says_which_numbers_a_shape_leaves_unused(composed, given, line):
    report = composed(empty(), **given)[3]
    assert line in report if line else "are not used" not in report


def test_strength_zero_is_stock(app, demo, composed):
    latent = empty()
    noise, for_ksampler, seed, *_ = composed(latent, strength=0.0)
    assert for_ksampler is latent and seed == SEED
    stock = app.run("RandomNoise", noise_seed=SEED)[0]
    assert torch.equal(noise.generate_noise(latent), stock.generate_noise(latent))
    assert torch.equal(advanced(app, demo, noise), ksampler(app, demo, latent))


def test_another_noise_is_reordered_and_its_seed_counts(app, demo, composed):
    """Random Noise of the same seed gives the same; another noise is what is reordered, in both
    outputs.
    """
    noise, for_ksampler, seed, *_ = composed(
        empty(), noise=app.run("RandomNoise", noise_seed=SEED)[0], seed=3
    )
    expected, latent, *_ = composed(empty())
    assert seed == SEED and torch.equal(
        noise.generate_noise(empty()), expected.generate_noise(empty())
    )
    assert torch.equal(for_ksampler["samples"], latent["samples"])
    disabled = app.run("DisableNoise")[0]
    noise, for_ksampler, *_ = composed(empty(), noise=disabled, strength=0.0)
    assert torch.equal(noise.generate_noise(empty()), torch.zeros(2, 24, 16, 16))
    one, other = advanced(app, demo, noise), ksampler(app, demo, for_ksampler, disabled.seed)
    assert torch.allclose(one, other, atol=1e-3 * float(one.abs().max()))


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


def area():
    mask = torch.zeros(1, 128, 128)
    mask[:, 40:, 30:100] = 1
    return mask


@pytest.fixture(scope="module")
def by_mask(composed):
    def run(**changed):
        return composed(empty(), **{"guide": None, "mask": area(), "shape": "firm", **changed})

    return run


def test_a_mask_needs_no_vae_and_takes_the_guides_colors(by_mask, vae):
    runs = {
        "preview": by_mask(),
        "guide": by_mask(guide={"samples": gaussian(8, 24, 16, 16, seed=3)}),
    }
    runs["vae"] = by_mask(vae=vae)
    noise_of = {name: outputs[0].generate_noise(empty()) for name, outputs in runs.items()}
    assert "by the model's preview" in runs["preview"][3] and "mean values" in runs["guide"][3]
    assert "by the VAE" in runs["vae"][3] and "strength 0.4" in runs["vae"][3]
    one, other = noise_of["preview"].flatten(), noise_of["vae"].flatten()
    drawn = by_mask(strength=0.0, shape="custom")[0].generate_noise(empty()).flatten()
    moved = torch.nn.functional.cosine_similarity(one - drawn, other - drawn, dim=0)
    assert moved > 0.3 and not torch.equal(one, other)
    assert not torch.equal(noise_of["guide"], noise_of["preview"])


def test_colors_change_the_noise_of_a_mask(by_mask):
    one, other = (
        by_mask(background=color)[0].generate_noise(empty()) for color in ("#6b9eed", "fff4a0")
    )
    assert not torch.equal(one, other)


def test_a_shape_replaces_both_numbers_and_custom_neither(composed):
    given = {"strength": 0.8, "cutoff": 2.0}
    old, custom, soft, firm, by_hand = (
        composed(empty(), **given, **more)[0].generate_noise(empty())
        for more in ({}, {"shape": "custom"}, {"shape": "soft"}, {"shape": "firm"}, {})
    )
    assert torch.equal(old, custom) and torch.equal(old, soft) and torch.equal(old, by_hand)
    numbers = composed(empty(), strength=0.4, cutoff=4.0)[0].generate_noise(empty())
    assert torch.equal(firm, numbers) and not torch.equal(firm, soft)


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"mask": None}, "connect a guide, a mask"),
        ({"background": "sky blue"}, "is not a color"),
        ({"model": None}, "connect vae or model"),
        ({"mask": torch.zeros(1, 8, 8)}, "same everywhere"),
    ],
)
def test_masks_that_cannot_be_followed_are_refused(by_mask, changed, sentence):
    with pytest.raises(ValueError, match=sentence):
        by_mask(**changed)


def test_the_node_composes_at_its_strength(app, composed):
    composition = app.module("nodes.noise.composition")
    guide = gaussian(1, 24, 16, 16, seed=3)
    latent = {"samples": torch.zeros(1, 24, 16, 16)}
    made = composed(latent, strength=0.35, shape="custom")[0].generate_noise(latent)
    drawn = app.run("RandomNoise", noise_seed=SEED)[0].generate_noise(latent)
    settings = composition.CompositionSettings(strength=0.35, cutoff=2.0, low=0.0)
    expected = composition.compose_noise(settings, drawn, guide=guide)
    assert torch.equal(made, expected)
    assert not torch.equal(made, drawn)
