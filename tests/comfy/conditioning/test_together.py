"""Metadata Schedule together with what else is on the canvas, and the report of the
conditioning.
"""

import functools
import gc
import weakref

import conditioned
import pytest
import torch
from conditioned import guider, prompt, sample, watched

SIGMAS = [14.6146, 1.6156, 0.4, 0.0]
SIZE = {"width": 512, "height": 256}


@pytest.fixture(scope="module")
def model(app):
    return conditioned.model("sdxl")


@pytest.fixture(scope="module")
def scheduled(app):
    return functools.partial(conditioned.scheduled, app)


def samples(model, positive, negative=None, **how):
    return sample(
        guider(model, positive, negative or prompt("sdxl", 1, **SIZE), 3.0), SIGMAS, **how
    )


def close(a, b):
    """Equal up to float32 rounding, which batches of another size change."""
    return bool((a - b).abs().max() <= 1e-4 * b.abs().max())


def regional(app):
    """Two prompts, one for an area, with metadata of their own; the negative has no area."""
    left = app.run(
        "ConditioningSetArea",
        conditioning=prompt("sdxl", 2, width=256, height=256),
        width=32,
        height=64,
        x=0,
        y=0,
        strength=1.0,
    )[0]
    return app.run(
        "ConditioningCombine", conditioning_1=prompt("sdxl", **SIZE), conditioning_2=left
    )[0]


def timed(app):
    """A prompt for the first half of sampling and another for the second."""
    first = app.run(
        "ConditioningSetTimestepRange", conditioning=prompt("sdxl", **SIZE), start=0.0, end=0.5
    )[0]
    second = app.run(
        "ConditioningSetTimestepRange", conditioning=prompt("sdxl", 2), start=0.5, end=1.0
    )[0]
    return app.run("ConditioningCombine", conditioning_1=first, conditioning_2=second)[0]


@pytest.mark.parametrize("mode", ["value", "embedding"])
@pytest.mark.parametrize(
    "make",
    [regional, timed, lambda app: prompt("sdxl", **SIZE)],
    ids=["regional", "timestep range", "plain"],
)
def test_batched_or_one_after_the_other(app, model, scheduled, monkeypatch, mode, make):
    gated, positive = scheduled(model, mode=mode), make(app)
    with watched(model) as batched:
        together = samples(gated, positive, count=2)
    with conditioned.one_at_a_time(monkeypatch), watched(model) as single:
        apart = samples(gated, positive, count=2)
    assert len(batched) < len(single) and {len(call["rows"]) for call in single} == {1}
    assert close(apart, together)
    assert not close(samples(model, positive, count=2), together)


def test_an_area_s_counterpart_keeps_its_own_metadata(app, model, scheduled):
    """ComfyUI gives the negative prompt a copy for the area that carries the positive's entries."""
    made = guider(scheduled(model), regional(app), prompt("sdxl", 1, width=1024, height=2048), 3.0)
    with watched(model) as gated:
        sample(made, [0.03, 0.0])
    with watched(model) as stock:
        sample(
            guider(model, regional(app), prompt("sdxl", 1, width=1024, height=2048), 3.0),
            [0.03, 0.0],
        )
    for ours, theirs in zip(gated, stock, strict=True):
        assert ours["rows"] == theirs["rows"]
        assert torch.allclose(ours["y"], theirs["y"], atol=0.02)  # t = 3: the gate is at 0.99998


def test_schedules_stack_in_either_order(model, scheduled):
    size, crop = (
        {"fields": "original_size"},
        {"fields": "sizes_and_crop", "exponent": 1.0, "apply_to": "positive"},
    )
    positive = prompt("sdxl", **SIZE, crop_w=9, crop_h=5)
    one = samples(scheduled(scheduled(model, **size), **crop), positive)
    other = samples(scheduled(scheduled(model, **crop), **size), positive)
    assert close(one, other)
    assert not close(one, samples(scheduled(model, **size), positive))
    mixed = samples(scheduled(scheduled(model, mode="embedding"), **crop), positive)
    assert not close(mixed, samples(scheduled(model, **crop), positive))
    assert close(mixed, samples(scheduled(scheduled(model, **crop), mode="embedding"), positive))
    assert close(
        samples(scheduled(scheduled(model, mode="embedding"), **crop, mode="embedding"), positive),
        samples(scheduled(scheduled(model, **crop, mode="embedding"), mode="embedding"), positive),
    )


