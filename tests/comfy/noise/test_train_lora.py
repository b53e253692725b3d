"""Train LoRA (Exact Resume) inside a real ComfyUI: core's run with mode off, resume, stop, and what
comes out.
"""

import newer
import pytest
import torch
from trainer_inputs import DEFAULTS, encoded, gaussian, noise_images


def core(app, model, captions, latents, **changed):
    given = {
        name: DEFAULTS[name]
        for name in (
            "batch_size",
            "steps",
            "grad_accumulation_steps",
            "learning_rate",
            "rank",
            "optimizer",
            "loss_function",
            "seed",
            "algorithm",
            "gradient_checkpointing",
            "existing_lora",
        )
    }
    given |= {"training_dtype": DEFAULTS["precision"], "lora_dtype": DEFAULTS["lora_precision"]}
    torch.manual_seed(99)
    lora, losses = newer.train_lora(
        app, model=model, latents=latents, positive=captions, **(given | changed)
    )
    return losses, lora


@pytest.fixture
def cores_factors(app, monkeypatch):
    """Let our first factors be core's, which come from the global generator as the test has seeded
    it.
    """
    adapters = app.module("nodes.host.training.adapters")
    real = adapters.create

    def create(model, **options):
        return real(model, **{**options, "seed": 99})

    monkeypatch.setattr(adapters, "create", create)


@pytest.fixture
def whole_weights(app, monkeypatch):
    """Let LoRAs change whole weights, as core's do, and not what layers put out."""
    monkeypatch.setattr(
        app.module("nodes.host.training.layer_weights"), "low_rank", lambda function: None
    )


def test_mode_off_is_cores_run_but_for_rounding(app, captions, trained, cores_factors):
    """x W + (x A) B rounds elsewhere than x (W + A B): the losses of 20 steps on the demo model to
    2e-4.
    """
    model, clip, _ = app.run("GBX_LoadDemoModel", weights="avatars-v2")
    captions, latents = encoded(app, clip), noise_images(24)
    theirs, _ = core(
        app, model, captions, latents, steps=20, training_dtype="fp32", lora_dtype="fp32"
    )
    ours = trained(
        model=[model],
        positive=captions,
        latents=latents,
        steps=20,
        precision="fp32",
        lora_precision="fp32",
    )
    assert ours["loss_map"]["loss"] == pytest.approx(
        theirs, rel=2e-3 if newer.than_tested() else 2e-4
    )


@pytest.mark.parametrize(("dtype", "steps"), [("fp32", 20), ("bf16", 4)])
def test_mode_off_is_cores_run(
    app, parts, captions, latents, trained, cores_factors, whole_weights, dtype, steps
):
    """Same factors; order, noise and noise levels replayed from a private generator: the same
    losses, bit for bit.

    For 20 steps on the demo model; with whole weights changed, as core does it. In bfloat16, on the
    small one, but for rounding: core leaves the noised image of a single row in bfloat16.
    """
    same = {"steps": steps, "precision": dtype, "lora_precision": dtype}
    model = parts[0]
    if dtype == "fp32":
        model, clip, _ = app.run("GBX_LoadDemoModel", weights="avatars-v2")
        captions, latents = encoded(app, clip), noise_images(24)
    theirs, their_lora = core(
        app, model, captions, latents, steps=steps, training_dtype=dtype, lora_dtype=dtype
    )
    ours = trained(model=[model], positive=captions, latents=latents, **same)
    assert len(theirs) == steps
    assert their_lora.keys() == ours["lora"].keys()
    # It rounds elsewhere, which AdamW's first steps enlarge.
    if newer.than_tested() or dtype == "bf16":
        assert ours["loss_map"]["loss"] == pytest.approx(
            theirs, rel=2e-2 if dtype == "bf16" else 2e-3
        )
        return
    assert ours["loss_map"]["loss"] == theirs
    assert all(torch.equal(their_lora[name], value) for name, value in ours["lora"].items())


def test_mode_off_is_cores_run_in_batches(app, parts, captions, latents, trained, cores_factors):
    """With one caption for all; with several, core shows every image of a batch the mean over all
    its captions.
    """
    same = {"steps": 6, "batch_size": 3, "grad_accumulation_steps": 2}
    theirs, _ = core(app, parts[0], captions[:1], latents, **same)
    ours = trained(positive=captions[:1], **same)
    assert ours["loss_map"]["loss"] == pytest.approx(theirs, rel=1e-4)


