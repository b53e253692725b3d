"""Seed Variety inside a real ComfyUI: what the network is given, beside guiders, areas, batches and
other nodes.
"""

import conditioned
import pytest
import tiny_transformers
import torch
from conditioned import prompt, sample
from tapping import World

SIGMAS = [14.6146, 6.0, 3.0, 1.0, 0.3, 0.0]
SIZE = {"width": 512, "height": 256}
SEED = conditioned.SEED


@pytest.fixture(scope="module")
def model(app):
    return conditioned.model("sdxl")


@pytest.fixture(scope="module")
def varied(app):
    """Seed Variety on a MODEL; keywords replace the settings of this file."""

    def run(patcher, **changes):
        inputs = {"method": "annealed", "noise_scale": 0.4, "tau1": 0.3, "tau2": 0.8, "seed": 11}
        return app.run("GBX_SeedVariety", model=patcher, **{**inputs, **changes})[0]

    return run


def watch(patcher):
    """A clone of a MODEL, and a list of the conditioning of each call of its network by name."""
    from comfy.patcher_extension import WrappersMP

    seen = []

    def call(executor, x, t, *args, **kwargs):
        options = args[3]
        names = ("c_crossattn", "y", "encoder_hidden_states_llama3")
        given = {name: kwargs[name].clone() for name in names if kwargs.get(name) is not None}
        if args[1] is not None:
            given["c_crossattn"] = args[1].clone()
        seen.append(
            {
                **given,
                "groups": list(options["cond_or_uncond"]),
                "sigma": float(options["sigmas"][0]),
                "images": len(x) // len(options["cond_or_uncond"]),
            }
        )
        return executor(x, t, *args, **kwargs)

    clone = patcher.clone()
    clone.add_wrapper_with_key(WrappersMP.APPLY_MODEL, "test_watch", call)
    return clone, seen


def rows(call, group, name="c_crossattn"):
    """What the images of one conditioning of a call are given."""
    place = call["groups"].index(group)
    return call[name][place * call["images"] : (place + 1) * call["images"]]


def guider(patcher, positive=None, negative=None, cfg=3.0):
    positive = positive or prompt("sdxl", **SIZE)
    return conditioned.guider(patcher, positive, negative or prompt("sdxl", 1, **SIZE), cfg)


def texts(patcher, group=0, name="c_crossattn", sigmas=SIGMAS, **how):
    """What one conditioning is given at each call, by noise level."""
    watched, seen = watch(patcher)
    sample(guider(watched), sigmas, **how)
    return {call["sigma"]: rows(call, group, name) for call in seen if group in call["groups"]}


def times(app, patcher, sigmas=SIGMAS):
    module = app.module("nodes.conditioning.condition_annealing_comfy")
    sampling = patcher.get_model_object("model_sampling")
    return {sigma: module.time_of(sampling, sigma) for sigma in sigmas}


@pytest.mark.parametrize("off", [{"noise_scale": 0.0}, {"tau1": 1.0, "tau2": 1.0}])
def test_off_is_the_stock_model(model, varied, off):
    assert varied(model, **off).wrappers == model.wrappers
    stock = sample(guider(model), SIGMAS)
    assert torch.equal(sample(guider(varied(model, **off)), SIGMAS), stock)


@pytest.mark.parametrize("method", ["annealed", "annealed_fixed", "constant"])
def test_the_network_is_given_the_formula(app, model, varied, method):
    """Written out again: y_hat, rescaled, at the gamma of each step."""
    given = texts(varied(model, method=method), count=2)
    plain = texts(model, count=2)
    module = app.module("nodes.conditioning.condition_annealing")
    place = times(app, model)
    touched = 0
    for number, sigma in enumerate(plain):
        t = place[min(place, key=lambda each: abs(each - sigma))]
        y = plain[sigma].double()
        gamma = min(max((0.8 - t) / 0.5, 0.0), 1.0)
        if t <= 0.3:
            assert torch.equal(given[sigma], plain[sigma])
            continue
        touched += 1
        tick = round(1000 * t) if method == "annealed" else -1
        n = torch.stack(
            [module.draw_noise((77, 128), (11, SEED + i, tick, "c_crossattn")) for i in (0, 1)]
        ).double()
        std = y.std(-1, keepdim=True, correction=0)
        if method == "constant":
            expected = y + 0.4 * std * n
        else:
            hat = gamma**0.5 * y + 0.4 * (1 - gamma) ** 0.5 * std * n
            hat_std = hat.std(-1, keepdim=True, correction=0)
            expected = (hat - hat.mean(-1, keepdim=True)) / hat_std * std + y.mean(-1, keepdim=True)
        assert torch.allclose(given[sigma].double(), expected, atol=2e-4), number
    assert 2 <= touched < len(plain)