def test_an_open_gate_beside_another_changes_nothing(model, scheduled):
    """Its reference is sent along all the same, so that the fractions of two gates are as one
    gate's.
    """
    positive = prompt("sdxl", **SIZE)
    one = samples(scheduled(model, mode="embedding"), positive)
    assert close(
        samples(
            scheduled(scheduled(model, mode="embedding"), mode="embedding", exponent=0.0), positive
        ),
        one,
    )


def test_the_unpatched_model_stays_as_it_was(model, scheduled):
    positive, before = prompt("sdxl", **SIZE), samples(model, prompt("sdxl", **SIZE))
    gated = scheduled(model, mode="embedding")
    first, second = samples(gated, positive), samples(gated, positive)
    assert torch.equal(first, second)
    assert torch.equal(samples(model, positive), before)
    assert not torch.equal(first, before)


def test_a_stopped_run_leaves_no_trace(app, model, scheduled):
    import comfy.model_management

    positive = prompt("sdxl", **SIZE)
    before, gated = samples(model, positive), scheduled(model)
    wanted = samples(gated, positive)
    comfy.model_management.interrupt_current_processing(True)
    with pytest.raises(comfy.model_management.InterruptProcessingException):
        samples(gated, positive, count=1)
    assert torch.equal(samples(gated, positive), wanted)
    assert torch.equal(samples(model, positive), before)


@pytest.mark.parametrize("mode", ["value", "embedding"])
def test_with_a_lora(model, scheduled, mode):
    """A LoRA of label_emb itself, before or after the schedule, changes both embeddings."""
    generator = torch.Generator().manual_seed(3)
    network = model.model.diffusion_model
    key = "diffusion_model.label_emb.0.0.weight"
    difference = 0.02 * torch.randn(network.label_emb[0][0].weight.shape, generator=generator)

    def tuned(patcher):
        clone = patcher.clone()
        clone.add_patches({key: ("diff", (difference,))}, 1.0)
        return clone

    positive = prompt("sdxl", **SIZE)
    before, after = (
        samples(tuned(scheduled(model, mode=mode)), positive),
        samples(scheduled(tuned(model), mode=mode), positive),
    )
    assert torch.equal(before, after)
    assert not close(before, samples(scheduled(model, mode=mode), positive))


def test_training_on_images_of_several_sizes(app, model, scheduled):
    """A gate gives each image of a batch its own size, at its own noise level."""
    train = app.module("nodes.host.training.trainer")
    generator = torch.Generator().manual_seed(4)
    latents = [torch.randn(1, 4, 8, 8, generator=generator) for _ in range(2)]
    sizes = [prompt("sdxl", width=256, height=256), prompt("sdxl", 1, width=512, height=128)]

    def work(session):
        sigmas, noised = torch.tensor([4.0, 1.0]), torch.cat(session.latents)
        together = session.denoised(noised, sigmas, [0, 1])
        apart = [session.denoised(noised[[i]], sigmas[[i]], [i]) for i in (0, 1)]
        return together.detach(), torch.cat(apart).detach()

    assert close(*train.run(scheduled(model), {}, latents, sizes, work, dtype=torch.float32))


@pytest.fixture(scope="module")
def control(app):
    """An SDXL ControlNet of random weights that remembers the vectors it is given."""
    import reduced
    from comfy import controlnet, ops
    from comfy.cldm.cldm import ControlNet

    settings = {
        key: value
        for key, value in reduced.settings("sdxl").items()
        if key not in ("out_channels", "transformer_depth_output")
    }
    with torch.inference_mode(False), torch.no_grad():
        network = ControlNet(
            hint_channels=3,
            dtype=torch.float32,
            device="cpu",
            operations=ops.disable_weight_init,
            **settings,
        )
        reduced.fill(network, torch.Generator().manual_seed(9))
    seen, inner = [], network.forward

    def forward(*args, y=None, **kwargs):
        seen.append(y.clone())
        return inner(*args, y=y, **kwargs)

    network.forward = forward
    return controlnet.ControlNet(network, load_device=torch.device("cpu")), seen


