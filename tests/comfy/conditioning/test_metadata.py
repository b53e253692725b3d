"""Size metadata inside a real ComfyUI: stock where the gate is open, and exactly the chosen part
elsewhere.
"""

import functools
import math

import conditioned
import pytest
import torch
from conditioned import guider, prompt, sample, watched

HALF = math.cos(math.pi / 2 * 500 / 999) ** 2  # 0.49921
TOP, MIDDLE, LOW = 14.6146, 1.6156, 0.03  # sigmas at t = 999, 500 and about 0 of SDXL's schedule
FAMILIES = ("sdxl", "refiner", "pixart", "hydit")
SIDE = {"sdxl": 8, "refiner": 8, "pixart": 40, "hydit": 8}  # PixArt has no positions below 32
#: Slices of SDXL's vector behind the pooled text (64 wide here).
SDXL = {
    name: slice(64 + 256 * index, 64 + 256 * (index + 1))
    for index, name in enumerate(
        ("height", "width", "crop_h", "crop_w", "target_height", "target_width")
    )
}
REQUESTED = {
    "width": 512,
    "height": 256,
    "crop_w": 7,
    "crop_h": 11,
    "target_width": 640,
    "target_height": 768,
}


@pytest.fixture(scope="module")
def models(app):
    return {name: conditioned.model(name) for name in (*FAMILIES, "sd15")}


@pytest.fixture(scope="module")
def scheduled(app):
    return functools.partial(conditioned.scheduled, app)


def network_inputs(model, positive, sigma, negative=None, **how):
    """The one call of the network at a sigma, with CFG when there is a negative prompt."""
    made = guider(model, positive, negative or positive, 3.0 if negative else 1.0)
    with watched(model) as seen:
        sample(made, [sigma, 0.0], **how)
    return seen[0]


# Metadata Conditioning


def with_metadata(app, model, conditioning, **changes):
    given = {
        "original_width": 0,
        "original_height": 0,
        "crop_left": 0,
        "crop_top": 0,
        "target_width": 0,
        "target_height": 0,
        "mirror": False,
    }
    return app.run(
        "GBX_MetadataConditioning", model=model, conditioning=conditioning, **{**given, **changes}
    )


def test_conditioning_tells_what_stock_nodes_tell(app, models):
    numbers = {
        "original_width": 512,
        "original_height": 256,
        "target_width": 640,
        "target_height": 768,
    }
    ours, text = with_metadata(
        app, models["sdxl"], prompt("sdxl"), **numbers, crop_left=7, crop_top=11
    )
    stock = network_inputs(models["sdxl"], prompt("sdxl", **REQUESTED), TOP)["y"]
    assert torch.equal(network_inputs(models["sdxl"], ours, TOP)["y"], stock)
    assert (
        text == "SDXL is conditioned on: original 512 x 256, crop 7 left 11 top, target 640 x 768."
    )


@pytest.mark.parametrize(
    ("crop", "remark"),
    [((511, 0), False), ((512, 0), True), ((0, 256), True)],
)
def test_a_crop_beyond_the_image_is_remarked(app, models, crop, remark):
    size = {
        "original_width": 512,
        "original_height": 256,
        "crop_left": crop[0],
        "crop_top": crop[1],
    }
    _, text = with_metadata(app, models["sdxl"], prompt("sdxl"), **size)
    assert ("lies beyond the original image: check its size." in text) == remark


def test_conditioning_without_a_choice_is_stock(app, models):
    ours, text = with_metadata(app, models["sdxl"], prompt("sdxl"))
    assert torch.equal(
        network_inputs(models["sdxl"], ours, TOP)["y"],
        network_inputs(models["sdxl"], prompt("sdxl"), TOP)["y"],
    )
    assert "ComfyUI's defaults" in text


