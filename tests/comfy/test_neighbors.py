"""Hooking nodes beside what other packs do to a call: areas, tiles, rows multiplied or attention
replaced.

The stand-ins behave as the kinds of nodes that their names say; none is anybody's code.
"""

import pytest
import reduced
import torch
from context_windows import windows_over_images
from robustness import call_reference
from tapping import World

SPATIAL, QUERY = "up-level1-repeat0-res-out", "up-level0-repeat0-vit-block0-cross-q"


@pytest.fixture(scope="module")
def demo(app):
    return World(app, *app.run("GBX_LoadDemoModel", weights="avatars-v2"))


def area(demo, conditioning, x, y, width, height):
    given = {"x": x, "y": y, "width": width, "height": height, "strength": 1.0}
    return demo.app.run("ConditioningSetArea", conditioning=conditioning, **given)[0]


def combined(demo, *conditionings):
    first, *others = conditionings
    for other in others:
        first = demo.app.run("ConditioningCombine", conditioning_1=first, conditioning_2=other)[0]
    return first


def text(demo, prompt):
    return demo.app.run("CLIPTextEncode", clip=demo.clip, text=prompt)[0]


def direction(demo, *ids):
    steering = demo.app.module("nodes.activations.steering")
    specs = demo.app.module("nodes.activations.catalog_unet").catalog(
        demo.model.model.diffusion_model
    )
    channels = {spec.id: spec.channels for spec in specs}
    generator = torch.Generator().manual_seed(0)
    return steering.SteeringDirection(
        {id_: torch.randn(channels[id_], generator=generator) for id_ in ids}, "test"
    )


def steered(demo, model=None, ids=(SPATIAL,), **changes):
    given = {
        "strength": 3.0,
        "start_percent": 0.0,
        "end_percent": 1.0,
        "rows": "conditional",
        "preserve_norm": False,
    }
    given |= {"model": model or demo.model, "direction": direction(demo, *ids)}
    return demo.app.run("GBX_ActivationSteering", **{**given, **changes})[0]


