"""Image to Noise inside a real ComfyUI: stock samplers come back to the image through each of its
outputs, on models that predict noise, velocity and flow.
"""

import re

import pytest
import tiny_transformers
import torch

SEED = 5
_STEPS = 6
_CAPTION = "portrait, red hair, blue hoodie"


def gaussian(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.fixture(scope="module")
def demo(app):
    """The demo MODEL, the image's prompt and a LATENT of two of its images."""
    model, clip, vae = app.run("GBX_LoadDemoModel", weights="avatars-v2")
    positive = app.run("CLIPTextEncode", clip=clip, text=_CAPTION)[0]
    images = app.run("GBX_DemoPicture", image_index=3, count=2, part="face")[0]
    return model, positive, app.run("VAEEncode", pixels=images, vae=vae)[0]


@pytest.fixture(scope="module")
def flow():
    """A flow model, its prompt and a LATENT that is not square."""
    model = tiny_transformers.model("Flux")
    latent = {"samples": gaussian(2, 16, 8, 12, seed=1)}
    return model, tiny_transformers.conditioning(patcher=model), latent


@pytest.fixture(scope="module")
def velocity(app, demo):
    model, positive, latent = demo
    changed = app.run("ModelSamplingDiscrete", model=model, sampling="v_prediction", zsnr=False)
    return changed[0], positive, latent


@pytest.fixture(params=["noise", "velocity", "flow"])
def case(request):
    name = {"noise": "demo"}.get(request.param, request.param)
    return request.getfixturevalue(name)


def found(app, case, **changed):
    model, positive, latent = case
    given = {
        "steps": _STEPS,
        "scheduler": "normal",
        "denoise": 0.6,
        "seed": SEED,
        "corrections": 0,
    }
    return app.run(
        "GBX_ImageToNoise",
        model=model,
        positive=positive,
        **{"latent": latent, **given, **changed},
    )


def by_ksampler(app, case, latent, denoise=0.6, seed=SEED):
    model, positive, _ = case
    return app.run(
        "KSampler",
        model=model,
        seed=seed,
        steps=_STEPS,
        cfg=1.0,
        sampler_name="euler",
        scheduler="normal",
        positive=positive,
        negative=positive,
        latent_image=latent,
        denoise=denoise,
    )[0]["samples"]


def by_custom_sampler(app, case, noise, latent, denoise=0.6):
    model, positive, _ = case
    guider = app.run("BasicGuider", model=model, conditioning=positive)[0]
    sampler = app.run("KSamplerSelect", sampler_name="euler")[0]
    sigmas = app.run(
        "BasicScheduler", model=model, scheduler="normal", steps=_STEPS, denoise=denoise
    )[0]
    return app.run(
        "SamplerCustomAdvanced",
        noise=noise,
        guider=guider,
        sampler=sampler,
        sigmas=sigmas,
        latent_image=latent,
    )[0]["samples"]


def distance(case, samples):
    """Of each image, in its standard deviations."""
    difference = (samples - case[2]["samples"]).flatten(1).square().mean(dim=1).sqrt()
    return difference / case[2]["samples"].flatten(1).std(dim=1)


def test_both_outputs_start_a_sampler_at_the_same_state(app, case):
    latent, seed, noise, _ = found(app, case)
    one = by_ksampler(app, case, latent, seed=seed)
    other = by_custom_sampler(app, case, noise, case[2])
    assert torch.allclose(one, other, atol=2e-3 * float(other.abs().max()))


def test_the_report_says_what_the_sampler_loses(app, case):
    *_, noise, report = found(app, case)
    lost = float(distance(case, by_custom_sampler(app, case, noise, case[2])).max())
    reported = float(report.split("differs by ")[1].split(" ")[0])
    assert reported == pytest.approx(lost, abs=2e-3)
    assert lost > 0


def test_random_noise_loses_far_more(app, demo):
    *_, noise, _ = found(app, demo)
    kept = distance(demo, by_custom_sampler(app, demo, noise, demo[2])).max()
    random = distance(demo, by_ksampler(app, demo, demo[2])).min()
    assert kept < 0.5 * random


def test_corrections_come_back_to_the_image(app, case):
    *_, plain, _ = found(app, case)
    *_, noise, report = found(app, case, corrections=10)
    before, after = (
        float(distance(case, by_custom_sampler(app, case, one, case[2])).max())
        for one in (plain, noise)
    )
    assert after < 0.2 * before
    assert f"in {_STEPS} steps, {11 * _STEPS} evaluations" in report


def test_denoise_0_is_the_latent_itself(app, demo):
    latent, seed, noise, report = found(app, demo, denoise=0.0)
    assert latent is demo[2] or torch.equal(latent["samples"], demo[2]["samples"])
    assert seed == SEED
    assert "Nothing to follow" in report
    assert noise.generate_noise(demo[2]).shape == demo[2]["samples"].shape


def test_the_whole_way_up(app, case):
    """At denoise 1 a flow model drops its latent: one sentence, and the noise still works."""
    latent, _, noise, report = found(app, case, denoise=1.0)
    back = by_custom_sampler(app, case, noise, case[2], denoise=1.0)
    reported = float(report.split("differs by ")[1].split(" ")[0])
    assert reported == pytest.approx(float(distance(case, back).max()), abs=2e-3)
    flows = case[2]["samples"].shape[1] == 16
    assert ("No latent for KSampler" in report) == flows
    assert isinstance(latent, dict) != flows


def test_a_mask_goes_with_the_noise(app, demo):
    latent = demo[2]
    mask = torch.zeros(1, *latent["samples"].shape[-2:])
    mask[..., :, 4:] = 1.0
    masked = {**latent, "noise_mask": mask}
    _, _, noise, report = found(app, demo, latent=masked)
    assert "noise mask" in report
    back = by_custom_sampler(app, demo, noise, masked)
    assert torch.allclose(back[..., :4], latent["samples"][..., :4], atol=1e-4)


def test_noise_for_another_latent_is_one_sentence(app, demo):
    *_, noise, _ = found(app, demo)
    with pytest.raises(ValueError, match="connect the same latent to both"):
        noise.generate_noise({"samples": torch.zeros(1, 24, 8, 8)})


def test_an_empty_latent_is_one_sentence(app, demo):
    empty = app.run("EmptyLatentImage", width=128, height=64, batch_size=1)[0]
    with pytest.raises(ValueError, match="The latent is empty: connect the image through VAE"):
        found(app, demo, latent=empty)
    one_of_two = demo[2]["samples"].clone()
    one_of_two[1] = 0.0
    with pytest.raises(ValueError, match="The latent is empty"):
        found(app, demo, latent={"samples": one_of_two})


def test_nothing_global_changes(app, demo):
    torch.manual_seed(3)
    before = torch.random.get_rng_state()
    first = found(app, demo)[0]["samples"]
    assert torch.equal(torch.random.get_rng_state(), before)
    assert torch.equal(found(app, demo)[0]["samples"], first)


@pytest.mark.parametrize("kind", ["noise", "flow"])
def test_levels_that_end_above_0(app, kind, request):
    """The first part of a schedule, as Split Sigmas gives it, to a sampler that ends there, too."""
    case = request.getfixturevalue({"noise": "demo"}.get(kind, kind))
    levels = app.run("BasicScheduler", model=case[0], scheduler="normal", steps=10, denoise=0.7)[0]
    high = levels[:7]
    _, _, noise, report = found(app, case, sigmas=high, corrections=3)
    guider = app.run("BasicGuider", model=case[0], conditioning=case[1])[0]
    returned = app.run(
        "SamplerCustomAdvanced",
        noise=noise,
        guider=guider,
        sampler=app.run("KSamplerSelect", sampler_name="euler")[0],
        sigmas=high,
        latent_image=case[2],
    )[0]["samples"]
    lost = float(distance(case, returned).max())
    reported = float(re.search(r"differs by ([\d.]+)", report)[1])
    assert lost == pytest.approx(reported, rel=0.05, abs=0.005)
    assert lost < 0.2


@pytest.mark.parametrize("node", ["EasyCache", "LazyCache"])
def test_caches_of_steps_leave_no_call_out(app, demo, node):
    caching = {"reuse_threshold": 0.2, "start_percent": 0.15, "end_percent": 0.95}
    cached = app.run(node, model=demo[0], verbose=False, **caching)[0]
    by_cached = found(app, (cached, *demo[1:]), steps=16)
    assert torch.equal(by_cached[0]["samples"], found(app, demo, steps=16)[0]["samples"])


def test_rising_levels_are_one_sentence(app, demo):
    levels = app.run("BasicScheduler", model=demo[0], scheduler="normal", steps=6, denoise=0.6)[0]
    with pytest.raises(ValueError, match="The noise levels must fall, and only the last may be 0"):
        found(app, demo, sigmas=levels.flip(0))
