"""Activation Steering: bit-equal at strength 0, the right rows, places and steps, and directions
from every source.
"""

import contextlib
from dataclasses import replace

import pytest
import reduced
import tiny_transformers
import torch
from tapping import PATTERN, World, hooks_left

SPATIAL, TOKENS = "up-level1-repeat0-res-out", "up-level1-repeat0-vit-block0-out"


@pytest.fixture(scope="module")
def demo(app):
    return World(app, *app.run("GBX_LoadDemoModel", weights="avatars-v2"))


def direction_of(world, *ids, seed=0, scale=1.0):
    steering = world.app.module("nodes.activations.steering")
    specs = world.app.module("nodes.activations.catalog_unet").catalog(
        world.model.model.diffusion_model
    )
    channels = {spec.id: spec.channels for spec in specs}
    generator = torch.Generator().manual_seed(seed)
    vectors = {id_: torch.randn(channels[id_], generator=generator) * scale for id_ in ids}
    return steering.SteeringDirection(vectors, "test")


def steer(world, direction, model=None, **changes):
    given = {
        "strength": 2.0,
        "start_percent": 0.0,
        "end_percent": 1.0,
        "rows": "conditional",
        "preserve_norm": False,
    }
    return world.app.run(
        "GBX_ActivationSteering",
        model=model or world.model,
        direction=direction,
        **{**given, **changes},
    )[0]


def mix(world, edits, *directions):
    given = {f"direction_{number}": direction for number, direction in enumerate(directions, 1)}
    return world.app.run("GBX_MixSteeringDirections", edits=edits, **given)


def recorded(world, steered, ids, steps="all", **changes):
    """Latent and activations of a run whose recorder sits behind the steering, so that it sees its
    result.
    """
    model, recording = world.record(steps, "both", ids, model=steered)
    samples = world.sample(model, world.latent(1), **changes)
    return samples["samples"], world.read(recording, samples)[0]


@pytest.mark.parametrize("changes", [{"strength": 0.0}, {"mask": torch.zeros(1, 8, 8)}])
def test_strength_0_and_an_empty_mask_are_bit_equal(demo, changes):
    steered = steer(demo, direction_of(demo, SPATIAL, TOKENS), **changes)
    assert torch.equal(demo.sample(steered)["samples"], demo.sample(demo.model)["samples"])


@pytest.mark.parametrize("sampler", ["euler", "dpmpp_2m_sde"])
def test_a_range_without_steps_is_bit_equal(demo, sampler):
    steered = steer(demo, direction_of(demo, SPATIAL), start_percent=0.999, end_percent=0.9995)
    plain = demo.sample(demo.model, sampler_name=sampler)["samples"]
    assert torch.equal(demo.sample(steered, sampler_name=sampler)["samples"], plain)


@pytest.mark.parametrize("id_", [SPATIAL, TOKENS])
@pytest.mark.parametrize(
    ("rows", "changed"), [("conditional", [0]), ("unconditional", [1]), ("both", [0, 1])]
)
def test_the_direction_is_added_to_the_rows(demo, id_, rows, changed):
    direction = direction_of(demo, id_)
    plain = recorded(demo, demo.model, id_, "0")[1].tensors[id_]
    samples, found = recorded(demo, steer(demo, direction, rows=rows), id_, "0")
    expected = plain.clone()
    expected[changed] += 2.0 * direction.vectors[id_][:, None, None]
    assert (found.tensors[id_] - expected).abs().max() < 1e-5 * expected.abs().max()
    assert not torch.equal(samples, demo.sample(demo.model, demo.latent(1))["samples"])
    assert hooks_left(demo.model) == 0


