"""W2W Invert inside a real ComfyUI: gradients through its own model path, and nothing left
behind.
"""

import members
import pytest
import torch
from safetensors.torch import save_file

LAYERS = {
    "down_blocks.0.attentions.0.transformer_blocks.0.attn1.to_q": (64, 64),
    "down_blocks.0.attentions.0.transformer_blocks.0.attn2.to_v": (128, 64),
    "mid_block.attentions.0.transformer_blocks.0.attn1.to_v": (128, 128),
}
CHOICES = {
    "steps": 3,
    "learning_rate": 0.1,
    "weight_decay": 1e-10,
    "components": 100,
    "seed": 4,
    "precision": "fp32",
    "gradient_checkpointing": True,
    "preview_interval": 2,
    "checkpoint_name": "",
}


@pytest.fixture(scope="module")
def given(app, tmp_path_factory):
    model, clip, vae = app.run("GBX_LoadDemoModel", weights="avatars-v2")
    folder = tmp_path_factory.mktemp("loras")
    for seed in range(6):
        save_file(
            members.kohya(members.factors(seed, layers=LAYERS)), folder / f"{seed}.safetensors"
        )
    building, sources = (
        app.module("nodes.weights.space_builder"),
        app.module("nodes.weights.member_sources"),
    )
    space = building.build(
        sources.file_sources(folder), building.BuildSettings(), folder / "s.safetensors"
    )
    (positive,) = app.run("CLIPTextEncode", clip=clip, text="portrait")
    (latent,) = app.run(
        "VAEEncode",
        pixels=app.run("GBX_DemoPicture", image_index=1, count=2, part="face")[0],
        vae=vae,
    )
    return {"model": model, "space": space, "positive": positive, "latent": latent, "vae": vae}


def invert(app, given, **changed):
    vae = changed.pop("vae", None)
    inputs = {name: given[name] for name in ("model", "space", "positive", "latent")}
    return app.run(
        "GBX_W2WInvert", **{**inputs, **CHOICES, **changed}, **({"vae": vae} if vae else {})
    )


def sample(app, given, model):
    how = {
        "seed": 1,
        "steps": 2,
        "cfg": 1.0,
        "sampler_name": "euler",
        "scheduler": "normal",
        "denoise": 1.0,
    }
    return app.run(
        "KSampler",
        model=model,
        positive=given["positive"],
        negative=given["positive"],
        latent_image={"samples": torch.zeros(1, 24, 16, 16)},
        **how,
    )[0]["samples"]


def test_a_run_and_what_it_leaves(app, given):
    drawn = {
        "seed": 0,
        "count": 1,
        "components": 9,
        "spread": 1.0,
        "source": "random",
        "member_name": "",
    }
    (point,) = app.run("GBX_W2WSample", space=given["space"], **drawn)[0]
    patched, _, _ = app.run(
        "GBX_W2WApply",
        model=given["model"],
        point=point,
        strength=1.0,
        start_percent=0.0,
        end_percent=1.0,
    )
    with_lora = sample(
        app, given, patched
    )  # a KSampler has run with a LoRA on the same MODEL before
    plain = sample(app, given, given["model"])
    found, restored, plot, losses, report = invert(app, given, vae=given["vae"])
    assert len(losses["loss"]) == 3 and found.coefficients.abs().max() > 0.05
    assert restored.shape == (2, 128, 128, 3) and plot.shape[0] == 1 and "Nearest members" in report
    assert torch.equal(sample(app, given, given["model"]), plain)
    assert torch.equal(sample(app, given, patched), with_lora)
    again = invert(app, given, gradient_checkpointing=False, preview_interval=0)[0]
    torch.testing.assert_close(again.coefficients, found.coefficients, atol=1e-4, rtol=1e-3)


def test_the_gradient_is_that_of_finite_differences(app, given):
    """Through ComfyUI's model path in float32: central differences of the loss along three
    coefficients, 2 %.
    """
    train, inversion = (
        app.module("nodes.host.training.trainer"),
        app.module("nodes.weights.inversion"),
    )
    nodes = app.module("nodes.weights.inversion_comfy")
    space = given["space"]
    with torch.inference_mode(False):
        made = inversion.TrainablePoint(space, space.coefficients[1].clone(), 100)
        run = inversion.Inversion(model=made, settings=inversion.InversionSettings(seed=2))

        def work(session):
            run.loss(session, None, 0).backward()
            measured = []
            for number in range(3):
                values = []
                for step in (0.2, -0.2):
                    with torch.no_grad():
                        made.coefficients[number] += step
                        made.refresh()
                        values.append(run.loss(session, None, 0).item())
                        made.coefficients[number] -= step
                measured.append((values[0] - values[1]) / 0.4)
            return measured

        functions = nodes.weight_functions(given["model"], made)
        latents = [given["latent"]["samples"][:1].clone()]
        measured = train.run(
            given["model"], functions, latents, [given["positive"]], work, dtype=torch.float32
        )
    gradient = made.coefficients.grad[:3]
    torch.testing.assert_close(
        gradient, torch.tensor(measured), atol=0.02 * float(gradient.abs().max()), rtol=0.02
    )