@pytest.mark.parametrize(
    ("entries", "choice", "words"),
    [
        ({}, {"crop_left": 7}, "crop 7 left 0 top"),
        ({}, {"crop_top": 11}, "crop 0 left 11 top"),
        ({"width": 640, "height": 320}, {"crop_left": 7}, "original 640 x 320, crop 7 left 0 top"),
    ],
)
def test_conditioning_reports_all_that_the_prompt_says(app, models, entries, choice, words):
    """Also what CLIP Text Encode SDXL or another node had written before."""
    assert (
        with_metadata(app, models["sdxl"], prompt("sdxl", **entries), **choice)[1]
        == f"SDXL is conditioned on: {words}."
    )


@pytest.mark.parametrize(
    ("family", "key", "numbers"),
    [
        ("pixart", "c_size", [256.0, 512.0]),
        ("hydit", "image_meta_size", [256.0, 512.0, 256.0, 512.0, 0.0, 0.0]),
    ],
)
def test_conditioning_reaches_transformers(app, models, family, key, numbers):
    ours, _ = with_metadata(
        app, models[family], prompt(family), original_width=512, original_height=256
    )
    assert network_inputs(models[family], ours, TOP, side=SIDE[family])[key].tolist() == [numbers]


@pytest.mark.parametrize(
    ("family", "choice", "sentence"),
    [
        ("sd15", {}, "takes no size metadata: use SDXL"),
        ("sdxl", {"mirror": True}, "SDXL has no input for mirroring"),
        ("pixart", {"crop_left": 3}, "PixArt-alpha has no input for a crop"),
        (
            "refiner",
            {"target_width": 5, "target_height": 5},
            "refiner has no input for a target size",
        ),
        ("sdxl", {"original_width": 5}, "original size is 5 x 0: set both sides"),
    ],
)
def test_fields_without_an_input_are_refused(app, models, family, choice, sentence):
    with pytest.raises(ValueError, match=sentence):
        with_metadata(app, models[family], prompt("sd15"), **choice)


# The vector


def test_sdxl_vector_by_number(models):
    """Half cosines, half sines of 256 features; 0 is 128 ones and 128 zeros (methods, 3.1)."""
    y = network_inputs(models["sdxl"], prompt("sdxl", **REQUESTED), TOP)["y"][0]
    assert torch.equal(y[:64], prompt("sdxl")[0][1]["pooled_output"][0])
    for name, where in SDXL.items():
        frequencies = torch.exp(-torch.log(torch.tensor(10000.0)) * torch.arange(128) / 128)
        angles = REQUESTED[name] * frequencies
        assert torch.allclose(y[where], torch.cat([angles.cos(), angles.sin()]), atol=2e-4)
    nought = network_inputs(models["sdxl"], prompt("sdxl", crop_w=0), TOP)["y"][0, SDXL["crop_w"]]
    assert nought.tolist() == [1.0] * 128 + [0.0] * 128


# Metadata Schedule: stock where the gate is open


@pytest.mark.parametrize(
    ("family", "mode"),
    [*((family, "value") for family in FAMILIES), ("sdxl", "embedding"), ("refiner", "embedding")],
)
@pytest.mark.parametrize(
    "choice",
    [{"exponent": 0.0}, {"curve": "constant"}, {"reference_width": 512, "reference_height": 256}],
    ids=["exponent 0", "constant", "reference is value"],
)
def test_open_gate_is_stock_bit_for_bit(models, scheduled, family, mode, choice):
    model, sigmas = models[family], [TOP, 0.5, 0.0]
    positive, negative = (
        prompt(family, width=512, height=256),
        prompt(family, 1, width=512, height=256),
    )
    stock = sample(guider(model, positive, negative, 3.0), sigmas, side=SIDE[family])
    gated = sample(
        guider(scheduled(model, mode=mode, **choice), positive, negative, 3.0),
        sigmas,
        side=SIDE[family],
    )
    assert torch.equal(gated, stock)


@pytest.mark.parametrize("family", ["pixart", "hydit"])
def test_embedding_is_refused_where_there_is_none(models, scheduled, family):
    with pytest.raises(ValueError, match="choose mode 'value'"):
        scheduled(models[family], mode="embedding")


