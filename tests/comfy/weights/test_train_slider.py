"""Train Slider inside a real ComfyUI: phrases or pairs in, LoRAs out that stock nodes read, on
every architecture.
"""

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import pytest
import reduced
import tiny_transformers
import torch

CHOICES = {
    "increase": "majestic beard\nsunglasses",
    "decrease": "shaven",
    "base_prompt": "portrait\nportrait, blue hoodie",
    "keep": "",
    "rank": 2,
    "steps": 3,
    "learning_rate": 0.01,
    "guidance_scale": 2.0,
    "batch_size": 2,
    "images": 2,
    "sampling_steps": 2,
    "cfg": 2.0,
    "end_percent": 1.0,
    "seed": 3,
    "layers": "",
    "precision": "fp32",
    "gradient_checkpointing": False,
    "preview_interval": 2,
    "filename_prefix": "",
    "checkpoint_name": "",
    "checkpoint_interval": 2,
}
SIDE = 8
_MEMBER = {
    "seed": 1,
    "count": 1,
    "components": 1000,
    "spread": 1.0,
    "source": "members",
    "member_name": "",
}


@pytest.fixture(scope="module")
def demo(app):
    return app.run("GBX_LoadDemoModel", weights="avatars-v2")


def blank(channels=24):
    return {"samples": torch.zeros(1, channels, SIDE, SIDE)}


def train(app, demo, **changed):
    model, clip, vae = demo
    inputs = {"model": model, "clip": clip, "vae": vae, "latent": blank(), **CHOICES, **changed}
    return app.run("GBX_TrainSlider", **inputs)


def sampled(app, model, clip):
    """A latent of stock KSampler."""
    prompts = {
        name: app.run("CLIPTextEncode", clip=clip, text=text)[0]
        for name, text in (("positive", "portrait"), ("negative", ""))
    }
    how = {"seed": 5, "steps": 2, "cfg": 2.0, "sampler_name": "euler", "scheduler": "normal"}
    latent = app.run("KSampler", model=model, latent_image=blank(), denoise=1.0, **prompts, **how)[
        0
    ]
    return latent["samples"]


@torch.inference_mode()
def test_two_sliders_and_what_stock_nodes_make_of_them(app, demo):
    import folder_paths

    before = {name: value.clone() for name, value in demo[0].model.state_dict().items()}
    models, loras, files, images, figure, losses, report, space = train(
        app, demo, filename_prefix="loras/slider"
    )
    assert type(space).__name__ == "ExecutionBlocker"
    after = demo[0].model.state_dict()
    assert all(torch.equal(after[name], value) for name, value in before.items())
    assert not any(module._forward_hooks for module in demo[0].model.modules())
    assert len(models) == len(loras) == len(files) == 2
    assert images.shape == (6, 64, 64, 3) and figure.ndim == 4 and len(losses["loss"]) == 3
    assert "2 sliders of rank 2 in 128 layers" in report
    assert "majestic beard / shaven: " in report and "sunglasses: " in report
    # at 0 both previews are the frozen model's
    assert torch.equal(images[1], images[4]) and not torch.equal(images[0], images[1])
    assert not torch.equal(images[2], images[5])
    output = Path(folder_paths.get_output_directory())
    folder_paths.add_model_folder_path("loras", str(output / "loras"))
    assert files[0].startswith("loras/slider_majestic_beard_")
    plain = sampled(app, *demo[:2])
    for model, lora, file in zip(models, loras, files, strict=True):
        expected = sampled(app, model, demo[1])
        assert not torch.equal(expected, plain)
        load = {"model": demo[0], "lora_name": Path(file).name}
        for strength in (1.0, 0.0):
            stock = app.run("LoraLoaderModelOnly", **load, strength_model=strength)[0]
            assert torch.equal(sampled(app, stock, demo[1]), expected if strength else plain)
        stock = app.run("LoraModelLoader", model=demo[0], lora=lora, strength_model=1.0)[0]
        assert torch.equal(sampled(app, stock, demo[1]), expected)
        assert len(model.patches) == 128
    reader = app.module("nodes.common.lora_reader")
    phrases = app.module("nodes.weights.slider_phrases")
    labels = phrases.labels_of(reader.read_metadata(output / files[0]))
    assert (labels.increase, labels.decrease) == ("majestic beard", "shaven")