@pytest.mark.parametrize(
    ("rows", "changed"), [("conditional", ["positive"]), ("unconditional", ["negative"])]
)
@pytest.mark.parametrize("regional", [False, True])
def test_steered_rows_are_the_guiders_own(demo, rows, changed, regional):
    """With DualCFGGuider, whose negative comes first, and with a region, of which the others get
    copies.
    """
    texts = {"positive": "portrait, red hair", "middle": "portrait, smiling", "negative": ""}
    texts = {
        name: demo.app.run("CLIPTextEncode", clip=demo.clip, text=text)[0]
        for name, text in texts.items()
    }
    prompts = dict(texts)
    if regional:
        area = {"width": 64, "height": 128, "x": 0, "y": 0, "strength": 1.0}
        (prompts["positive"],) = demo.app.run(
            "ConditioningSetArea", conditioning=texts["positive"], **area
        )
    steered, found = (
        steer(demo, direction_of(demo, "unet-out", scale=100.0), rows=rows, strength=100.0),
        set(),
    )

    def watch(apply_model, given):
        outputs = apply_model(given["input"], given["timestep"], **given["c"])
        for context, rows in zip(given["c"]["c_crossattn"], outputs, strict=True):
            names = [
                name
                for name, text in texts.items()
                if torch.equal(text[0][0][0].to(context), context)
            ]
            found.add((*names, bool(rows.abs().max() > 1e3)))
        return outputs

    steered.set_model_unet_function_wrapper(watch)
    (guider,) = demo.app.run(
        "DualCFGGuider",
        model=steered,
        cond1=prompts["positive"],
        cond2=prompts["middle"],
        negative=prompts["negative"],
        cfg_conds=3.0,
        cfg_cond2_negative=2.0,
        style="regular",
    )
    noise = torch.zeros(2, 24, 16, 16)
    (sampler,) = demo.app.run("KSamplerSelect", sampler_name="euler")
    guider.sample(noise, noise, sampler, torch.tensor([5.0, 0.0]), disable_pbar=True)
    assert found == {(name, name in changed) for name in texts}


@pytest.mark.parametrize("id_", [SPATIAL, TOKENS])
def test_a_mask_limits_the_area(demo, id_):
    mask = torch.zeros(1, 128, 128)
    mask[:, :64] = 1
    plain = recorded(demo, demo.model, id_, "0")[1].tensors[id_]
    found = recorded(demo, steer(demo, direction_of(demo, id_), mask=mask), id_, "0")[1].tensors[
        id_
    ]
    half = plain.shape[2] // 2
    assert torch.equal(found[:1, :, half:], plain[:1, :, half:])
    assert (found[:1, :, :half] - plain[:1, :, :half]).abs().min(1).values.max() > 0


def test_a_words_heat_map_is_a_mask(demo):
    """A token is steered where it acts: the direction is added by the map of its word."""
    given = {
        "activations": demo.tap("attn-mean"),
        "image": torch.zeros(2, 128, 128, 3),
        "clip": demo.clip,
    }
    options = {"prompt_role": "positive", "normalize_per_word": True, "opacity": 0.6}
    mask = demo.app.run(
        "GBX_TokenHeatMap", prompt="portrait, red hair", words="hair", **given, **options
    )[1][:1]
    plain = recorded(demo, demo.model, SPATIAL, "0")[1].tensors[SPATIAL][0]
    direction = direction_of(demo, SPATIAL)
    found = recorded(demo, steer(demo, direction, mask=mask), SPATIAL, "0")[1].tensors[SPATIAL][0]
    here = torch.nn.functional.interpolate(mask[None], plain.shape[1:], mode="area")[0]
    assert mask.min() < 0.1 < 0.9 < mask.max()
    assert torch.allclose(
        found - plain, 2.0 * direction.vectors[SPATIAL][:, None, None] * here, atol=1e-2
    )


def test_preserve_norm_keeps_the_length_of_each_position(demo):
    direction = direction_of(demo, SPATIAL, scale=20.0)
    plain = recorded(demo, demo.model, SPATIAL, "0")[1].tensors[SPATIAL][0]
    found = recorded(demo, steer(demo, direction, preserve_norm=True), SPATIAL, "0")[1].tensors[
        SPATIAL
    ][0]
    assert torch.allclose(found.norm(dim=0), plain.norm(dim=0), rtol=1e-4)
    wanted = torch.nn.functional.normalize(
        plain + 2.0 * direction.vectors[SPATIAL][:, None, None], dim=0
    )
    assert ((torch.nn.functional.normalize(found, dim=0) * wanted).sum(0) > 0.9999).all()