def test_models_without_metadata_are_refused(models, scheduled):
    with pytest.raises(ValueError, match="takes no size metadata"):
        scheduled(models["sd15"])


# A closed gate does not know the requested size


@pytest.mark.parametrize("family", FAMILIES)
def test_closed_gate_by_value_forgets_the_size(models, scheduled, family):
    def at_the_top(width, height):
        size = {"width": width, "height": height, "target_width": 512, "target_height": 512}
        positive, negative = prompt(family, **size), prompt(family, 1, **size)
        return sample(
            guider(scheduled(models[family]), positive, negative, 3.0),
            [models[family].get_model_object("model_sampling").sigma_max, 0.0],
            side=SIDE[family],
        )

    # of one aspect ratio: PixArt is conditioned on that too, and it acts from the start
    assert torch.equal(at_the_top(256, 320), at_the_top(1024, 1280))


@pytest.mark.parametrize(
    "modes", [("value",), ("embedding",), ("embedding", "embedding"), ("embedding", "value")]
)
def test_closed_gates_forget_a_size_requested_for_without_a_target(models, scheduled, modes):
    """ComfyUI takes the original size as target where none is set; and several closed gates are no
    more than one.
    """
    model = models["sdxl"]
    gated = functools.reduce(lambda patcher, mode: scheduled(patcher, mode=mode), modes, model)

    def at_the_top(patcher, side):
        positive, negative = (prompt("sdxl", number, width=side, height=side) for number in (0, 1))
        return sample(guider(patcher, positive, negative, 3.0), [TOP, 0.0])

    small, large, reference = at_the_top(gated, 256), at_the_top(gated, 512), at_the_top(model, 64)
    assert (small - large).abs().max() <= 1e-5 * reference.abs().max()
    assert (small - reference).abs().max() <= 1e-5 * reference.abs().max()


@pytest.mark.parametrize("family", ["sdxl", "refiner"])
def test_closed_gate_by_embedding_forgets_the_size(models, scheduled, family):
    def at_the_top(model, width, height):
        size = {"width": width, "height": height, "target_width": 512, "target_height": 512}
        positive, negative = prompt(family, **size), prompt(family, 1, **size)
        return sample(guider(model, positive, negative, 3.0), [TOP, 0.0], side=SIDE[family])

    gated = scheduled(models[family], mode="embedding")
    small, large = at_the_top(gated, 256, 320), at_the_top(gated, 2048, 1024)
    reference = at_the_top(models[family], 64, 64)
    scale = reference.abs().max()
    # The embeddings agree to 1e-7; a random network and CFG enlarge that.
    assert (small - large).abs().max() <= 1e-5 * scale
    assert (small - reference).abs().max() <= 1e-5 * scale
    assert (at_the_top(models[family], 256, 320) - reference).abs().max() > 1e-3 * scale


# Only the chosen part moves, by the gate of the timestep


@pytest.mark.parametrize(
    ("fields", "moving"),
    [
        ("original_size", ("height", "width")),
        ("original_and_target_size", ("height", "width", "target_height", "target_width")),
        ("sizes_and_crop", tuple(SDXL)),
    ],
)
def test_only_the_chosen_slices_move(models, scheduled, fields, moving):
    model = models["sdxl"]
    stock = network_inputs(model, prompt("sdxl", **REQUESTED), MIDDLE)["y"][0]
    gated = network_inputs(scheduled(model, fields=fields), prompt("sdxl", **REQUESTED), MIDDLE)[
        "y"
    ][0]
    assert torch.equal(gated[:64], stock[:64])
    for name, where in SDXL.items():
        assert torch.equal(gated[where], stock[where]) == (name not in moving)