def test_training_behind_seed_variety_learns_from_the_prompt_itself(app, demo):
    model, clip, vae = demo
    noise = {"method": "annealed", "noise_scale": 0.5, "tau1": 0.2, "tau2": 0.8, "seed": 3}
    varied = app.run("GBX_SeedVariety", model=model, **noise)[0]
    assert not torch.equal(sampled(app, varied, clip), sampled(app, model, clip))
    faces = app.run("GBX_DemoPicture", image_index=1, count=3, part="face")[0][:, ::2, ::2]
    latent = app.run("VAEEncode", pixels=faces, vae=vae)[0]  # images that no sampler makes
    _, plain, *_ = train(app, demo, latent=latent)
    for checkpointing in (False, True):
        given = {"gradient_checkpointing": checkpointing, "latent": latent}
        _, behind, *_ = train(app, (varied, clip, vae), **given)
        for name, value in plain[0].items():
            assert torch.allclose(behind[0][name], value, atol=1e-5), name


def test_a_slider_alone_is_that_of_the_common_training(app, demo):
    """To rounding: images, noise and steps are the same."""
    _, loras, *_ = train(app, demo)
    _, alone, *_ = train(app, demo, increase="majestic beard")
    for name, value in alone[0].items():
        assert torch.allclose(loras[0][name], value, atol=1e-4), name


def test_images_in_the_latent_are_trained_on(app, demo, monkeypatch):
    half = app.module("nodes.weights.slider_training_comfy")

    def refuse(*args, **kwargs):
        raise AssertionError

    monkeypatch.setattr(half, "sample_each", refuse)
    faces = app.run("GBX_DemoPicture", image_index=1, count=3, part="face")[0][:, ::2, ::2]
    latent = app.run("VAEEncode", pixels=faces, vae=demo[2])[0]
    images = train(app, demo, latent=latent, vae=None)[3]
    assert not isinstance(images, torch.Tensor)


@pytest.mark.parametrize("objective", ["visual", "difference"])
def test_a_slider_from_pairs(app, demo, objective):
    faces, _, _ = app.run("GBX_DemoPicture", image_index=1, count=4, part="face")
    faces = faces[:, ::2, ::2]
    mask = torch.zeros(1, 64, 64)
    mask[:, :32] = 1
    pairs = {"before": faces[:2], "after": faces[2:], "latent": None, "pair_objective": objective}
    models, loras, _, images, *_ = train(app, demo, **pairs)
    assert len(models) == 1 and images.shape == (3, 64, 64, 3)
    masked = train(app, demo, **pairs, masks=mask)[1]
    assert any(not torch.equal(masked[0][name], value) for name, value in loras[0].items())
    with pytest.raises(ValueError, match="before and after belong together"):
        train(app, demo, before=faces[:2])
    with pytest.raises(ValueError, match=r"before holds 2 images of 64 x 64 pixels and after 1"):
        train(app, demo, before=faces[:2], after=faces[2:3])
    with pytest.raises(ValueError, match="connect one to vae"):
        train(app, demo, **pairs | {"vae": None})
    with pytest.raises(ValueError, match="2 pairs and 3 base prompts"):
        train(app, demo, **pairs, base_prompt="a\nb\nc")
    with pytest.raises(ValueError, match="2 images and 3 masks"):
        train(app, demo, **pairs, masks=mask.repeat(3, 1, 1))


def test_what_is_missing_gets_a_sentence(app, demo):
    with pytest.raises(ValueError, match="There is no phrase"):
        train(app, demo, increase=" ")
    with pytest.raises(ValueError, match="There is no latent"):
        train(app, demo, latent=None)
    with pytest.raises(ValueError, match="No linear layer of this MODEL"):
        train(app, demo, layers="no_such_layer")


def test_a_checkpoint_of_other_phrases_is_refused(app, demo):
    train(app, demo, checkpoint_name="slider/phrases")
    with pytest.raises(ValueError, match="another phrases:"):
        train(app, demo, checkpoint_name="slider/phrases", decrease="moustache")
    with pytest.raises(ValueError, match="another cfg:"):
        train(app, demo, checkpoint_name="slider/phrases", cfg=3.0)
    with pytest.raises(ValueError, match="another precision:"):
        train(app, demo, checkpoint_name="slider/phrases", precision="bf16")
    changed = demo[0].clone()
    key = next(name for name in changed.model.state_dict() if name.endswith("to_q.weight"))
    changed.add_patches({key: (torch.full_like(changed.model.state_dict()[key], 0.01),)})
    with pytest.raises(ValueError, match="another model:"):
        train(app, (changed, *demo[1:]), checkpoint_name="slider/phrases")


@pytest.fixture(scope="module")
def space(app):
    return app.run("GBX_W2WLoadSpace", space_name="avatars-v2-w2w.safetensors")[0]