def test_the_global_generator_is_left_alone(trained):
    torch.manual_seed(5)
    before = torch.get_rng_state()
    trained(steps=1, pairing="pool")
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    "choices",
    [
        {
            "pairing": "pool",
            "batch_size": 2,
            "lr_schedule": "cosine",
            "warmup_steps": 2,
            "lora_precision": "bf16",
        },
        {
            "pairing": "nearest",
            "unit": "epochs",
            "steps": 2,
            "optimizer": "RMSprop",
            "weighting": "min_snr",
        },
        {"pairing": "off", "grad_accumulation_steps": 2},
    ],
)
def test_going_on_after_a_kill_is_the_uninterrupted_run(app, trained, monkeypatch, choices):
    whole = trained(held_out=1, **choices)
    session = app.module("nodes.host.training.trainer").Session
    real, calls = session.denoised, []

    def killed(self, *given, **more):
        calls.append(None)
        if len(calls) == 5:
            raise KeyboardInterrupt
        return real(self, *given, **more)

    named = f"training/{choices['pairing']}"
    monkeypatch.setattr(session, "denoised", killed)
    with pytest.raises(KeyboardInterrupt):
        trained(held_out=1, checkpoint_name=named, **choices)
    monkeypatch.undo()
    resumed = trained(held_out=1, checkpoint_name=named, **choices)
    assert resumed["loss_map"] == whole["loss_map"]
    assert all(torch.equal(resumed["lora"][name], value) for name, value in whole["lora"].items())
    assert resumed["steps"] == whole["steps"]


def test_a_longer_run_goes_on_after_the_end(trained):
    trained(checkpoint_name="training/longer", steps=2)
    longer = trained(checkpoint_name="training/longer", steps=4)
    assert longer["loss_map"]["loss"] == trained(steps=4)["loss_map"]["loss"]


def test_empty_latents_are_given_the_channels_of_the_model(trained):
    """As stock samplers do with Empty Latent Image on a model of other channels; others are
    refused.
    """
    empty = [{"samples": torch.zeros(1, 24, 8, 8)} for _ in range(4)]
    assert trained(latents=empty, steps=1)["steps"] == 1
    with pytest.raises(ValueError, match="takes 4 channels"):
        trained(latents=noise_images(24), steps=1)


def test_a_full_disk_is_one_sentence_and_keeps_the_checkpoint(trained, monkeypatch):
    trained(checkpoint_name="training/full", steps=1)

    def full(tensors, path, header):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("safetensors.torch.save_file", full)
    with pytest.raises(OSError, match="cannot be written"):
        trained(checkpoint_name="training/full", steps=2)
    monkeypatch.undo()
    assert trained(checkpoint_name="training/full", steps=1)["steps"] == 1


def test_more_steps_under_a_cosine_schedule_are_refused(trained):
    trained(checkpoint_name="training/cosine", steps=1, lr_schedule="cosine")
    with pytest.raises(ValueError, match="another steps"):
        trained(checkpoint_name="training/cosine", steps=2, lr_schedule="cosine")


def test_a_checkpoint_of_another_run_is_refused(trained):
    trained(checkpoint_name="training/other", steps=1)
    with pytest.raises(ValueError, match="another learning_rate, rank"):
        trained(checkpoint_name="training/other", steps=1, rank=3, learning_rate=0.1)
    with pytest.raises(ValueError, match="names no file"):
        trained(checkpoint_name="../../out")