def test_half_open_tells_the_value_half_way(models, scheduled):
    """Cosine with exponent 2 at t = 500 of 999."""
    gated = network_inputs(scheduled(models["sdxl"]), prompt("sdxl", width=512, height=256), MIDDLE)
    assert gated["timestep"].item() == 500
    by_hand = {
        "width": 64 + HALF * (512 - 64),
        "height": 64 + HALF * (256 - 64),
    }  # without a target it follows
    assert torch.allclose(
        gated["y"],
        network_inputs(models["sdxl"], prompt("sdxl", **by_hand), MIDDLE)["y"],
        atol=2e-5,
    )


@pytest.mark.parametrize(("mode", "key"), [("value", None), ("embedding", "y")])
def test_embedding_leaves_the_vector_and_moves_the_sum(models, scheduled, mode, key):
    model = models["sdxl"]
    positive = prompt("sdxl", width=512, height=256, target_width=512, target_height=256)
    network, caught = model.model.diffusion_model, []
    handle = network.middle_block[0].emb_layers.register_forward_pre_hook(
        lambda module, args: caught.append(args[0])
    )
    stock, caught_stock = network_inputs(model, positive, MIDDLE)["y"], caught.pop()
    gated, caught_gated = (
        network_inputs(scheduled(model, mode=mode), positive, MIDDLE)["y"],
        caught.pop(),
    )
    handle.remove()
    assert torch.equal(stock, gated) == (mode == "embedding")
    if mode == "value":
        return
    reference = network_inputs(
        model, prompt("sdxl", width=64, height=64, target_width=512, target_height=256), MIDDLE
    )["y"]
    with torch.inference_mode():
        moved = caught_stock + (1 - HALF) * (
            network.label_emb(reference) - network.label_emb(stock)
        )
    assert torch.allclose(caught_gated, moved, atol=1e-5)


@pytest.mark.parametrize("steps", [3, 9])
def test_the_gate_follows_the_timestep_not_the_step(app, models, steps):
    sampling = app.module("nodes.conditioning.noise_rescale_comfy")
    table = models["sdxl"].get_model_object("model_sampling")
    for sigma in sampling.schedule_sigmas(models["sdxl"], "karras", steps)[:-1]:
        timestep = float(table.timestep(sigma))
        assert sampling.noise_fraction(table, float(sigma)) == pytest.approx(timestep / 999)
    assert (
        sampling.noise_fraction(table, 100.0) == 1.0 and sampling.noise_fraction(table, 0.0) == 0.0
    )
    assert math.isclose(sampling.noise_fraction(table, 1.6156), 500 / 999)


@pytest.mark.parametrize("sampler", ["euler", "heun", "dpm_2", "dpmpp_2s_ancestral", "uni_pc"])
@pytest.mark.parametrize(("scheduler", "denoise"), [("karras", 1.0), ("simple", 0.5)])
def test_every_evaluation_is_gated_by_its_own_timestep(
    models, scheduled, sampler, scheduler, denoise
):
    """Also between the steps of samplers of higher order, and from an image with part of the
    noise.
    """
    from comfy import sample as comfy_sample

    model, size = models["sdxl"], {"target_width": 512, "target_height": 256}
    positive, latent = prompt("sdxl", width=512, height=256, **size), torch.ones(1, 4, 8, 8)
    with watched(model) as seen, torch.inference_mode():
        noise = torch.randn(latent.shape, generator=torch.Generator().manual_seed(0))
        comfy_sample.sample(
            scheduled(model),
            noise,
            3,
            1.0,
            sampler,
            scheduler,
            positive,
            positive,
            latent,
            denoise=denoise,
            disable_pbar=True,
            seed=1,
        )
    assert len(seen) >= 3
    encode = models["sdxl"].model.encode_adm
    for call in seen:
        gamma = math.cos(math.pi / 2 * call["timestep"].item() / 999) ** 2
        numbers = {"width": 64 + gamma * (512 - 64), "height": 64 + gamma * (256 - 64), **size}
        by_hand = encode(pooled_output=positive[0][1]["pooled_output"], **numbers)
        assert torch.allclose(call["y"], by_hand, atol=2e-4)