@torch.inference_mode()
def test_sliders_inside_a_space_are_its_directions(app, demo, space):
    """W2W Edit moves a point by the vector; the LoRA of a slider on a MODEL with the point is the
    MODEL with the moved point, to rounding of two low-rank patches.
    """
    import comfy.model_management

    comfy.model_management.unload_all_models()  # the test before may have left patched weights
    before = {name: value.clone() for name, value in demo[0].model.state_dict().items()}
    vector = torch.ones(len(space.coefficients[0]))
    older = app.module("nodes.weights.space").Direction(vector, max_projection=1.0)
    named = space.with_directions({"sunglasses": older})
    models, loras, _, images, *_, report, edited = train(
        app, demo, space=named, learning_rate=0.0, increase="beard, thick\nsunglasses"
    )
    after = demo[0].model.state_dict()
    assert all(torch.equal(after[name], value) for name, value in before.items())
    assert not any(module._forward_hooks for module in demo[0].model.modules())
    assert len(models) == len(loras) == 2 and images.shape == (6, 64, 64, 3)
    assert "2 sliders of rank" in report and "trained from two phrases" in report
    assert set(edited.directions) == {*named.directions, "beard thick"}
    assert "Replaced in the space: sunglasses." in report
    assert 0 < edited.directions["sunglasses"].vector.norm() < vector.norm()
    point = app.run("GBX_W2WSample", **_MEMBER, space=edited)[0][0]
    edit = {"preserved_directions": "", "units": "raw", "debiasing": "joint"}
    moved = app.run("GBX_W2WEdit", point=point, edits="beard thick: 1", **edit)[0]
    expected = point.coefficients + edited.directions["beard thick"].vector
    assert torch.allclose(moved.coefficients, expected)
    apply = {"strength": 1.0, "start_percent": 0.0, "end_percent": 1.0}
    model, clip, _ = demo
    plain = app.run("GBX_W2WApply", model=model, point=point, **apply)[0]
    with_lora = app.run("LoraModelLoader", model=plain, lora=loras[0], strength_model=1.0)[0]
    with_point = app.run("GBX_W2WApply", model=model, point=moved, **apply)[0]
    one, other = (sampled(app, each, clip) for each in (with_lora, with_point))
    assert torch.allclose(one, other, atol=1e-3)
    assert not torch.allclose(one, sampled(app, plain, clip), atol=1e-2)


def test_a_training_inside_a_space_resumes_exactly(app, demo, space, monkeypatch):
    """Stopped after the first of three steps, and taken up again: as if nothing had happened."""
    whole = train(app, demo, space=space, learning_rate=0.0)[7]
    stopping = app.module("nodes.weights.slider_training").SliderTraining
    backward = stopping.step_backward

    def stop(self, session, step):
        if step == 1:
            raise KeyboardInterrupt
        return backward(self, session, step)

    given = {"space": space, "learning_rate": 0.0, "checkpoint_name": "slider/space"}
    with monkeypatch.context() as patched:
        patched.setattr(stopping, "step_backward", stop)
        with pytest.raises(KeyboardInterrupt):
            train(app, demo, **given)
    resumed = train(app, demo, **given)[7]
    for name, direction in whole.directions.items():
        assert torch.equal(resumed.directions[name].vector, direction.vector), name
    with pytest.raises(ValueError, match="another space:"):
        train(app, demo, **given | {"space": space.with_member("x", space.coefficients[0])})


def test_what_a_slider_inside_a_space_cannot_be_gets_a_sentence(app, demo, space):
    faces = app.run("GBX_DemoPicture", image_index=1, count=4, part="face")[0][:, ::2, ::2]
    with pytest.raises(ValueError, match="disconnect before and after, or space"):
        train(app, demo, space=space, before=faces[:2], after=faces[2:])
    collected = dataclasses.replace(space, about={"name": "collected"})
    with pytest.raises(ValueError, match="collected was collected from LoRAs"):
        train(app, demo, space=collected)
    with pytest.raises(ValueError, match="made for another base model"):
        train(app, reduced.checkpoint("sd15"), space=space, latent=blank(4))


@pytest.mark.parametrize("architecture", reduced.ARCHITECTURES)
@torch.inference_mode()
def test_every_architecture(app, architecture):
    model, clip, vae = reduced.checkpoint(architecture)
    channels = model.get_model_object("latent_format").latent_channels
    models, loras, _, images, _, losses, *_ = train(
        app,
        (model, clip, vae),
        latent=blank(channels),
        steps=1,
        precision="bf16",
        gradient_checkpointing=True,
        cfg=1.0 if architecture == "flux" else 2.0,
    )
    assert all(torch.isfinite(torch.tensor(losses["loss"]))) and len(images) == 6
    assert len(models[0].patches) == len(loras[0]) // 3 > 0


