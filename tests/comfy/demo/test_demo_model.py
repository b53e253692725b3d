"""Load Glassbox Demo Model with ComfyUI's own nodes, and the truth of its rendered images."""

import logging

import newer
import pytest
import torch

WORLD = "avatars-v2"
CAPTION = "portrait, brown skin, curly red hair, round glasses, smiling, blue hoodie"


@pytest.fixture(scope="module")
def demo(app):
    """MODEL, CLIP and VAE of the demo world."""
    return app.run("GBX_LoadDemoModel", weights=WORLD)


@pytest.fixture(scope="module")
def texts(app, demo):
    """Positive and negative CONDITIONING."""
    clip = demo[1]
    return tuple(app.run("CLIPTextEncode", clip=clip, text=text)[0] for text in (CAPTION, ""))


@pytest.fixture
def sample(app, demo, texts):
    """KSampler with two Euler steps on an empty latent of two images; keywords replace its
    inputs.
    """

    def run(**changed):
        positive, negative = texts
        latent = app.run("EmptyLatentImage", width=128, height=128, batch_size=2)[0]
        inputs = {
            "model": demo[0],
            "seed": 3,
            "steps": 2,
            "cfg": 3.0,
            "sampler_name": "euler",
            "scheduler": "normal",
            "positive": positive,
            "negative": negative,
            "latent_image": latent,
            "denoise": 1.0,
        }
        return app.run("KSampler", **(inputs | changed))[0]["samples"]

    return run


def test_an_empty_latent_becomes_images(app, demo, sample):
    samples = sample()
    assert samples.shape == (2, 24, 16, 16)
    images = app.run("VAEDecode", samples={"samples": samples}, vae=demo[2])[0]
    assert images.shape == (2, 128, 128, 3)
    assert images.min() >= 0 and images.max() <= 1 and images.std() > 0.05


def test_the_same_seed_gives_the_same_image(sample):
    assert torch.equal(sample(), sample())
    assert not torch.equal(sample(), sample(seed=4))


def test_the_caption_matters(sample, texts):
    assert not torch.equal(sample(), sample(positive=texts[1]))


def test_sampler_custom_advanced_equals_ksampler(app, demo, texts, sample):
    model = demo[0]
    latent = app.run("EmptyLatentImage", width=128, height=128, batch_size=2)[0]
    guider = app.run("CFGGuider", model=model, positive=texts[0], negative=texts[1], cfg=3.0)[0]
    noise = app.run("RandomNoise", noise_seed=3)[0]
    sampler = app.run("KSamplerSelect", sampler_name="euler")[0]
    sigmas = app.run("BasicScheduler", model=model, scheduler="normal", steps=2, denoise=1.0)[0]
    output = app.run(
        "SamplerCustomAdvanced",
        noise=noise,
        guider=guider,
        sampler=sampler,
        sigmas=sigmas,
        latent_image=latent,
    )
    assert torch.equal(output[0]["samples"], sample())


def test_the_schedule_is_that_of_stable_diffusion_with_zero_terminal_signal(demo):
    sampling = demo[0].get_model_object("model_sampling")
    assert len(sampling.sigmas) == 1000
    # SD's smallest sigma, and what ComfyUI has for infinity, to the float32 of ComfyUI's own table
    assert float(sampling.sigma_max) == pytest.approx(4518.76, abs=0.1)
    assert float(sampling.sigma_min) == pytest.approx(0.0291675, abs=1e-6)


def test_the_autoencoder_keeps_a_rendered_image(app, demo):
    image = app.run("GBX_DemoPicture", image_index=0, count=4, part="face")[0]
    for encode, decode, tiles in (
        ("VAEEncode", "VAEDecode", {}),
        (
            "VAEEncodeTiled",
            "VAEDecodeTiled",
            {"tile_size": 96, "overlap": 32, "temporal_size": 64, "temporal_overlap": 8},
        ),
    ):
        latent = app.run(encode, pixels=image, vae=demo[2], **tiles)[0]
        assert latent["samples"].shape == (4, 24, 16, 16)
        assert 0.9 < latent["samples"].square().mean().sqrt() < 1.2, "unit variance, as in training"
        again = app.run(decode, samples=latent, vae=demo[2], **tiles)[0]
        error = (again - image).square().mean()
        assert -10 * error.log10() > 30, (
            "the trained autoencoder keeps at least 30 dB, in tiles as well"
        )


