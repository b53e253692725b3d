"""Edit Image by Prompts inside a real ComfyUI, on models that predict noise, velocity and flow."""

import pytest
import tiny_transformers
import torch

SEED = 5
_STEPS = 5
_CFG = {"source_cfg": 1.5, "target_cfg": 3.0}


def gaussian(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.fixture(scope="module")
def demo(app):
    """The demo MODEL, prompts and a LATENT of two of its images."""
    model, clip, vae = app.run("GBX_LoadDemoModel", weights="avatars-v2")
    texts = {
        "source": "portrait, red hair, blue hoodie",
        "target": "portrait, black hair, blue hoodie",
        "negative": "",
    }
    prompts = {
        role: app.run("CLIPTextEncode", clip=clip, text=text)[0] for role, text in texts.items()
    }
    images = app.run("GBX_DemoPicture", image_index=3, count=2, part="face")[0]
    return model, prompts, app.run("VAEEncode", pixels=images, vae=vae)[0]


@pytest.fixture(scope="module")
def velocity(app, demo):
    model, prompts, latent = demo
    changed = app.run("ModelSamplingDiscrete", model=model, sampling="v_prediction", zsnr=False)
    return changed[0], prompts, latent


def tiny(name, latent):
    model = tiny_transformers.model(name)
    prompts = {
        role: tiny_transformers.conditioning(patcher=model, seed=seed)
        for seed, role in enumerate(("source", "target", "negative"), start=1)
    }
    return model, prompts, latent


@pytest.fixture(scope="module")
def flow():
    """A flow model with a LATENT that is not square."""
    return tiny("Flux", {"samples": gaussian(2, 16, 8, 12, seed=1)})


@pytest.fixture(params=["noise", "velocity", "flow"])
def case(request):
    return request.getfixturevalue({"noise": "demo"}.get(request.param, request.param))


def edited(app, case, **changed):
    model, prompts, latent = case
    given = {"steps": _STEPS, "scheduler": "normal", "denoise": 0.8, "seed": SEED, **_CFG}
    inputs = {"model": model, "latent": latent, **prompts, **given, **changed}
    return app.run("GBX_FlowEdit", **inputs)[0]["samples"]


def algorithm(noise):
    """Algorithm 1 of the paper in its own letters, as a sampler of ComfyUI."""
    import comfy.model_sampling
    import comfy.samplers

    class Algorithm(comfy.samplers.Sampler):
        def sample(self, guider, sigmas, extra_args, callback, zeros, image, *rest):
            flows = isinstance(guider.inner_model.model_sampling, comfy.model_sampling.CONST)
            prompts = dict(guider.conds)
            z_edit = image
            for step, drawn in enumerate(noise):
                t = sigmas[step]
                z_source = (1 - t if flows else 1) * image + t * drawn
                velocities = {}
                for role, z in (("source", z_source), ("target", z_edit + z_source - image)):
                    guider.conds["positive"] = prompts[role]
                    guider.cfg = _CFG[f"{role}_cfg"]
                    velocities[role] = (z - guider(z, t.expand(len(z)), **extra_args)) / t
                difference = velocities["target"] - velocities["source"]
                z_edit = z_edit + (sigmas[step + 1] - t) * difference
            return z_edit

    return Algorithm()


def test_equals_the_paper_s_algorithm(app, case):
    """With the same noise: that of every step is drawn from a seed of its own."""
    import comfy.samplers

    model, prompts, latent = case
    draws = torch.Generator().manual_seed(SEED)
    seeds = torch.randint(2**63 - 1, (_STEPS,), generator=draws).tolist()
    shape = latent["samples"].shape
    noise = []
    for seed in seeds:
        generator = torch.Generator().manual_seed(seed)
        noise.append(torch.cat([torch.randn(1, *shape[1:], generator=generator) for _ in range(2)]))
    guider = comfy.samplers.CFGGuider(model)
    guider.inner_set_conds({"positive": prompts["target"], **prompts})
    sampler = comfy.samplers.KSampler(
        model, steps=_STEPS, device="cpu", sampler="euler", scheduler="normal", denoise=0.8
    )
    with torch.inference_mode():
        expected = guider.sample(
            torch.zeros(shape),
            latent["samples"],
            algorithm(noise),
            sampler.sigmas,
            disable_pbar=True,
            seed=SEED,
        )
    found = edited(app, case)
    assert torch.allclose(found, expected, atol=1e-4 * float(expected.abs().max()))
    assert float((found - latent["samples"]).abs().mean()) > 1e-3


def test_one_prompt_leaves_the_image(app, case):
    same = edited(app, case, target=case[1]["source"], target_cfg=1.5)
    latent = case[2]["samples"]
    assert torch.allclose(same, latent, atol=1e-5 * float(latent.abs().max()))


def test_denoise_0_is_the_latent_itself(app, demo):
    assert torch.equal(edited(app, demo, denoise=0.0), demo[2]["samples"])


def test_seeds_differ_and_come_again(app, case):
    first = edited(app, case)
    assert torch.equal(edited(app, case), first)
    assert not torch.allclose(edited(app, case, seed=SEED + 1), first, atol=1e-3)


def test_a_mask_limits_the_edit(app, case):
    latent = case[2]
    mask = torch.zeros(1, *latent["samples"].shape[-2:])
    mask[..., 4:] = 1.0
    masked = edited(app, case, latent={**latent, "noise_mask": mask})
    change = (masked - latent["samples"]).abs()
    largest = float(latent["samples"].abs().max())
    assert float(change[..., :4].max()) < 1e-5 * largest
    assert float(change[..., 4:].max()) > 1e-2


def test_a_half_mask_changes_less(app, demo):
    latent = demo[2]
    half = torch.full((1, *latent["samples"].shape[-2:]), 0.5)
    fractional = edited(app, demo, latent={**latent, "noise_mask": half})
    whole = edited(app, demo)
    moved = [(one - latent["samples"]).abs().mean() for one in (fractional, whole)]
    assert 0 < moved[0] < 0.9 * moved[1]


def test_one_of_a_batch_is_edited_as_in_the_batch(app, case):
    one = app.run("LatentFromBatch", samples=case[2], batch_index=1, length=1)[0]
    alone = edited(app, case, latent=one)
    together = edited(app, case)[1:]
    assert torch.allclose(alone, together, atol=2e-3 * float(together.abs().max()))


def test_noise_levels_of_a_scheduler(app, demo):
    sigmas = app.run(
        "BasicScheduler", model=demo[0], scheduler="karras", steps=_STEPS, denoise=0.7
    )[0]
    by_sigmas = edited(app, demo, sigmas=sigmas)
    assert torch.equal(by_sigmas, edited(app, demo, scheduler="karras", denoise=0.7))


def test_at_cfg_1_the_negative_prompt_is_not_evaluated(app, demo):
    model = demo[0].clone()
    rows = []

    def counted(apply_model, arguments):
        rows.append(len(arguments["input"]))
        return apply_model(arguments["input"], arguments["timestep"], **arguments["c"])

    model.set_model_unet_function_wrapper(counted)
    edited(app, demo, model=model, source_cfg=1.0, target_cfg=1.0)
    assert sum(rows) == 2 * 2 * _STEPS
    rows.clear()
    edited(app, demo, model=model)
    assert sum(rows) == 2 * 2 * 2 * _STEPS


def test_frames_of_a_video(app):
    blank = tiny_transformers.latent(tiny_transformers.model("WAN21_T2V"), 1, 4, 6, frames=3)
    shape = blank["samples"].shape
    case = tiny("WAN21_T2V", {"samples": gaussian(*shape, seed=4)})
    found = edited(app, case)
    assert found.shape == shape
    assert float((found - case[2]["samples"]).abs().max()) > 1e-3


def test_an_empty_latent_is_one_sentence(app, demo):
    empty = app.run("EmptyLatentImage", width=128, height=64, batch_size=1)[0]
    with pytest.raises(ValueError, match="The latent is empty: connect the image through VAE"):
        edited(app, demo, latent=empty)


def test_nothing_global_changes(app, demo):
    torch.manual_seed(3)
    before = torch.random.get_rng_state()
    edited(app, demo)
    assert torch.equal(torch.random.get_rng_state(), before)


def largest_change(app, case, **changed):
    """How far two equal prompts move the image, as a fraction of its largest value."""
    latent = case[2]["samples"]
    same = edited(app, case, target=case[1]["source"], target_cfg=1.5, **changed)
    return float((same - latent).abs().max() / latent.abs().max())


def of_positive_rows(app, model):
    """The MODEL without the values of one layer, in rows of the positive prompt alone."""
    network = model.model.diffusion_model
    path = next(name for name, _ in network.named_modules() if name.endswith("attn2.to_v"))
    factors = {path: torch.zeros(network.get_submodule(path).out_features)}
    scaled = app.module("nodes.neurons.neuron_factors_comfy").with_scaled
    return scaled(model, factors, (1e9, 0.0), True)


@pytest.mark.parametrize("node", ["variety", "neurons"])
def test_what_acts_on_the_positive_prompt_acts_on_both(app, demo, node):
    noise = {"method": "annealed", "noise_scale": 0.5, "tau1": 0.2, "tau2": 0.8, "seed": 3}
    changed = (
        app.run("GBX_SeedVariety", model=demo[0], **noise)[0]
        if node == "variety"
        else of_positive_rows(app, demo[0])
    )
    assert largest_change(app, demo, model=changed) < 1e-5
    moved = (edited(app, demo, model=changed) - edited(app, demo)).abs().max()
    assert float(moved) > 1e-3


@pytest.mark.parametrize("node", ["EasyCache", "LazyCache"])
def test_caches_of_steps_leave_no_call_out(app, demo, node):
    caching = {"reuse_threshold": 0.2, "start_percent": 0.15, "end_percent": 0.95}
    cached = app.run(node, model=demo[0], verbose=False, **caching)[0]
    assert torch.equal(edited(app, demo, model=cached, steps=12), edited(app, demo, steps=12))


@pytest.mark.parametrize("on_both_sides", [False, True])
def test_a_controlnet_acts_on_the_prompt_that_it_is_on(app, demo, on_both_sides):
    import comfy.controlnet

    class Counting(comfy.controlnet.ControlBase):
        def __init__(self):
            super().__init__()
            self.rows = []

        def get_models(self):
            return []

        def get_control(self, x_noisy, *_):
            self.rows.append(len(x_noisy))

    control = Counting()
    target = [
        [text, {**more, "control": control, "control_apply_to_uncond": on_both_sides}]
        for text, more in demo[1]["target"]
    ]
    edited(app, demo, target=target)
    assert sum(control.rows) == 2 * (1 + on_both_sides) * _STEPS
    assert control.previous_controlnet is None


@pytest.mark.parametrize("order", ["rising", "a 0 inside"])
def test_levels_that_do_not_fall_are_one_sentence(app, flow, order):
    levels = app.run("BasicScheduler", model=flow[0], scheduler="normal", steps=6, denoise=0.8)[0]
    wrong = (
        levels.flip(0) if order == "rising" else torch.cat([levels[:3], torch.zeros(1), levels[3:]])
    )
    with pytest.raises(ValueError, match="The noise levels must fall, and only the last may be 0"):
        edited(app, flow, sigmas=wrong)


def test_an_area_of_one_prompt_is_not_in_the_other(app, demo):
    """A target in an area, beside a source of the whole image: each negative prompt has the areas
    of its own prompt, as in two KSamplers.
    """
    model = demo[0].clone()
    sizes = []

    def seen(apply_model, arguments):
        sizes.append(tuple(arguments["input"].shape[-2:]))
        return apply_model(arguments["input"], arguments["timestep"], **arguments["c"])

    model.set_model_unet_function_wrapper(seen)
    whole = demo[1]["target"]
    area = app.run(
        "ConditioningSetAreaPercentage",
        conditioning=whole,
        width=0.5,
        height=1.0,
        x=0.0,
        y=0.0,
        strength=1.0,
    )[0]
    edited(app, demo, model=model, target=[*whole, *area], steps=2)
    size = tuple(demo[2]["samples"].shape[-2:])
    # Per step: the source's two sides in one call, the target's whole and half.
    assert sizes.count((size[0], size[1] // 2)) == sizes.count(size) / 2