@pytest.mark.parametrize("mode", ["value", "embedding"])
def test_a_batch_of_several_noise_levels(models, scheduled, mode):
    """Training draws a level for each image: each has the gate of its own."""
    from comfy import samplers

    levels, noise = (
        torch.tensor([TOP, MIDDLE]),
        torch.randn(2, 4, 8, 8, generator=torch.Generator().manual_seed(3)),
    )

    class Both(samplers.Sampler):
        def sample(self, model_wrap, sigmas, extra_args, *rest, **more):
            together = model_wrap(noise, levels, **extra_args)
            apart = [model_wrap(noise[[i]], levels[[i]], **extra_args) for i in (0, 1)]
            return torch.cat([together, *apart])

    positive, negative = (prompt("sdxl", number, width=512, height=256) for number in (0, 1))
    made = guider(scheduled(models["sdxl"], mode=mode), positive, negative, 3.0)
    with torch.inference_mode():
        out = made.sample(
            noise,
            torch.zeros_like(noise),
            Both(),
            torch.tensor([TOP, 0.0]),
            disable_pbar=True,
            seed=0,
        )
    assert (out[:2] - out[2:]).abs().max() <= 1e-5 * out.abs().max()


def test_a_distilled_sampling_has_the_same_places(app, models):
    """LCM keeps 50 of the 1000 sigmas, at the timesteps 19, 39, ..., 999."""
    sampling = app.module("nodes.conditioning.noise_rescale_comfy")
    distilled = app.run("ModelSamplingDiscrete", model=models["sdxl"], sampling="lcm", zsnr=False)[
        0
    ]
    table = distilled.get_model_object("model_sampling")
    fractions = [sampling.noise_fraction(table, float(sigma)) for sigma in table.sigmas]
    assert fractions == pytest.approx([(20 * index + 19) / 999 for index in range(50)])


# Who is gated


@pytest.mark.parametrize(
    ("apply_to", "moved"), [("both", {0, 1}), ("positive", {0}), ("negative", {1})]
)
@pytest.mark.parametrize("mode", ["value", "embedding"])
def test_positive_negative_or_both(models, scheduled, apply_to, moved, mode):
    model, size, sums = models["sdxl"], {"width": 512, "height": 256}, []
    positive, negative = prompt("sdxl", **size), prompt("sdxl", 1, **size)
    layer = model.model.diffusion_model.middle_block[0].emb_layers
    handle = layer.register_forward_pre_hook(lambda module, args: sums.append(args[0].clone()))
    network_inputs(model, positive, MIDDLE, negative)
    gated = network_inputs(
        scheduled(model, mode=mode, apply_to=apply_to), positive, MIDDLE, negative
    )
    handle.remove()
    assert sorted(gated["rows"]) == [0, 1]  # still one batch
    changed = [not torch.equal(before, after) for before, after in zip(*sums, strict=True)]
    assert {row for row, differs in zip(gated["rows"], changed, strict=True) if differs} == moved


def test_roles_come_from_the_guider_not_from_the_order(app, models, scheduled):
    """DualCFGGuider evaluates negative, middle, positive."""
    model, size = models["sdxl"], {"width": 512, "height": 256}
    given = [prompt("sdxl", number, **size) for number in range(3)]
    stock = network_inputs(model, given[0], MIDDLE)["y"][0, SDXL["width"]]
    made = app.run(
        "DualCFGGuider",
        model=scheduled(model, apply_to="positive"),
        cond1=given[0],
        cond2=given[1],
        negative=given[2],
        cfg_conds=2.0,
        cfg_cond2_negative=3.0,
        style="regular",
    )[0]
    with watched(model) as seen:
        sample(made, [MIDDLE, 0.0])
    rows = dict(zip(seen[0]["rows"], seen[0]["y"], strict=True))
    assert [torch.equal(rows[row][SDXL["width"]], stock) for row in (0, 1, 2)] == [
        True,
        True,
        False,
    ]