def test_a_lora_goes_out_and_comes_back(app, demo, texts, sample, tmp_path):
    lora, _ = newer.train_lora(app, **training_inputs(app, demo, texts))
    assert any(key.endswith(("lora_up.weight", "lora_B.weight")) for key in lora)
    patched = app.run("LoraModelLoader", model=demo[0], lora=lora, strength_model=5.0)[0]
    assert not torch.equal(sample(model=patched), sample())
    assert torch.equal(sample(), sample(model=demo[0])), "the model on the wire stays as it was"


def training_inputs(app, demo, texts) -> dict:
    """Inputs of core's Train LoRA: two images, two steps."""
    model, _, vae = demo
    images = app.run("GBX_DemoPicture", image_index=0, count=2, part="face")[0]
    latent = app.run("VAEEncode", pixels=images, vae=vae)[0]["samples"]
    latents = [{"samples": latent[index : index + 1]} for index in range(2)]
    return {
        "model": model,
        "latents": latents,
        "positive": [texts[0], texts[0]],
        "batch_size": 1,
        "steps": 2,
        "rank": 2,
        "learning_rate": 1e-2,
        "seed": 1,
        "training_dtype": "fp32",
        "lora_dtype": "fp32",
        "optimizer": "AdamW",
        "loss_function": "MSE",
        "algorithm": "LoRA",
        "existing_lora": "[None]",
    }


def test_models_merge_and_rescale(app, demo, sample):
    model = demo[0]
    merged = app.run("ModelMergeSimple", model1=model, model2=model, ratio=0.5)[0]
    assert torch.allclose(sample(model=merged), sample(), atol=1e-4)
    rescaled = app.run("RescaleCFG", model=model, multiplier=0.7)[0]
    assert not torch.equal(sample(model=rescaled), sample())


def test_areas_and_ranges_of_timesteps(app, texts, sample):
    area = app.run(
        "ConditioningSetArea", conditioning=texts[0], width=64, height=128, x=0, y=0, strength=1.0
    )[0]
    assert not torch.equal(sample(positive=[*area, *texts[1]]), sample())
    early = app.run("ConditioningSetTimestepRange", conditioning=texts[0], start=0.0, end=0.5)[0]
    late = app.run("ConditioningSetTimestepRange", conditioning=texts[0], start=0.5, end=1.0)[0]
    assert torch.allclose(sample(positive=[*early, *late]), sample(), atol=1e-5)


def test_metadata_reaches_the_model(texts, sample):
    def conditioned(**metadata):
        return [[texts[0][0][0], {**texts[0][0][1], **metadata}]]

    assert torch.equal(
        sample(positive=conditioned(width=128, height=128, crop_w=0, crop_h=0, mirror=0)), sample()
    )
    for metadata in ({"width": 32, "height": 32}, {"crop_h": 32}, {"mirror": 1}):
        assert not torch.equal(sample(positive=conditioned(**metadata)), sample())


def test_prompt_weights_and_unknown_words(app, demo, texts, caplog):
    clip = demo[1]
    weighted = app.run("CLIPTextEncode", clip=clip, text=CAPTION.replace("red", "(red:1.4)"))[0]
    assert not torch.equal(weighted[0][0], texts[0][0][0])
    with caplog.at_level(logging.WARNING):
        app.run("CLIPTextEncode", clip=clip, text="portrait, zeppelin")
    assert "zeppelin" in caplog.text and "does not know" in caplog.text


def test_the_preview_has_colors(demo):
    latent_format = demo[0].get_model_object("latent_format")
    assert torch.tensor(latent_format.latent_rgb_factors).shape == (24, 3)
    samples = torch.randn(1, 24, 4, 4)
    assert torch.allclose(
        latent_format.process_in(latent_format.process_out(samples)), samples, atol=1e-5
    )