@pytest.mark.parametrize(("mode", "reached"), [("value", True), ("embedding", False)])
def test_value_reaches_controlnets(app, model, scheduled, control, mode, reached):
    net, seen = control
    hint = torch.rand(1, 64, 64, 3, generator=torch.Generator().manual_seed(1))
    positive, negative = app.run(
        "ControlNetApplyAdvanced",
        positive=prompt("sdxl", **SIZE),
        negative=prompt("sdxl", 1, **SIZE),
        control_net=net,
        image=hint,
        strength=0.5,
        start_percent=0.0,
        end_percent=1.0,
    )
    seen.clear()
    stock = samples(model, positive, negative)
    stock_inputs = list(seen)
    seen.clear()
    gated = samples(scheduled(model, mode=mode), positive, negative)
    assert not close(gated, stock)
    assert any(not torch.equal(a, b) for a, b in zip(seen, stock_inputs, strict=True)) == reached


# Metadata Report


def reported(app, model, **changes):
    given = {"positive": prompt("sdxl", **SIZE), "latent": {"samples": torch.zeros(1, 4, 128, 128)}}
    return app.run("GBX_MetadataReport", model=model, **{**given, **changes})


def test_report_of_a_plain_model(app, model):
    figure, text = reported(app, model, negative=prompt("sdxl", 1))
    assert [line.rstrip() for line in text.splitlines()] == [
        "SDXL is conditioned on, for an image of 1024 x 1024:",
        "positive: original 512 x 256, crop 0 left 0 top, target 512 x 256, at every step.",
        "negative: original 1024 x 1024, crop 0 left 0 top, target 1024 x 1024, at every step.",
    ]
    assert figure.ndim == 4 and figure.min() >= 0 and figure.max() <= 1


def test_report_names_the_metadata_of_every_step(app, model, scheduled):
    gated = scheduled(scheduled(model), fields="sizes_and_crop", exponent=1.0)
    sigmas = torch.tensor(SIGMAS)
    _, text = reported(app, gated, latent={"samples": torch.zeros(1, 4, 8, 8)}, sigmas=sigmas)
    with watched(model) as seen:
        sample(guider(gated, prompt("sdxl", **SIZE), prompt("sdxl", **SIZE), 1.0), SIGMAS)
    lines = text.splitlines()[2:]
    assert len(lines) == len(seen) == 3
    metadata, evaluate = (
        app.module(f"nodes.{name}")
        for name in ("conditioning.size_metadata_comfy", "host.evaluate")
    )
    layout = metadata.layout_of(model)
    for line, call, sigma in zip(lines, seen, SIGMAS[:-1], strict=True):
        width, height = (
            float(part) for part in line.split("original ")[1].split(",")[0].split(" x ")
        )
        target = [float(part) for part in line.split("target ")[1].split(" x ")]
        assert target == [width, height]  # no prompt has a target
        numbers = dict(
            zip(
                ("width", "height", "target_width", "target_height"),
                (width, height, *target),
                strict=True,
            )
        )
        stock = torch.zeros(1, 64 + 6 * 256)
        stock[:, :64] = call["y"][:, :64]
        by_hand = layout.encode(
            model.model, stock, {"crop_h": 0, "crop_w": 0, **numbers}, frozenset(layout.fields)
        )
        assert torch.allclose(by_hand, call["y"], atol=0.05)  # the report rounds to four digits
        assert f"t {1000 * evaluate.timestep_of(model, sigma) / 999:5.0f}" in line


def test_report_of_a_prompt_for_part_of_the_run(app, model, scheduled):
    """Only at the steps at which ComfyUI asks the model with it."""
    sigmas = torch.tensor([14.6146, 3.0, 1.0, 0.4, 0.0])
    with watched(model) as seen:
        sample(guider(model, timed(app), prompt("sdxl", 1), 1.0), sigmas)
    which = [
        int(torch.equal(call["y"][0, :64], prompt("sdxl", 2)[0][1]["pooled_output"][0]))
        for call in seen
    ]
    assert which == [0, 0, 1, 1]
    text = reported(app, model, positive=timed(app), sigmas=sigmas)[1]
    assert (
        "positive: original 512 x 256, crop 0 left 0 top, target 512 x 256, at steps 1 to 2."
        in text
    )
    assert "target 1024 x 1024, at steps 3 to 4." in text
    gated = reported(app, scheduled(model), positive=timed(app), sigmas=sigmas)[1]
    assert [line[:7] for line in gated.splitlines()[2:] if line.startswith("step")] == [
        "step  1",
        "step  2",
        "step  3",
        "step  4",
    ]