def test_the_negative_prompt_is_as_it_was(model, varied):
    given = texts(varied(model), group=1)
    assert all(torch.equal(given[sigma], text) for sigma, text in texts(model, group=1).items())


def test_the_pooled_text_has_noise_and_the_size_has_none(model, varied):
    given = texts(varied(model), name="y")
    plain = texts(model, name="y")
    first = max(plain)
    assert not torch.allclose(given[first][:, :64], plain[first][:, :64], atol=0.1)
    assert torch.equal(given[first][:, 64:], plain[first][:, 64:])
    assert torch.equal(given[min(plain)], plain[min(plain)])


@pytest.mark.parametrize("method", ["annealed", "annealed_fixed"])
def test_an_image_of_a_batch_is_that_of_a_later_seed(model, varied, method):
    """So that Seed Scout's batches and a KSampler of one image have the same noise."""
    together = texts(varied(model, method=method), count=3)
    for image in range(3):
        alone = texts(varied(model, method=method), seed=SEED + image)
        for sigma, text in alone.items():
            assert torch.equal(together[sigma][image], text[0])
    first = together[max(together)]
    assert not torch.allclose(first[0], first[1], atol=0.1)


def test_noise_follows_its_own_seed_and_no_other_generator(model, varied):
    state = torch.random.get_rng_state()
    one = sample(guider(varied(model)), SIGMAS)
    assert torch.equal(sample(guider(varied(model)), SIGMAS), one)
    assert not torch.allclose(sample(guider(varied(model, seed=12)), SIGMAS), one, atol=1e-3)
    assert not torch.allclose(sample(guider(model), SIGMAS), one, atol=1e-3)
    assert torch.equal(torch.random.get_rng_state(), state)


def test_each_step_has_new_noise_or_the_same(model, varied):
    """At full noise the embedding is the noise itself, in the token's mean and deviation."""
    early = [14.6146, 12.0, 0.0]
    for method, is_same in (("annealed", False), ("annealed_fixed", True)):
        first, second = texts(varied(model, method=method, tau2=0.5), sigmas=early).values()
        assert torch.allclose(first, second, atol=1e-4) == is_same


def test_a_run_in_two_parts_is_the_run(app, model, varied):
    positive = prompt("sdxl", **SIZE)
    inputs = {
        "model": varied(model),
        "noise_seed": 4,
        "steps": 6,
        "cfg": 3.0,
        "sampler_name": "euler",
        "scheduler": "normal",
        "positive": positive,
        "negative": prompt("sdxl", 1, **SIZE),
    }
    latent = {"samples": torch.zeros(2, 4, 8, 8)}

    def part(latent, add_noise, begin, end, leftover):
        return app.run(
            "KSamplerAdvanced",
            **inputs,
            latent_image=latent,
            add_noise=add_noise,
            start_at_step=begin,
            end_at_step=end,
            return_with_leftover_noise=leftover,
        )[0]

    whole = part(latent, "enable", 0, 6, "disable")["samples"]
    half = part(latent, "enable", 0, 2, "enable")
    assert torch.allclose(part(half, "disable", 2, 6, "disable")["samples"], whole, atol=1e-4)