def test_stop_cancels_and_keeps_what_it_has_where_that_was_chosen(app, trained, monkeypatch):
    from comfy import model_management

    session = app.module("nodes.host.training.trainer").Session
    real = session.denoised

    def stop_at(call):
        calls = []

        def denoised(self, *given, **more):
            calls.append(None)
            if len(calls) == call:
                model_management.interrupt_current_processing()
            return real(self, *given, **more)

        monkeypatch.setattr(session, "denoised", denoised)

    stop_at(3)
    kept = trained(on_stop="keep_lora")
    assert kept["steps"] == 2 and "finished at 2 of 4 steps" in kept["report"]
    assert len(kept["loss_map"]["loss"]) == 2 and kept["loss_map"]["finished_at"] == [2, 4]
    stop_at(3)
    with pytest.raises(model_management.InterruptProcessingException):
        trained(checkpoint_name="glassbox/stopped_training")
    stop_at(1)
    with pytest.raises(model_management.InterruptProcessingException):
        trained(on_stop="keep_lora")
    stop_at(0)
    resumed, whole = trained(checkpoint_name="glassbox/stopped_training"), trained()
    assert all(torch.equal(value, whole["lora"][name]) for name, value in resumed["lora"].items())
    assert resumed["loss_map"] == whole["loss_map"] and "finished_at" not in whole["loss_map"]


def test_finish_now_keeps_what_it_has(app, parts, trained, monkeypatch):
    """Pressed during the third step: three steps, validated and with images; during the last one
    the run is whole.
    """
    nodes = app.module("nodes.noise.train_lora_comfy")
    real, steps = nodes.FinishNow.check, []

    def check(self):
        steps.append(None)
        if len(steps) == pressed:
            self._pressed.set()
        real(self)

    monkeypatch.setattr(nodes.FinishNow, "check", check)
    pressed = 3
    finished = trained(held_out=2, vae=parts[2])
    assert finished["steps"] == 3 and "finished at 3 of 4 steps" in finished["report"]
    assert [step for step, _ in finished["loss_map"]["validation"]] == [0, 2, 3]
    assert len(finished["images"]) == 3 and not torch.equal(
        finished["images"][1], finished["images"][2]
    )
    steps.clear()
    pressed = 4
    assert "finished at" not in trained()["report"]


def test_stop_while_a_finished_run_is_sampled_leaves_its_images_to_the_next(
    app, parts, trained, monkeypatch
):
    """Finish now in the third step, Stop in the first evaluation of the sample images, and the same
    again.
    """
    from comfy import model_management

    session, nodes = (
        app.module("nodes.host.training.trainer").Session,
        app.module("nodes.noise.train_lora_comfy"),
    )
    check, evaluate, calls = nodes.FinishNow.check, session.denoised, []

    def press(self):
        calls.append(None)
        if len(calls) == 3:
            self._pressed.set()
        check(self)

    def stop(self, *given, **more):
        if len(calls) == 3:
            model_management.interrupt_current_processing()
        return evaluate(self, *given, **more)

    run = {
        "vae": parts[2],
        "checkpoint_name": "training/finished_and_stopped",
        "sample_interval": 0,
    }
    with monkeypatch.context() as patched:
        patched.setattr(nodes.FinishNow, "check", press)
        patched.setattr(session, "denoised", stop)
        with pytest.raises(model_management.InterruptProcessingException):
            trained(**run)
    again = trained(**run)
    assert (
        again["steps"] == 3
        and isinstance(again["images"], torch.Tensor)
        and "finished at 3 of 4" in again["report"]
    )


def test_validation_does_not_depend_on_the_pairing_and_samples_are_generated(
    parts, captions, trained
):
    how = {
        "held_out": 2,
        "vae": parts[2],
        "sample_positive": captions[:2],
        "sample_negative": captions[3:],
    }
    drawn, paired = (trained(pairing=mode, **how) for mode in ("off", "pool"))
    first = [outputs["loss_map"]["validation"][0] for outputs in (drawn, paired)]
    assert first[0] == first[1]
    assert [step for step, _ in paired["loss_map"]["validation"]] == [0, 2, 4]
    assert paired["images"].shape == (6, 64, 64, 3) and torch.equal(
        paired["images"][:2], drawn["images"][:2]
    )
    assert not torch.equal(paired["images"][4:], drawn["images"][4:])
    assert (
        "2 images trained on, 2 held out, 4 steps" in paired["report"]
        and "shorter" in paired["report"]
    )
    assert paired["figure"].shape[-1] == 3


def test_without_a_vae_the_samples_output_rests(trained):
    from comfy_execution.graph import ExecutionBlocker

    assert isinstance(trained(steps=1)["images"], ExecutionBlocker)