def test_images_come_with_their_truth(app):
    images, skin, caption = app.run("GBX_DemoPicture", image_index=22, count=4, part="skin")
    assert (
        images.shape == (4, 128, 128, 3)
        and skin.shape == (4, 128, 128)
        and caption.startswith("portrait, ")
    )
    first = app.run("GBX_DemoPicture", image_index=0, count=1, part="skin")[0]
    assert torch.equal(images[2], first[0]), "counting goes on with the first image"
    face = app.run("GBX_DemoPicture", image_index=22, count=4, part="face")[1]
    background = app.run("GBX_DemoPicture", image_index=22, count=4, part="background")[1]
    assert torch.allclose(face + background, torch.ones_like(face))
    assert (skin <= face + 0.02).float().mean() > 0.99, "skin lies inside the face"


def test_broken_assets_are_explained(app, tmp_path, monkeypatch):
    assets = app.module("nodes.demo.assets")
    monkeypatch.setattr(assets, "ASSETS", tmp_path)
    with pytest.raises(ValueError, match="There is no demo world 'avatars-v2'"):
        app.module("nodes.demo.denoiser").load(WORLD)
    (tmp_path / WORLD).mkdir()
    with pytest.raises(
        ValueError, match=r"denoiser\.safetensors of avatars-v2 is missing: restore"
    ):
        app.run("GBX_LoadDemoModel", weights=WORLD)
    (tmp_path / WORLD / "denoiser.safetensors").write_bytes(b"\x10\0\0\0\0\0\0\0cut short")
    with pytest.raises(ValueError, match=r"cannot be read .*: restore"):
        app.run("GBX_LoadDemoModel", weights=WORLD)
    (tmp_path / WORLD / "captions.json").write_text("{")
    with pytest.raises(ValueError, match=r"captions\.json of avatars-v2 cannot be read"):
        assets.captions(WORLD)


def test_a_newer_comfyui_gets_its_own_patcher(app, monkeypatch):
    """ComfyUI with dynamic memory has CoreModelPatcher, is handed the tensors, and may ask for a
    plain one again.
    """
    from comfy import model_patcher as patchers

    class Dynamic(patchers.ModelPatcher):
        def is_dynamic(self):
            return True

    monkeypatch.setattr(patchers, "CoreModelPatcher", Dynamic, raising=False)
    model = app.run("GBX_LoadDemoModel", weights=WORLD)[0]
    assert type(model) is Dynamic
    load, given = model.cached_patcher_init
    plain = load(*given, disable_dynamic=True)
    assert type(plain) is patchers.ModelPatcher
    states = [patcher.model.diffusion_model.state_dict() for patcher in (model, plain)]
    assert states[0].keys() == states[1].keys()
    assert all(torch.equal(states[0][name], value) for name, value in states[1].items())


def test_the_autoencoder_is_loaded_again_for_another_device(demo):
    """As newer ComfyUI does for a copy of a VAE."""
    patcher = demo[2].patcher
    load, given = patcher.cached_patcher_init
    copy, own = load(*given).model.state_dict(), patcher.model.state_dict()
    assert copy.keys() == own.keys() and all(
        torch.equal(copy[name], value) for name, value in own.items()
    )


def test_patch_autoencoder_of_another_size_is_explained(app, tmp_path, monkeypatch):
    from safetensors.torch import save_file

    assets, patch = app.module("nodes.demo.assets"), app.module("nodes.demo.patch_autoencoder")
    (tmp_path / "odd").mkdir()
    weights = patch.PatchAutoencoder(24, (16, 8, 8)).state_dict()
    save_file(
        weights,
        tmp_path / "odd" / "autoencoder.safetensors",
        metadata={"channels": "24", "widths": "[8, 8, 8]"},
    )
    monkeypatch.setattr(assets, "ASSETS", tmp_path)
    with pytest.raises(ValueError, match="autoencoder of odd does not fit this version"):
        app.module("nodes.demo.autoencoder").load("odd")