def test_steering_acts_in_its_range_of_the_run(demo):
    direction = direction_of(demo, SPATIAL)
    early = steer(demo, direction, end_percent=0.3)
    plain_model, plain = demo.record("0", "conditional", SPATIAL)
    late_model, late = demo.record(
        "0", "conditional", SPATIAL, model=steer(demo, direction, start_percent=0.6)
    )
    early_model, steered = demo.record("0", "conditional", SPATIAL, model=early)
    first, unchanged, changed = (
        demo.read(recording, demo.sample(model, steps=6))[0].tensors[SPATIAL]
        for model, recording in ((plain_model, plain), (late_model, late), (early_model, steered))
    )
    assert torch.equal(first, unchanged) and not torch.equal(first, changed)
    assert not torch.equal(
        demo.sample(late_model, steps=6)["samples"], demo.sample(demo.model, steps=6)["samples"]
    )


def test_two_steering_nodes_add_up_in_either_order(demo):
    one, two = direction_of(demo, SPATIAL), direction_of(demo, SPATIAL, seed=1)
    plain = recorded(demo, demo.model, SPATIAL, "0")[1].tensors[SPATIAL]
    for first, second in ((one, two), (two, one)):
        both = steer(demo, second, model=steer(demo, first), strength=-1.0)
        found = recorded(demo, both, SPATIAL, "0")[1].tensors[SPATIAL][:1]
        delta = 2.0 * first.vectors[SPATIAL] - second.vectors[SPATIAL]
        assert (found - plain[:1] - delta[:, None, None]).abs().max() < 1e-4


def test_mixed_directions_add_up_as_nodes_in_a_row_do(demo):
    """The sum of strength times direction, one of them at another ID as well; the third is not
    named, so it is 0.
    """
    one = replace(direction_of(demo, SPATIAL), name="red hair")
    two, three = direction_of(demo, SPATIAL, TOKENS, seed=1), direction_of(demo, SPATIAL, seed=2)
    mixed, report = mix(demo, "red hair: 2, direction_2: -0.5, red hair: 1", one, two, three)
    assert torch.allclose(
        mixed.vectors[SPATIAL], 3 * one.vectors[SPATIAL] - 0.5 * two.vectors[SPATIAL]
    )
    assert torch.equal(mixed.vectors[TOKENS], -0.5 * two.vectors[TOKENS])
    assert report.splitlines()[0].rstrip() == "Sum of red hair +3, direction_2 -0.5"
    row = steer(demo, two, model=steer(demo, one, strength=3.0), strength=-0.5)
    found, expected = (
        recorded(demo, one, SPATIAL, "0")[1] for one in (steer(demo, mixed, strength=1.0), row)
    )
    assert (found.tensors[SPATIAL] - expected.tensors[SPATIAL]).abs().max() < 1e-4


@pytest.mark.parametrize("edits", ["", "red hair: 0", "red hair: 0.5, red hair: -0.5"])
def test_a_mix_of_strength_0_is_bit_equal(demo, edits):
    (mixed, _) = mix(demo, edits, replace(direction_of(demo, SPATIAL, TOKENS), name="red hair"))
    assert torch.equal(
        demo.sample(steer(demo, mixed))["samples"], demo.sample(demo.model)["samples"]
    )


def test_a_mix_refuses_what_it_cannot_add(demo):
    one, other = (replace(direction_of(demo, SPATIAL), name="red hair") for _ in range(2))
    with pytest.raises(
        ValueError, match=r"No direction is named 'hair'\. The connected ones are red hair, dir"
    ):
        mix(demo, "hair: 1", one, direction_of(demo, TOKENS))
    with pytest.raises(ValueError, match="'hair' is not an edit"):
        mix(demo, "hair", one)
    with pytest.raises(ValueError, match="Two directions have the same name"):
        mix(demo, "", one, other)
    with pytest.raises(ValueError, match=f"different channels at {SPATIAL}"):
        mix(demo, "", one, replace(one, vectors={SPATIAL: torch.zeros(3)}, name=""))