def test_the_lora_acts_in_stock_nodes(app, parts, captions, trained):
    outputs = trained(learning_rate=0.05)

    def generated(model):
        latent = {"samples": torch.zeros(1, 4, 8, 8)}
        return app.run(
            "KSampler",
            model=model,
            seed=3,
            steps=1,
            cfg=1.0,
            sampler_name="euler",
            scheduler="normal",
            positive=captions[0],
            negative=captions[1],
            latent_image=latent,
            denoise=1.0,
        )[0]["samples"]

    loaded = app.run("LoraModelLoader", model=parts[0], lora=outputs["lora"], strength_model=1.0)[0]
    assert torch.equal(generated(outputs["model"]), generated(loaded))
    assert not torch.equal(generated(outputs["model"]), generated(parts[0]))


def test_training_on_from_a_file(app, trained, monkeypatch, tmp_path):
    import folder_paths
    from safetensors.torch import save_file

    first = trained(steps=2)
    save_file(first["lora"], tmp_path / "cat_2_steps_00001_.safetensors")
    folder_paths.add_model_folder_path("loras", str(tmp_path))
    folder_paths.filename_list_cache.clear()
    second = trained(steps=1, existing_lora="cat_2_steps_00001_.safetensors", learning_rate=1e-7)
    assert second["steps"] == 3
    for name, value in first["lora"].items():
        assert torch.allclose(second["lora"][name], value, atol=1e-5), name
    foreign = {
        f"lora_unet_elsewhere.lora_{part}.weight": torch.ones(2, 2) for part in ("up", "down")
    }
    save_file(foreign, tmp_path / "foreign.safetensors")
    with pytest.raises(ValueError, match="made for another model"):
        trained(steps=1, existing_lora="foreign.safetensors")
    (tmp_path / "text.pt").write_text("<html>")
    folder_paths.filename_list_cache.clear()
    with pytest.raises(ValueError, match=r"text.pt cannot be read"):
        trained(steps=1, existing_lora="text.pt")


@pytest.mark.parametrize("mode", ["off", "assign", "pool", "nearest"])
def test_buckets_of_sizes(trained, captions, mode):
    sizes = [
        {"samples": gaussian(count, 4, 8, side, seed=side)} for count, side in ((2, 8), (2, 12))
    ]
    outputs = trained(latents=sizes, pairing=mode, batch_size=2, unit="epochs", steps=2)
    assert outputs["steps"] == 4


@pytest.mark.parametrize("algorithm", ["LoHa", "LoKr", "OFT"])
def test_adapters_other_than_lora_train(trained, algorithm):
    outputs = trained(algorithm=algorithm, steps=1, gradient_checkpointing=True)
    assert any("hada" in name or "lokr" in name or "oft" in name for name in outputs["lora"])


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"held_out": 4}, "All 4 images would be held out"),
        ({"positive": "two"}, "4 images and 2 captions"),
    ],
)
def test_bad_input_raises_one_sentence(trained, captions, changed, sentence):
    if changed.get("positive") == "two":
        changed = {"positive": captions[:2]}
    with pytest.raises(ValueError, match=sentence):
        trained(**changed)


#: Inputs of core's Train LoRA that have another name here.
#: Core trains in bf16 also where the device emulates it.
_OWN_DEFAULTS = {"training_dtype": "auto"}
_RENAMED = {"training_dtype": "precision", "lora_dtype": "lora_precision"}
#: Inputs of core's that are not here, and why; all are of ComfyUI after 0.3.75.
_CORES_OWN = {
    "bucket_mode": "batches are always of one size here",
    "bypass_mode": "not needed: quantized weights are trained on as they are",
    "checkpoint_depth": "not here: the network's blocks are computed again",
    "offloading": "not here: the whole model is loaded",
    "quantized_backward": "not here: gradients go through the true numbers",
}


def test_every_input_of_cores_train_lora_is_here_or_named(app):
    core, ours = (
        app.classes[name].GET_SCHEMA() for name in ("TrainLoraNode", "GBX_TrainLoraImmiscible")
    )
    names = {field.id for field in core.inputs}
    known = {field.id: field for field in ours.inputs}
    assert {name for name in names if _RENAMED.get(name, name) not in known} <= set(_CORES_OWN)
    for field in core.inputs:
        mine = known.get(_RENAMED.get(field.id, field.id))
        if mine is not None and hasattr(field, "default"):
            expected = _OWN_DEFAULTS.get(field.id, field.default)
            assert mine.default in (expected, None), field.id  # None: the first of the options
        if mine is not None and hasattr(field, "options") and field.id not in _RENAMED:
            assert set(mine.options) >= set(field.options), field.id


