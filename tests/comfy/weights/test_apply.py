"""W2W Apply inside a real ComfyUI: points on a MODEL, over the whole run and over parts of it."""

import pytest
import torch
import weight_nodes


@pytest.fixture(scope="module")
def family(app, tmp_path_factory):
    return weight_nodes.family(app, tmp_path_factory.getbasetemp())


def test_strength_0_is_the_model_itself(family):
    assert family.apply(family.point, strength=0.0) is family.model
    assert family.apply(family.point, strength=0.0, start_percent=0.5) is family.model


def test_it_is_what_load_lora_makes_of_the_saved_file(family, app):
    """Of the same tensors bit for bit. The file has other factors of the same dW: in float32 that
    moves latents by the rounding of the first step alone, from a sigma of 4,500; in float16 by
    2^-11 of what the LoRA changes, besides.
    """
    import folder_paths

    folder_paths.add_model_folder_path("loras", folder_paths.get_output_directory() + "/loras")
    to_tensors = app.module("nodes.weights.lora_writer").to_tensors
    plain, applied = (
        family.sample(family.model),
        family.sample(family.apply(family.point, strength=0.7)),
    )

    def wired(lora):
        return family.sample(
            app.run("LoraModelLoader", model=family.model, lora=lora, strength_model=0.7)[0]
        )

    assert torch.equal(applied, wired(to_tensors(family.point.layers())))
    for number, (precision, close) in enumerate({"fp32": 0.0, "fp16": 2**-11}.items(), 1):
        given = {
            "filename_prefix": "loras/point",
            "rank": 0,
            "file_format": "kohya",
            "precision": precision,
        }
        tensors, file, report = app.run("GBX_W2WToLoRA", point=family.point, **given)
        folder_paths.filename_list_cache.clear()
        assert (
            file == f"loras/point_{number:05}_.safetensors"
            and "100.00 % of the change is kept" in report
        )
        name = file.removeprefix("loras/")
        (loaded,) = app.run(
            "LoraLoaderModelOnly", model=family.model, lora_name=name, strength_model=0.7
        )
        of_file = family.sample(loaded)
        assert torch.equal(wired(tensors), of_file)
        assert (applied - of_file).norm() <= close * (applied - plain).norm() + 2e-5 * plain.norm()
        dtype = {"fp32": torch.float32, "fp16": torch.float16}[precision]
        assert all(
            value.dtype == dtype for key, value in tensors.items() if not key.endswith(".alpha")
        )
    assert torch.equal(family.sample(family.model), plain)


def test_weights_are_the_members_own(family, app):
    """With all components a member's point gives the latent of its own file; difference below 2e-3
    of latents of 1.
    """
    mine = family.draw(family.space, source="member", member_name="member_02")[0]
    (loaded,) = app.run(
        "LoraLoaderModelOnly",
        model=family.model,
        lora_name="people/member_02.safetensors",
        strength_model=1.0,
    )
    assert (family.sample(family.apply(mine)) - family.sample(loaded)).abs().max() < 2e-3


@pytest.mark.parametrize("span", [(0.0, 0.5), (0.5, 1.0), (0.0, 1.0)])
def test_start_and_end(family, app, span):
    """By the weight function each step has the weights it should: compared with a run cut in two by
    hand.
    """
    start, end = span
    model = family.apply(family.point, start_percent=start, end_percent=end)
    patched = family.apply(family.point)
    sigmas = app.run(
        "BasicScheduler", model=family.model, scheduler="normal", steps=6, denoise=1.0
    )[0]
    edge = [
        float(family.model.get_model_object("model_sampling").percent_to_sigma(p))
        if p < 1
        else -1.0
        for p in span
    ]
    latent = torch.zeros(1, 24, 16, 16)
    whole = custom(app, family, model, sigmas, latent, noise=True)
    for number in range(len(sigmas) - 1):
        active = edge[1] < float(sigmas[number]) <= edge[0]
        which = patched if active else family.model
        latent = custom(app, family, which, sigmas[number : number + 2], latent, noise=number == 0)
    torch.testing.assert_close(whole, latent, atol=2e-4, rtol=1e-4)


def custom(app, family, model, sigmas, latent, noise):
    noise = app.run("RandomNoise", noise_seed=5)[0] if noise else app.run("DisableNoise")[0]
    guider = app.run(
        "CFGGuider", model=model, positive=family.positive, negative=family.negative, cfg=2.0
    )[0]
    sampler = app.run("KSamplerSelect", sampler_name="euler")[0]
    return app.run(
        "SamplerCustomAdvanced",
        noise=noise,
        guider=guider,
        sampler=sampler,
        sigmas=sigmas,
        latent_image={"samples": latent},
    )[0]["samples"]