def test_a_failed_run_leaves_no_hook(demo, monkeypatch):
    monkeypatch.setattr(
        demo.model.model.diffusion_model.output_blocks[5][0], "forward", lambda *_: 1 / 0
    )
    with pytest.raises(ZeroDivisionError):
        demo.sample(steer(demo, direction_of(demo, SPATIAL)))
    assert hooks_left(demo.model) == 0


@pytest.mark.parametrize(
    ("name", "id_"),
    [
        ("Flux", "vit-block3-out"),
        ("SD3", "vit-block1-out"),
        ("Lumina2", "vit-block1-v"),
        ("WAN21_T2V", "vit-block1-out"),
    ],
)
def test_the_images_tokens_of_a_transformer_are_steered(app, name, id_):
    """Text before the image, tuples, fused projections and videos: what a recorder sees is shifted
    by the direction.
    """
    model = tiny_transformers.model(name)
    world = World.__new__(World)
    world.app, world.model = app, model
    direction = direction_of(world, id_)
    frames = {"frames": 2} if name.startswith("WAN") else {}
    latent = tiny_transformers.latent(model, 1, 8, 12, **frames)
    given = {
        "positive": tiny_transformers.conditioning(),
        "latent": latent,
        "seed": 3,
        "noise_samples": 1,
    }
    given |= {**PATTERN, "ids": id_, "noise_unit": "sigma", "level": 0.5}
    plain = app.run("GBX_LayerActivationTap", model=model, **given)[0].tensors[id_]
    found = app.run("GBX_LayerActivationTap", model=steer(world, direction), **given)[0].tensors[
        id_
    ]
    assert (found - plain - 2.0 * direction.vectors[id_][:, None, None]).abs().max() < 1e-4


def test_directions_from_activations(demo):
    toward, away = (demo.tap(f"{SPATIAL}\n{TOKENS}", seed=seed) for seed in (1, 2))
    given = {"toward": toward, "component": 0}
    difference, report = demo.app.run(
        "GBX_SteeringDirection", **given, away=away, method="mean_difference"
    )
    expected = toward.tensors[SPATIAL].mean((0, 2, 3)) - away.tensors[SPATIAL].mean((0, 2, 3))
    assert torch.allclose(difference.vectors[SPATIAL], expected, atol=1e-6)
    assert difference.name == ""
    assert [line.split()[0] for line in report.splitlines()[1:]] == [SPATIAL, TOKENS]
    principal = demo.app.run("GBX_SteeringDirection", **given, method="principal_component")[
        0
    ].vectors[SPATIAL]
    points = toward.tensors[SPATIAL].movedim(1, -1).flatten(0, -2)
    points = points - points.mean(0)
    value, vectors = torch.linalg.eigh(points.T @ points / len(points))
    assert principal.norm().square().item() == pytest.approx(value[-1].item(), rel=1e-3)
    assert abs(torch.nn.functional.normalize(principal, dim=0) @ vectors[:, -1]) > 0.9999
    with pytest.raises(ValueError, match="needs away"):
        demo.app.run("GBX_SteeringDirection", **given, method="mean_difference")
    with pytest.raises(ValueError, match="hold different activations"):
        other = demo.tap("unet-out")
        demo.app.run("GBX_SteeringDirection", **given, away=other, method="mean_difference")