def test_report_of_the_other_families(app):
    for family, words in (
        ("pixart", "PixArt-alpha is conditioned on"),
        ("hydit", "target 512 x 256"),
    ):
        patcher = conditioned.model(family)
        _, text = reported(app, patcher, positive=prompt(family, **SIZE))
        assert words in text and "original 512 x 256" in text
    with pytest.raises(ValueError, match="takes no size metadata"):
        reported(app, conditioned.model("sd15"))


def test_schedule_tells_its_gate(app, model):
    given = {
        "curve": "cosine",
        "exponent": 2.0,
        "fields": "original_size",
        "reference_width": 0,
        "reference_height": 0,
        "mode": "value",
        "apply_to": "both",
    }
    _, figure, text = app.run(
        "GBX_MetadataSchedule", model=model, sigmas=torch.tensor(SIGMAS), **given
    )
    assert "one half at 50.0 %" in text and "step  2  sigma    1.616  t   501  gate 0.499" in text
    assert tuple(figure.shape[1:]) == (500, 800, 3)
    assert len(app.run("GBX_MetadataSchedule", model=model, **given)[2].splitlines()) == 22


def test_the_demo_model(app, scheduled):
    """Five fields of 64 features each; mirroring is set, and a closed gate on everything takes it
    back.
    """
    demo, clip, _ = app.run("GBX_LoadDemoModel", weights="avatars-v2")
    (plain,) = app.run("CLIPTextEncode", clip=clip, text="portrait")
    given = {
        "original_width": 32,
        "original_height": 32,
        "crop_left": 0,
        "crop_top": 0,
        "target_width": 0,
        "target_height": 0,
    }
    requested, text = app.run(
        "GBX_MetadataConditioning", model=demo, conditioning=plain, mirror=True, **given
    )
    assert text == "DemoModel is conditioned on: original 32 x 32, mirror 1."
    vectors = {}
    for name, model, prompt_ in (
        ("plain", demo, plain),
        ("requested", demo, requested),
        ("size", scheduled(demo, exponent=64.0), requested),
        ("all", scheduled(demo, exponent=64.0, fields="all"), requested),
    ):
        top = model.get_model_object("model_sampling").sigma_max
        with watched(demo) as seen:
            sample(guider(model, prompt_, prompt_, 1.0), [float(top), 0.0], side=16)
        vectors[name] = seen[0]["y"][0].unflatten(0, (5, 64))
    assert torch.equal(vectors["all"], vectors["plain"])
    assert torch.equal(vectors["size"][:4], vectors["plain"][:4]) and torch.equal(
        vectors["size"][4], vectors["requested"][4]
    )
    assert not torch.equal(vectors["requested"][0], vectors["plain"][0])


@pytest.mark.parametrize("mode", ["value", "embedding"])
@pytest.mark.parametrize("after", ["it", "another run"])
def test_a_scheduled_model_that_nobody_holds_is_gone(app, mode, after):
    """ComfyUI warns of a leak, and searches for circles, when a network outlives its MODELs."""
    schedule = {
        "curve": "cosine",
        "exponent": 1.0,
        "fields": "all",
        "reference_width": 512,
        "reference_height": 512,
    }

    def used() -> weakref.ref:
        model, clip, _ = app.run("GBX_LoadDemoModel", weights="avatars-v2")
        (prompt,) = app.run("CLIPTextEncode", clip=clip, text="portrait")
        given = {
            "positive": prompt,
            "negative": prompt,
            "latent_image": {"samples": torch.zeros(1, 24, 8, 8)},
        }
        given |= {
            "seed": 3,
            "steps": 1,
            "cfg": 2.0,
            "sampler_name": "euler",
            "scheduler": "normal",
            "denoise": 1.0,
        }
        gated = app.run(
            "GBX_MetadataSchedule", model=model, mode=mode, apply_to="both", **schedule
        )[0]
        for one in (
            (gated, model) if after == "another run" else (gated,)
        ):  # which takes the patches off again
            app.run("KSampler", model=one, **given)
        return weakref.ref(model.model)

    gc.collect()
    gc.disable()
    try:
        assert used()() is None
    finally:
        gc.enable()