def left_half(side=128):
    mask = torch.zeros(1, side, side)
    mask[..., : side // 2] = 1
    return mask


# Areas: each against a run that samples the area alone.


def test_a_mask_beside_an_area_changes_nothing_in_it(demo):
    """Steered in the left half, with a positive prompt that acts in the right half alone."""
    right = area(demo, demo.positive, 64, 0, 64, 128)
    model = steered(demo, mask=left_half(), rows="conditional")
    plain, changed = (demo.sample(one, positive=right)["samples"] for one in (demo.model, model))
    assert torch.equal(plain, changed)


def test_a_mask_over_an_area_is_no_mask_in_it(demo):
    left = area(demo, demo.positive, 0, 0, 64, 128)
    masked, bare = (
        demo.sample(steered(demo, **given), positive=left)["samples"]
        for given in ({"mask": left_half()}, {})
    )
    assert torch.equal(masked, bare)
    assert not torch.equal(masked, demo.sample(demo.model, positive=left)["samples"])


def denoised(demo, model, positive, latent, sigma=2.0):
    evaluate = demo.app.module("nodes.host.evaluate")
    with torch.inference_mode():
        return evaluate.evaluate(model, positive, {"samples": latent}, sigma, 0)


@pytest.fixture(scope="module")
def sizeless(app):
    """A model that is not given the size of the image, so that an area is as a latent of its
    own.
    """
    return World(app, *reduced.checkpoint("sd15"))


@pytest.mark.parametrize("sides", [(128, 128), (128, 64), (48, 32)])
def test_two_areas_get_their_own_parts_of_a_mask(sizeless, sides):
    """Of a fractional mask on a wide latent, against each area as a latent of its own with its part
    of the mask.
    """
    demo = sizeless
    height, width = 128, 192
    generator = torch.Generator().manual_seed(3)
    mask = torch.rand(1, *sides, generator=generator)
    latent = demo.latent(1, height, width, seed=3)["samples"]
    texts = text(demo, "portrait, red hair"), text(demo, "portrait, blue hoodie")
    places = (0, 8), (8, 24)  # columns of the latent
    evaluate = demo.app.module("nodes.host.evaluate")
    noise = evaluate.noise_for(latent, 0)
    fine = torch.nn.functional.interpolate(mask[:, None], size=latent.shape[2:], mode="area")[:, 0]
    expected = []
    for prompt, (first, last) in zip(texts, places, strict=True):
        part = (
            fine[..., first:last]
            if sides[1] % 24
            else mask[..., first * sides[1] // 24 : last * sides[1] // 24]
        )
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(
                evaluate, "noise_for", lambda *_, first=first, last=last: noise[..., first:last]
            )
            expected.append(
                denoised(
                    demo, steered(demo, mask=part), prompt, latent[..., first:last].contiguous()
                )
            )
    areas = [
        area(demo, prompt, first * 8, 0, (last - first) * 8, height)
        for prompt, (first, last) in zip(texts, places, strict=True)
    ]
    found = denoised(demo, steered(demo, mask=mask), combined(demo, *areas), latent)
    inside = found.clone()
    for (first, last), one in zip(places, expected, strict=True):
        inside[..., first:last] = one
    assert (found - inside).abs().max() <= 1e-4 * inside.abs().max()
    unmasked = denoised(demo, steered(demo), combined(demo, *areas), latent)
    assert (unmasked - inside).abs().max() > 0.05 * inside.abs().max()


# Tiles of unknown place.


def tiled(model, together=False):
    """A wrapper that evaluates the left and the right half of the latent under inference mode, as
    tiling nodes do.
    """

    def wrapper(apply_model, given):
        x, t, c = given["input"], given["timestep"], given["c"]
        half = x.shape[3] // 2
        tiles = [x[..., :half], x[..., half:]]
        with torch.inference_mode():
            if not together:
                return torch.cat([apply_model(tile, t, **c) for tile in tiles], dim=3)
            twice = {
                name: torch.cat([one] * 2) if torch.is_tensor(one) else one
                for name, one in c.items()
            }
            return torch.cat(
                apply_model(torch.cat(tiles), torch.cat([t] * 2), **twice).chunk(2), dim=3
            )

    clone = model.clone()
    clone.set_model_unet_function_wrapper(wrapper)
    return clone


@pytest.mark.parametrize("together", [False, True])
def test_a_mask_with_tiles_is_refused_and_names_tiling(demo, together):
    with pytest.raises(ValueError, match="tiles or context windows"):
        demo.sample(tiled(steered(demo, mask=left_half()), together))


@pytest.mark.parametrize("before", [True, False])
def test_stock_context_windows_over_a_batch(demo, before):
    """Windows of two of four images: steered as without them; one mask for each image cannot be
    placed.
    """
    latent, masks = (
        demo.latent(4, seed=3),
        torch.rand(4, 128, 128, generator=torch.Generator().manual_seed(1)),
    )

    def sample(**changes):
        model = demo.model if before else steered(demo, **changes)
        model = windows_over_images(demo.app, model, 2)
        return demo.sample(steered(demo, model=model, **changes) if before else model, latent)[
            "samples"
        ]

    expected = demo.sample(steered(demo), latent)["samples"]
    assert (sample() - expected).abs().max() <= 1e-4 * expected.abs().max()
    with pytest.raises(
        ValueError, match="tiles or context windows, whose place in the image is not known"
    ):
        sample(mask=masks)


def test_without_a_mask_tiles_are_steered_alike(demo):
    """Rows of several tiles in one call are distinguished by their texts."""
    apart, together = (demo.sample(tiled(steered(demo), one))["samples"] for one in (False, True))
    assert (apart - together).abs().max() < 1e-4 * apart.abs().max()
    assert not torch.equal(apart, demo.sample(tiled(demo.model))["samples"])


@pytest.mark.parametrize("together", [False, True])
def test_a_recorder_beside_tiles_names_them_and_lets_the_run_end(demo, together):
    model, recording = demo.record()
    plain = demo.sample(tiled(demo.model, together))
    samples = demo.sample(tiled(model, together))
    assert torch.equal(plain["samples"], samples["samples"])
    with pytest.raises(ValueError, match="tiles or context windows"):
        demo.read(recording, samples)


def test_a_tap_beside_tiles_names_them(demo):
    with pytest.raises(ValueError, match="tiles or context windows"):
        demo.tap(SPATIAL, model=tiled(demo.model))


# Rows multiplied inside attention.


def coupled(demo, model, sides):
    return call_reference.coupled(model, text(demo, "portrait, blue hoodie")[0][0], sides)


COUPLES = [(0,), (1,), (0, 1)]


@pytest.mark.parametrize("sides", COUPLES)
def test_a_recorder_beside_a_couple_skips_what_it_cannot_tell(demo, sides):
    model, recording = demo.record(ids=QUERY)
    plain, samples = (demo.sample(coupled(demo, one, sides)) for one in (demo.model, model))
    assert torch.equal(plain["samples"], samples["samples"])
    with pytest.raises(ValueError, match="attention couple"):
        demo.read(recording, samples)


@pytest.mark.parametrize("sides", COUPLES)
def test_what_is_outside_of_attention_is_recorded_beside_a_couple(demo, sides):
    model, recording = demo.record(ids=SPATIAL)
    samples = demo.sample(coupled(demo, model, sides))
    assert len(demo.read(recording, samples)[0].rows) == 4


def masked(demo, factors_of, conditional_only, bake=False):
    """The MODEL with neurons of every value projection scaled, or the same in the weights."""
    factors = demo.app.module("nodes.neurons.neuron_factors_comfy")
    named = demo.model.model.diffusion_model.named_modules()
    found = {
        name: factors_of(torch.ones(one.out_features))
        for name, one in named
        if name.endswith("attn2.to_v")
    }
    if bake:
        return factors.bake_factors(demo.model, found)
    return factors.with_scaled(demo.model, found, (float("inf"), 0.0), conditional_only)


def half_silent(factor):
    factor[: len(factor) // 2] = 0
    return factor


@pytest.mark.parametrize("sides", COUPLES)
def test_a_neuron_mask_on_all_rows_reaches_a_couple_s(demo, sides):
    """Against scaled weights, which act in every row."""
    found = demo.sample(coupled(demo, masked(demo, half_silent, False), sides))["samples"]
    expected = demo.sample(coupled(demo, masked(demo, half_silent, False, bake=True), sides))[
        "samples"
    ]
    assert (found - expected).abs().max() < 1e-5 * expected.abs().max()


@pytest.mark.parametrize("sides", COUPLES)
def test_a_neuron_mask_on_some_rows_of_a_couple_is_one_sentence(demo, sides):
    with pytest.raises(ValueError, match="attention couple"):
        demo.sample(coupled(demo, masked(demo, half_silent, True), sides))


def test_at_cfg_1_all_rows_of_a_couple_are_positive(demo):
    """Nothing is to be distinguished: the same as on all rows."""
    both, positive = (
        coupled(demo, masked(demo, half_silent, only), (0,)) for only in (False, True)
    )
    assert torch.equal(*(demo.sample(one, cfg=1.0)["samples"] for one in (both, positive)))


@pytest.mark.parametrize("sides", COUPLES)
def test_attention_scaling_of_a_couple_is_one_sentence(demo, sides):
    scaling = demo.app.module("nodes.neurons.attention_scaling_comfy")
    paths = [
        name
        for name, _ in demo.model.model.diffusion_model.named_modules()
        if name.endswith("attn2")
    ]
    tokens = demo.positive[0][0].shape[1]
    model = scaling.with_attention(demo.model, paths, 1.5, torch.zeros(tokens, dtype=torch.bool))
    with pytest.raises(ValueError, match="attention couple"):
        demo.sample(coupled(demo, model, sides))


# The others.


def adapted(model):
    """Cross-attention replaced as an IP-Adapter does: its own output is added to the text's."""
    from comfy.ldm.modules.attention import optimized_attention

    def replace(q, k, v, options):
        return optimized_attention(q, k, v, options["n_heads"]) + 0.1 * optimized_attention(
            q, k, v.flip(1), options["n_heads"]
        )

    clone = model.clone()
    for block in (
        [("input", number) for number in range(12)]
        + [("middle", 0)]
        + [("output", number) for number in range(12)]
    ):
        for index in range(4):
            clone.set_model_attn2_replace(replace, *block, index)
    return clone


def evaluated_again(model):
    """A function after CFG that evaluates the positive conditioning once more."""
    import comfy.samplers

    def again(args):
        (extra,) = comfy.samplers.calc_cond_batch(
            args["model"], [args["cond"]], args["input"], args["sigma"], args["model_options"]
        )
        return args["denoised"] + 0.1 * (extra - args["denoised"])

    clone = model.clone()
    clone.set_model_sampler_post_cfg_function(again)
    return clone


@pytest.mark.parametrize("neighbor", [adapted, evaluated_again])
def test_beside_a_neighbor_in_either_order_a_changer_acts_alike(demo, neighbor):
    first, second = (
        neighbor(steered(demo, mask=left_half())),
        steered(demo, neighbor(demo.model), mask=left_half()),
    )
    one, two, plain = (
        demo.sample(model)["samples"] for model in (first, second, neighbor(demo.model))
    )
    assert torch.equal(one, two)
    assert not torch.equal(one, plain)


@pytest.mark.parametrize("neighbor", [adapted, evaluated_again])
def test_beside_a_neighbor_a_recorder_changes_nothing(demo, neighbor):
    model, recording = demo.record(ids=SPATIAL)
    plain, samples = demo.sample(neighbor(demo.model)), demo.sample(neighbor(model))
    assert torch.equal(plain["samples"], samples["samples"])
    assert len(demo.read(recording, samples, -1)[0].rows) == 4


# Wrappers that switch gradients off.


@pytest.mark.parametrize("together", [False, True])
def test_what_needs_gradients_behind_such_a_wrapper_is_one_sentence(demo, together):
    """All that differentiate go through the trainer's session: with and without the wrapper."""
    trainer = demo.app.module("nodes.host.training.trainer")
    name = "diffusion_model.out.2.weight"
    change = torch.nn.Parameter(torch.zeros(()))

    def predicted(model):
        def work(session):
            noised = session.noised(
                session.latents[0], torch.ones_like(session.latents[0]), torch.tensor([1.0])
            )
            return session.denoised(noised, torch.tensor([1.0]), [0]).requires_grad

        given = (
            {name: lambda weight: weight + change},
            [demo.latent(1)["samples"]],
            [demo.positive],
            work,
        )
        return trainer.run(model, *given, dtype=torch.float32)

    assert predicted(demo.model)
    with pytest.raises(
        ValueError,
        match=r"evaluates it without gradients .* connect the MODEL from before that node",
    ):
        predicted(tiled(demo.model, together))


# Reversed schedules.


def run_custom(demo, model, sigmas, latent=None):
    run = demo.app.run
    (guider,) = run(
        "CFGGuider", model=model, positive=demo.positive, negative=demo.negative, cfg=1.0
    )
    (sampler,), (noise,) = run("KSamplerSelect", sampler_name="euler"), run("DisableNoise")
    given = {"noise": noise, "guider": guider, "sampler": sampler, "sigmas": sigmas}
    return run("SamplerCustomAdvanced", **given, latent_image=latent or demo.latent(1))[0]


@pytest.mark.parametrize("flip", [False, True])
def test_steps_are_counted_in_the_direction_of_sampling(demo, flip):
    (sigmas,) = demo.app.run(
        "BasicScheduler", model=demo.model, scheduler="normal", steps=5, denoise=1.0
    )
    if flip:
        (sigmas,) = demo.app.run("FlipSigmas", sigmas=sigmas)
    model, recording = demo.record("1, 3", "conditional", SPATIAL)
    samples = run_custom(demo, model, sigmas)
    for index, step in enumerate((1, 3)):
        activations, number, _ = demo.read(recording, samples, index)
        assert number == step and activations.sigma == pytest.approx(float(sigmas[step]), rel=1e-4)


def test_what_was_recorded_backwards_is_patched_backwards(demo):
    """Patching a run's own activations into it changes nothing; those of another step would."""
    (sigmas,) = demo.app.run(
        "BasicScheduler", model=demo.model, scheduler="normal", steps=4, denoise=1.0
    )
    (sigmas,) = demo.app.run("FlipSigmas", sigmas=sigmas)
    model, recording = demo.record("all", "conditional", SPATIAL)
    samples = run_custom(demo, model, sigmas)
    given = {
        "recording": recording,
        "latent": samples,
        "ids": "*",
        "patched_steps": "1",
        "strength": 1.0,
    }
    patched = demo.app.run("GBX_ActivationPatching", model=demo.model, **given)[0]
    again = run_custom(demo, patched, sigmas)["samples"]
    assert (again - samples["samples"]).abs().max() <= 1e-4 * samples["samples"].abs().max()