def test_directions_from_prompts_are_means_over_runs(demo):
    (latent,) = demo.app.run("EmptyLatentImage", width=128, height=128, batch_size=2)
    settings = {
        "preset": "custom_ids",
        "ids": SPATIAL,
        "recorded_steps": "all",
        "seed": 7,
        "steps": 2,
        "cfg": 3.0,
    }
    direction, _ = demo.app.run(
        "GBX_PromptSteeringDirection",
        model=demo.model,
        clip=demo.clip,
        latent=latent,
        toward_prompts="portrait, red hair\n\nportrait, smiling",
        away_prompts="portrait",
        name=" red hair ",
        **settings,
    )
    assert direction.name == "red hair"

    def mean(text):
        (positive,) = demo.app.run("CLIPTextEncode", clip=demo.clip, text=text)
        model, recording = demo.record("all", "conditional", SPATIAL)
        samples = demo.sample(model, latent, positive=positive, steps=2)
        return (
            sum(
                demo.read(recording, samples, step)[0].tensors[SPATIAL].mean((0, 2, 3))
                for step in (0, 1)
            )
            / 2
        )

    expected = (mean("portrait, red hair") + mean("portrait, smiling")) / 2 - mean("portrait")
    assert (direction.vectors[SPATIAL] - expected).abs().max() < 1e-4 * expected.abs().max()
    given = {
        "model": demo.model,
        "clip": demo.clip,
        "latent": latent,
        "away_prompts": "portrait",
        **settings,
    }
    with pytest.raises(ValueError, match="at least one prompt of each kind"):
        demo.app.run("GBX_PromptSteeringDirection", **given, toward_prompts=" ")
    given["recorded_steps"] = "9"
    with pytest.raises(
        ValueError,
        match=r"in this run of 2 steps \(0 to 1\)\. Select other steps in recorded_steps\.",
    ):
        demo.app.run("GBX_PromptSteeringDirection", **given, toward_prompts="portrait, smiling")


def test_a_direction_is_saved_and_loaded(demo):
    direction = replace(direction_of(demo, SPATIAL, TOKENS), name="red hair")
    (file,) = demo.app.run(
        "GBX_SaveSteeringDirection", direction=direction, filename_prefix="glassbox/direction"
    )
    loaded, report = demo.app.run("GBX_LoadSteeringDirection", file=file)
    assert report == direction.report() and loaded.name == "red hair"
    assert all(
        torch.equal(loaded.vectors[id_], vector) for id_, vector in direction.vectors.items()
    )


def test_directions_of_other_models_and_inputs_are_refused(demo):
    steering = demo.app.module("nodes.activations.steering")
    for vectors, reason in (
        ({"up-level1-repeat0-res-out": torch.zeros(3)}, "which this model does not have"),
        ({"vit-block0-out": torch.zeros(3)}, "which this model does not have"),
        ({"unet-in": torch.zeros(8)}, "can be read but not changed"),
    ):
        with pytest.raises(ValueError, match=reason):
            steer(demo, steering.SteeringDirection(vectors, ""))


def test_only_presets_whose_directions_can_be_used_are_offered(app):
    """On reduced SD1.5 and SDXL: each that is offered selects activations of the model that can be
    changed.
    """
    edit, select = (
        app.module(f"nodes.activations.{name}") for name in ("activation_edit", "select_ids")
    )
    offered = app.classes["GBX_PromptSteeringDirection"].GET_SCHEMA().inputs
    (options,) = (one.options for one in offered if one.id == "preset")
    assert {"all_features", "cross_attention", "cross_attention_mean"}.isdisjoint(options)
    usable = set()
    for name in ("sd15", "sdxl"):
        every = app.module("nodes.activations.catalog_unet").catalog(
            reduced.checkpoint(name)[0].model.diffusion_model
        )
        for preset in options:
            with contextlib.suppress(select.NoSuchActivationError):  # a set of another network
                specs = select.select(every, preset, "*-res-out")
                edit.editable_specs({spec.id: spec.channels for spec in specs}, every, "selection")
                usable.add(preset)
    assert len(usable) > 3, usable


def test_activations_that_cannot_be_changed_are_refused_before_anything_is_sampled(
    demo, monkeypatch
):
    node = demo.app.module("nodes.activations.nodes_steering")
    monkeypatch.setattr(node, "sample_latents", None)
    given = {
        "toward_prompts": "a",
        "away_prompts": "b",
        "recorded_steps": "all",
        "seed": 0,
        "steps": 2,
        "cfg": 1.0,
    }
    given |= {"model": demo.model, "clip": demo.clip, "latent": demo.latent(1)}
    with pytest.raises(ValueError, match="can be read but not changed"):
        demo.app.run("GBX_PromptSteeringDirection", **given, preset="custom_ids", ids="*-cross-map")