def test_intervals_stack_in_either_order_and_leave_the_model_alone(family):
    first, second = family.draw(family.space, count=2)
    plain = family.sample(family.model)

    def late(model, point):
        return family.apply(point, model, start_percent=0.3)

    one = family.sample(late(late(family.model, first), second))
    other = family.sample(late(late(family.model, second), first))
    torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)
    assert not torch.equal(one, plain) and torch.equal(family.sample(family.model), plain)
    assert not any(
        getattr(module, "weight_function", None) for module in family.model.model.modules()
    )


def test_an_interval_survives_a_stopped_run(family, monkeypatch):
    """A run that fails midway leaves nothing behind."""
    plain, model = family.sample(family.model), family.apply(family.point, start_percent=0.3)
    network = family.model.model.diffusion_model

    def fail(*_, **__):
        raise RuntimeError("stopped")

    with monkeypatch.context() as patch:
        patch.setattr(network, "forward", fail)
        with pytest.raises(RuntimeError, match="stopped"):
            family.sample(model)
    assert torch.equal(family.sample(family.model), plain)


def test_delayed_injection_starts_where_the_official_code_starts(family, app):
    """Appendix I: the first edited of the 51 evaluations of 50 PNDM steps, t <= T, by start percent
    1 - T / 999.
    """
    lora_patches = app.module("nodes.weights.lora_intervals_comfy")
    sampling = family.model.get_model_object("model_sampling")
    times = [1 + 20 * step for step in reversed(range(50))]
    times = [times[0], times[1], *times[1:]]  # the second is evaluated twice
    assert len(times) == 51
    found = {}
    for threshold in (1000, 900, 800, 700, 600, 500, 400):
        span = lora_patches.interval(family.model, max(0.0, 1 - threshold / 999), 1.0)
        held = [span.holds(float(sampling.sigma(torch.tensor(float(time))))) for time in times]
        found[threshold] = held.index(True)
        assert all(held[found[threshold] :])
    assert found == {1000: 0, 900: 6, 800: 11, 700: 16, 600: 21, 500: 26, 400: 31}


def test_an_interval_that_ends_before_it_starts(family):
    with pytest.raises(ValueError, match="must start before it ends"):
        family.apply(family.point, start_percent=0.6, end_percent=0.4)


def test_a_base_that_hands_over_to_its_edit(family):
    """Delayed injection, appendix I: the base until T and the edit from it on; the later, the
    smaller the change.
    """
    base = family.draw(family.directed[0])[0]
    edited = family.edit(base, "beard: 1")[0]

    def sampled(percent):
        model = family.apply(base, end_percent=percent)
        return family.sample(family.apply(edited, model, start_percent=percent), steps=6)

    only_base, only_edited = (family.sample(family.apply(one), steps=6) for one in (base, edited))
    difference = [float((sampled(percent) - only_base).norm()) for percent in (0.999, 0.6, 0.2)]
    assert (
        0
        <= difference[0]
        < difference[1]
        < difference[2]
        <= 1.5 * float((only_edited - only_base).norm())
    )


def test_edits_in_one_node_are_edits_in_two(family):
    assert "beard (noise): largest projection" in family.directed[1]
    start = family.draw(family.directed[0])[0]
    one, name = family.edit(start, "beard: 0.8, glasses: -0.5")
    two = family.edit(family.edit(start, "beard: 0.8")[0], "glasses: -0.5")[0]
    assert name == "sample 1.0, beard +0.8, glasses -0.5"
    assert torch.equal(family.sample(family.apply(one)), family.sample(family.apply(two)))


def test_a_noise_level_holds_for_its_own_call(app):
    """Within another call, after it, and after one that fails, there is the level around."""
    span = app.module("nodes.weights.lora_intervals_comfy").Interval(5.0, 1.0)
    assert span.now is None and not span.active()
    with span.at(3.0):
        assert span.now == 3.0 and span.active()
        with span.at(7.0):
            assert span.now == 7.0 and not span.active()
        assert span.now == 3.0 and span.active()
        with pytest.raises(KeyError), span.at(1.0):
            raise KeyError
        assert span.now == 3.0 and span.active()
    assert span.now is None and not span.active()