@pytest.mark.parametrize("name", tiny_transformers.NAMES)
def test_attention_of_every_transformer_is_found_and_has_names_in_files(app, name):
    """Layers of attention in every block that attends; none of a feed-forward part or modulation
    beside an attention module.
    """
    half = app.module("nodes.weights.slider_training_comfy")
    learned = app.module("nodes.weights.learned_space_comfy")
    patcher = tiny_transformers.model(name)
    network = patcher.model.diffusion_model
    paths = app.module("nodes.host.attention.attention_modules").attention_layers(network)
    blocks = {path.split(".")[0] for path in paths}
    lists = {
        path
        for path, module in network.named_children()
        if isinstance(module, torch.nn.ModuleList) and ("block" in path or path == "layers")
    }
    assert lists and lists <= blocks
    assert not any("mlp" in path or "modulation" in path.lower() for path in paths)
    assert not any("pool" in path for path in paths)
    layers = half.trained_layers(patcher, "")
    layout, _ = learned.layout_of(patcher, layers, 2)
    assert len(layout.slots) == len(paths)


@torch.inference_mode()
def test_a_training_inside_a_space_behind_a_point_repeats_and_leaves_both_models(app, demo, space):
    point = app.run("GBX_W2WSample", **_MEMBER, space=space)[0][0]
    apply = {"strength": 1.0, "start_percent": 0.0, "end_percent": 1.0}
    model, clip, vae = demo
    plain = sampled(app, model, clip)
    with_point = app.run("GBX_W2WApply", model=model, point=point, **apply)[0]
    before = sampled(app, with_point, clip)
    first, second = (
        train(app, (with_point, clip, vae), space=space, learning_rate=0.0) for _ in range(2)
    )
    assert all(torch.equal(first[1][0][name], second[1][0][name]) for name in first[1][0])
    assert torch.equal(before, sampled(app, with_point, clip))
    assert torch.equal(plain, sampled(app, model, clip))
    assert not torch.equal(before, sampled(app, first[0][0], clip))


def test_every_base_prompt_is_trained_on(app, demo):
    half = app.module("nodes.weights.slider_training_comfy")
    sliders = app.module("nodes.weights.slider_phrases").parse_sliders("old", "young")
    prompts = ["portrait", "portrait, blue hoodie", "portrait, smiling", "portrait, red hair"]
    image = torch.randn(1, 24, SIDE, SIDE, generator=torch.Generator().manual_seed(1))
    own = half.OwnImages(count=1, steps=1, cfg=1.0, seed=0, latent=image)
    source = half.from_phrases(demo[1], sliders, prompts, [], own)
    assert sorted(source.data.scenes) == [0, 1, 2, 3]
    assert all(torch.equal(latent, image) for latent in source.latents)


def test_each_row_hears_the_sound_of_its_image(app):
    """A network that answers with the mean of the sound that it hears, whatever the text: the two
    phrases then differ in nothing, and neither do the targets at 1 and -1.
    """
    import comfy.model_sampling
    import comfy.utils

    trainer = app.module("nodes.host.training.trainer")
    sliders = app.module("nodes.weights.slider_training")
    flow = (comfy.model_sampling.ModelSamplingDiscreteFlow, comfy.model_sampling.CONST)

    class Guider:
        model_options: ClassVar = {}
        model_patcher = SimpleNamespace(load_device=torch.device("cpu"))
        inner_model = SimpleNamespace(
            model_sampling=type("Sampling", flow, {})(),
            process_latent_in=lambda latent: latent,
            memory_required=lambda shape: 0,
            model_config=None,
        )

        def __call__(self, packed, sigmas, model_options, seed):
            video, sound = comfy.utils.unpack_latents(
                packed, [(len(packed), 4, 1, 2, 2), (len(packed), 3, 5)]
            )
            heard = sound.mean(dim=(1, 2)).view(-1, 1, 1, 1, 1)
            return comfy.utils.pack_latents([torch.zeros_like(video) + heard, sound])[0]

    session = trainer.Session(
        guider=Guider(),
        latents=[torch.zeros(1, 4, 1, 2, 2)] * 4,
        conditions=[[{"model_conds": {}}]] * 3,
        dtype=torch.float32,
        seed=0,
        sounds=[[torch.full((1, 3, 5), float(number))] for number in range(4)],
    )
    session._encode = lambda row, like: [{"model_conds": {}}]
    data = sliders.PhraseData(
        scenes=[0] * 4,
        neutral=[0],
        concepts=[sliders.Concept(increase=[[1]], decrease=[[2]])],
        kinds=[0, 0, 0],
    )
    factors = SimpleNamespace(
        flat=torch.zeros(1), off=lambda images=(): None, select=lambda *given: None
    )
    settings = sliders.SliderSettings(steps=1, batch_size=4, guidance_scale=1.0, end_percent=1.0)
    training = sliders.SliderTraining(factors, data, settings)
    rows = training.rows(session, training.draw(0))
    assert len(set(rows.images)) > 1
    torch.testing.assert_close(rows.targets[:4], rows.targets[4:])