def test_all_evaluations_of_a_step_share_its_noise(app, model, varied):
    """Heun evaluates between the levels of the schedule, too."""
    import comfy.samplers

    watched, seen = watch(varied(model, tau1=0.0, tau2=0.0))
    made = guider(watched)
    noise = torch.randn(1, 4, 8, 8, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        made.sample(
            noise,
            torch.zeros_like(noise),
            comfy.samplers.sampler_object("dpm_2"),
            torch.tensor([14.0, 7.0, 2.0, 0.0]),
            disable_pbar=True,
            seed=SEED,
        )
    given = [(call["sigma"], rows(call, 0)) for call in seen]
    between = [text for sigma, text in given if sigma not in (14.0, 7.0, 2.0)]
    at = {sigma: text for sigma, text in given if sigma in (14.0, 7.0, 2.0)}
    assert len(between) == 2
    assert torch.equal(between[0], at[14.0]) and torch.equal(between[1], at[7.0])
    assert not torch.equal(at[14.0], at[7.0])


def regional(app):
    """Two prompts, one for an area; the negative has no area."""
    left = app.run(
        "ConditioningSetArea",
        conditioning=prompt("sdxl", 2, **SIZE),
        width=32,
        height=64,
        x=0,
        y=0,
        strength=1.0,
    )[0]
    return app.run(
        "ConditioningCombine", conditioning_1=prompt("sdxl", **SIZE), conditioning_2=left
    )[0]


def test_areas_batched_or_one_after_the_other(app, model, varied, monkeypatch):
    changed = varied(model)
    together = sample(guider(changed, regional(app)), SIGMAS, count=2)
    with conditioned.one_at_a_time(monkeypatch):
        apart = sample(guider(changed, regional(app)), SIGMAS, count=2)
    assert torch.allclose(apart, together, atol=1e-4 * float(together.abs().max()))
    stock = sample(guider(model, regional(app)), SIGMAS, count=2)
    assert not torch.allclose(together, stock, atol=1e-2)


def test_an_areas_copy_on_the_other_side_is_as_it_was(app, model, varied):
    watched, seen = watch(varied(model))
    sample(guider(watched, regional(app)), SIGMAS)
    stock_watched, stock = watch(model)
    sample(guider(stock_watched, regional(app)), SIGMAS)
    negatives, stock_negatives = (
        [rows(call, 1) for call in calls if 1 in call["groups"]] for calls in (seen, stock)
    )
    assert len(negatives) == len(stock_negatives) > 0
    assert all(map(torch.equal, negatives, stock_negatives))


def test_four_steps_without_guidance(model, varied):
    """A distilled model's run: one row, the prompt's own."""
    sigmas = [14.6146, 3.0, 1.0, 0.3, 0.0]
    watched, seen = watch(varied(model))
    sample(guider(watched, cfg=1.0), sigmas)
    assert [call["groups"] for call in seen] == [[0]] * 4
    plain = texts(model, sigmas=sigmas)
    changed = [not torch.equal(rows(call, 0), plain[call["sigma"]]) for call in seen]
    assert changed == sorted(changed, reverse=True) and 0 < sum(changed) < 4


def test_metadata_guider_has_one_noise_for_both_of_its_prompts(app, model, varied):
    def made(patcher):
        return app.run(
            "GBX_MetadataGuider",
            model=patcher,
            positive=prompt("sdxl", **SIZE),
            negative=prompt("sdxl", 1),
            cfg=3.0,
            metadata_strength=0.5,
            fields="sizes_and_crop",
            reference_width=0,
            reference_height=0,
        )[0]

    watched, seen = watch(varied(model))
    sample(made(watched), [14.6146, 0.0])
    stock, stock_seen = watch(model)
    sample(made(stock), [14.6146, 0.0])
    negative, reference, requested = (rows(seen[0], group) for group in (0, 1, 2))
    assert torch.equal(reference, requested)
    assert not torch.allclose(requested, rows(stock_seen[0], 2), atol=0.1)
    assert torch.equal(negative, rows(stock_seen[0], 0))


@pytest.mark.parametrize("mode", ["value", "embedding"])
def test_beside_a_metadata_schedule_in_either_order(app, model, varied, mode):
    one = sample(guider(varied(conditioned.scheduled(app, model, mode=mode))), SIGMAS)
    other = sample(guider(conditioned.scheduled(app, varied(model), mode=mode)), SIGMAS)
    assert torch.equal(one, other)
    assert not torch.allclose(one, sample(guider(varied(model)), SIGMAS), atol=1e-4)


def test_two_of_them_act_one_after_the_other(model, varied):
    twice = texts(varied(varied(model), seed=5))
    once = texts(varied(model))
    assert not torch.allclose(twice[max(once)], once[max(once)], atol=0.1)


def test_a_failed_run_leaves_the_guider_as_it_was(model, varied):
    from comfy.patcher_extension import WrappersMP

    changed = varied(model)

    def fail(executor, *args, **kwargs):
        raise RuntimeError("stopped")

    changed.add_wrapper_with_key(WrappersMP.APPLY_MODEL, "test_fail", fail)
    made = guider(changed)
    with pytest.raises(RuntimeError, match="stopped"):
        sample(made, SIGMAS)
    positive = made.conds["positive"][0]["model_conds"]["c_crossattn"].cond
    assert torch.equal(positive, prompt("sdxl", **SIZE)[0][0])


@pytest.mark.parametrize(
    ("name", "frames", "extra"),
    [("Flux", 1, "y"), ("QwenImage", 1, None), ("HiDream", 1, "encoder_hidden_states_llama3"),
     ("WAN21_T2V", 3, None), ("Lumina2", 1, None)],
)  # fmt: skip
def test_transformers_and_video(app, varied, name, frames, extra):
    patcher = tiny_transformers.model(name)
    positive = tiny_transformers.conditioning(patcher=patcher)
    latent = tiny_transformers.latent(patcher, 2, 8, 8, frames)
    made = {}
    for key, changed in (("stock", patcher), ("varied", varied(patcher, tau1=0.5))):
        watched, seen = watch(changed)
        samples = app.run(
            "KSampler",
            model=watched,
            seed=3,
            steps=4,
            cfg=1.0,
            sampler_name="euler",
            scheduler="simple",
            positive=positive,
            negative=positive,
            latent_image=latent,
            denoise=1.0,
        )[0]["samples"]
        made[key] = samples, seen
    assert made["varied"][0].shape == made["stock"][0].shape
    assert bool(made["varied"][0].isfinite().all())
    seen, plain = made["varied"][1], made["stock"][1]
    for text in filter(None, ("c_crossattn", extra)):
        if text not in plain[0]:
            continue
        assert not torch.allclose(seen[0][text], plain[0][text], atol=1e-2), text
        assert not torch.allclose(seen[0][text][0], seen[0][text][1], atol=1e-2), text
        assert torch.equal(seen[-1][text], plain[-1][text])


@pytest.mark.parametrize("kind", ["eps", "shifted flow", "rescaled", "zsnr", "edm"])
def test_times_are_those_of_comfyuis_percents(app, model, kind):
    patcher = model
    if kind == "shifted flow":
        patcher = tiny_transformers.model("QwenImage")
    elif kind == "rescaled":
        module = app.module("nodes.conditioning.noise_rescale_comfy")
        patcher = module.rescaled(model, 1.5, "sampler_only")
    elif kind == "zsnr":
        patcher = app.run("GBX_LoadDemoModel", weights="avatars-v2")[0]
    elif kind == "edm":
        patcher = app.run(
            "ModelSamplingContinuousEDM",
            model=model,
            sampling="v_prediction",
            sigma_max=120.0,
            sigma_min=0.002,
        )[0]
    sampling = patcher.get_model_object("model_sampling")
    time_of = app.module("nodes.conditioning.condition_annealing_comfy").time_of
    for t in (0.05, 0.31, 0.6, 0.777, 0.93):
        assert time_of(sampling, float(sampling.percent_to_sigma(1 - t))) == pytest.approx(
            t, abs=2e-3
        )
    assert time_of(sampling, float(sampling.sigma_max)) == pytest.approx(1, abs=1e-6)
    assert time_of(sampling, 0.0) == 0


@pytest.mark.parametrize("order", ["before", "behind"])
def test_a_heat_map_finds_the_words(app, varied, order):
    """What a prompt's tokens are recognized by is the prompt without noise."""
    demo = World(app, *app.run("GBX_LoadDemoModel", weights="avatars-v2"))
    model = varied(demo.model) if order == "before" else demo.model
    watched, recording = demo.record(
        model=model, ids="", preset="cross_attention_mean", rows="conditional", mean_only=True
    )
    samples = demo.sample(varied(watched) if order == "behind" else watched)
    activations = demo.read(recording, samples)[0]
    _, masks, words = app.run(
        "GBX_TokenHeatMap",
        activations=activations,
        image=app.run("VAEDecode", samples=samples, vae=demo.vae)[0],
        clip=demo.clip,
        prompt="portrait, red hair",
        words="hair",
        prompt_role="positive",
        normalize_per_word=True,
        opacity=0.5,
    )
    assert "hair" in words
    assert float(masks.max()) > float(masks.min())