def test_the_new_options_at_their_defaults_are_the_run_of_before(trained):
    before = trained()
    same = trained(
        alpha=1.0,
        layers="",
        caption_dropout=0.0,
        noise_levels="uniform",
        logit_mean=2.0,
        logit_std=3.0,
        ema_decay=0.0,
    )
    assert before["loss_map"] == same["loss_map"]
    assert all(torch.equal(before["lora"][name], same["lora"][name]) for name in before["lora"])


def test_chosen_layers_and_alpha(trained):
    lora = trained(layers="to_q, attn2.to_v", alpha=4.0)["lora"]
    assert lora and all("to_q" in name or "attn2.to_v" in name for name in lora)
    assert {float(value) for name, value in lora.items() if name.endswith(".alpha")} == {4.0}
    with pytest.raises(ValueError, match="No layer of this MODEL has a name with one of nothing"):
        trained(layers="nothing")


def test_dropped_captions_train_on_the_empty_one(app, parts, captions, trained):
    empty = app.run("CLIPTextEncode", clip=parts[1], text="")[0]
    always = trained(caption_dropout=1.0, empty_caption=[empty])["loss_map"]
    assert always == trained(positive=[empty])["loss_map"] != trained()["loss_map"]
    with pytest.raises(ValueError, match="caption_dropout needs empty_caption"):
        trained(caption_dropout=0.1)


def test_masked_positions_do_not_count(trained, latents):
    """With the lower half masked, other content there (same noise) changes the loss through the
    network alone.
    """
    mask = torch.zeros(1, 64, 64)
    mask[:, :32] = 1
    plain, ones, masked = trained(), trained(masks=[torch.ones(1, 8, 8)]), trained(masks=[mask])
    assert plain["loss_map"]["loss"] == pytest.approx(ones["loss_map"]["loss"], rel=1e-5)
    assert masked["loss_map"]["loss"][0] != pytest.approx(plain["loss_map"]["loss"][0], rel=1e-3)


def test_resume_with_the_new_options_is_the_uninterrupted_run(app, parts, trained):
    empty = app.run("CLIPTextEncode", clip=parts[1], text="")[0]
    options = {
        "caption_dropout": 0.5,
        "empty_caption": [empty],
        "noise_levels": "logit_normal",
        "ema_decay": 0.9,
        "masks": [torch.rand(4, 8, 8, generator=torch.Generator().manual_seed(0))],
        "held_out": 1,
    }
    whole = trained(**options, checkpoint_name="glassbox/new_whole")
    trained(**options, checkpoint_name="glassbox/new_parts", steps=2)
    resumed = trained(**options, checkpoint_name="glassbox/new_parts")
    assert resumed["loss_map"] == whole["loss_map"]
    assert all(torch.equal(resumed["lora"][name], whole["lora"][name]) for name in whole["lora"])
    raw = trained(**options | {"ema_decay": 0.0})
    assert any(not torch.equal(raw["lora"][name], whole["lora"][name]) for name in whole["lora"])
    with pytest.raises(ValueError, match="A checkpoint cannot hold the state of Prodigy"):
        trained(optimizer="Prodigy", checkpoint_name="glassbox/new_none")


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_one_image_at_a_time_in_16_bits(trained, precision):
    """ComfyUI leaves the state of a single row in the latent's type; two rows get float32."""
    exact = trained(precision="fp32", batch_size=1, steps=4)["loss_map"]["loss"]
    low = trained(precision=precision, batch_size=1, steps=4)["loss_map"]["loss"]
    assert low == pytest.approx(exact, rel=0.02)


@pytest.mark.parametrize("node", ["EasyCache", "LazyCache"])
def test_caches_of_steps_are_left_out_of_a_training(app, trained, parts, node):
    caching = {"reuse_threshold": 0.2, "start_percent": 0.15, "end_percent": 0.95}
    cached = app.run(node, model=parts[0], verbose=False, **caching)[0]
    losses = trained(steps=4, model=cached)["loss_map"]["loss"]
    assert losses == trained(steps=4)["loss_map"]["loss"]