def test_mask_start_and_checkpoint(app, given):
    mask = torch.zeros(1, 128, 128)
    mask[:, :64] = 1
    plain = invert(app, given, steps=1)[3]["loss"]
    masked = invert(app, given, steps=1, mask=mask)[3]["loss"]
    assert masked[0] < plain[0]
    point_class = app.module("nodes.weights.space").Point
    start = point_class(given["space"], given["space"].coefficients[3])
    found = invert(app, given, steps=1, learning_rate=1e-3, start_point=start)[0]
    torch.testing.assert_close(found.coefficients, start.coefficients, atol=2e-3, rtol=0)
    early = invert(app, given, steps=4, learning_rate=1e-6, early_stop=1)
    assert (
        len(early[3]["loss"]) == 1
        and not early[0].coefficients.any()
        and "(early stop)" in early[4]
    )
    once = invert(app, given, steps=4)[0]
    invert(app, given, steps=2, checkpoint_name="glassbox/inversion")
    resumed = invert(app, given, steps=4, checkpoint_name="glassbox/inversion")[0]
    torch.testing.assert_close(resumed.coefficients, once.coefficients, atol=1e-6, rtol=1e-6)


def test_stop_cancels_and_the_same_inversion_goes_on(app, given, monkeypatch):
    from comfy import model_management

    inversion = app.module("nodes.weights.inversion").Inversion
    loss, requested = inversion.loss, []

    def stopping(self, session, mask, step):
        requested.append(step)
        if step == last:
            raise model_management.InterruptProcessingException
        return loss(self, session, mask, step)

    monkeypatch.setattr(inversion, "loss", stopping)
    last, how = 2, {"steps": 4, "checkpoint_name": "glassbox/stopped"}
    with pytest.raises(model_management.InterruptProcessingException):
        invert(app, given, **how)
    last = None
    requested.clear()
    resumed = invert(app, given, **how)
    assert requested == [2, 3]
    whole = invert(app, given, steps=4)
    assert torch.equal(resumed[0].coefficients, whole[0].coefficients) and resumed[3] == whole[3]


def test_finish_now_takes_the_point_trained_so_far(app, given, monkeypatch):
    nodes = app.module("nodes.weights.inversion_comfy")
    real, steps = nodes.FinishNow.check, []

    def check(self):
        steps.append(None)
        if len(steps) == 2:
            self._pressed.set()
        real(self)

    monkeypatch.setattr(nodes.FinishNow, "check", check)
    _, restored, _, losses, report = invert(app, given, steps=50, vae=given["vae"])
    assert len(losses["loss"]) == 2 and "finished at 2 of 50 steps" in report and len(restored) == 2


@pytest.fixture(scope="module")
def folder_of_loras(tmp_path_factory):
    import folder_paths

    root = tmp_path_factory.mktemp("every_form")
    folder_paths.add_model_folder_path("loras", str(root))
    folder_paths.add_model_folder_path("w2w", str(root / "w2w"), is_default=True)
    (root / "w2w").mkdir()
    folder = (
        root / "people_of_every_form"
    )  # a name of its own: ComfyUI looks through the folders of all tests
    folder.mkdir()
    for seed in range(6):
        save_file(
            members.kohya(members.factors(seed, layers=LAYERS)), folder / f"{seed}.safetensors"
        )
    return folder.name


@pytest.mark.parametrize("storage", ["float32", "float16", "int8"])
@pytest.mark.parametrize("form", ["weight_updates", "as_trained", "singular_values"])
def test_every_form_and_storage_at_both_precisions(app, given, folder_of_loras, form, storage):
    """Built as the queue builds it, in inference mode, whose tensors no gradient may cross.

    The first loss is that of the mean, the same whatever the storage of the basis; a bfloat16 model
    is within 5 %.
    """
    how = {
        "rank": [128],
        "energy": [0.99],
        "components": [5],
        "standardize": [True],
        "on_mismatch": ["error"],
    }
    more = {
        "folder": [folder_of_loras],
        "filename": [f"{form}-{storage}"],
        "form": [form],
        "storage": [storage],
    }
    space = app.run("GBX_W2WBuildSpace", **how, **more)[0]
    losses = {}
    for precision in ("fp32", "bf16"):
        point, _, _, found, _ = invert(
            app, given, space=space, precision=precision, preview_interval=0
        )
        assert point.coefficients.isfinite().all() and point.coefficients.abs().max() > 0.05
        losses[precision] = found["loss"]
    assert losses["bf16"] == pytest.approx(losses["fp32"], rel=0.05)
    if form == "weight_updates":
        mean = invert(app, given, precision="fp32", preview_interval=0, steps=1)[3]["loss"]
        assert losses["fp32"][0] == pytest.approx(mean[0], rel=1e-3)


def test_another_base_model_is_refused(app, given):
    import reduced

    with pytest.raises(ValueError, match="made for another base model"):
        invert(app, given, model=reduced.checkpoint("sdxl")[0])


def test_latents_of_another_model_are_one_sentence_and_empty_ones_are_repaired(app, given):
    """Four channels into the demo model's 24: an empty latent gets its channels as KSampler gives
    them.
    """
    with pytest.raises(ValueError, match="24 channels"):
        invert(app, given, latent={"samples": torch.randn(1, 4, 16, 16)}, steps=1)
    with pytest.raises(ValueError, match="2 dimensions"):
        invert(app, given, latent={"samples": torch.randn(1, 24, 1, 16, 16)}, steps=1)
    assert (
        len(invert(app, given, latent={"samples": torch.zeros(1, 4, 16, 16)}, steps=1)[3]["loss"])
        == 1
    )
