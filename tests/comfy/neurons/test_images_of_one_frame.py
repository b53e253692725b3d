"""Models whose latents have frames generate images of one frame: Qwen-Image, Wan and others are
scored, searched and masked as those without.
"""

import csv
import io

import pytest
import reduced
import tiny_transformers
import torch

#: The width of the reduced CLIP's texts, and what each network calls it.
TEXT = 64
WIDTHS = {"QwenImage": "joint_attention_dim", "WAN21_T2V": "text_dim"}
SMALL = {"noise_samples": 2, "seed": 1, "timestep": "official_961", "width": 64, "height": 96}


@pytest.fixture(scope="module", params=WIDTHS)
def family(app, request):
    changes = {WIDTHS[request.param]: TEXT}
    if request.param == "WAN21_T2V":
        changes["text_len"] = 77
    return tiny_transformers.model(request.param, **changes), reduced.checkpoint("sd15")[1]


def first_step(app):
    return app.module("nodes.neurons.first_step_comfy")


def test_the_shape_is_one_frame(app, family):
    shape = first_step(app).latent_shape(family[0], 64, 96)
    assert shape == (family[0].get_model_object("latent_format").latent_channels, 1, 12, 8)


@pytest.mark.parametrize(
    ("name", "side"), [("LTXV", 32), ("Flux2", 16), ("Flux", 8), ("ZImage", 8)]
)
def test_a_position_is_as_large_as_the_format_says(app, name, side):
    shape = first_step(app).latent_shape(tiny_transformers.model(name), 320, 640)
    assert shape[-2:] == (640 // side, 320 // side)


def test_sound_is_no_image(app, family, monkeypatch):
    latent_format = family[0].get_model_object("latent_format")
    monkeypatch.setattr(latent_format, "latent_dimensions", 1, raising=False)
    with pytest.raises(ValueError, match="does not generate images"):
        first_step(app).latent_shape(family[0], 64, 64)


def test_an_image_to_image_model_has_no_first_step(app, family):
    import comfy.model_sampling

    patcher = family[0].clone()

    class Sampling(comfy.model_sampling.ModelSamplingDiscrete, comfy.model_sampling.IMG_TO_IMG):
        pass

    patcher.add_object_patch("model_sampling", Sampling())
    with pytest.raises(ValueError, match="turns one image into another and sees no noise"):
        first_step(app).refuse_unscored(patcher)


def test_the_prediction_is_the_networks_own(app, family):
    """At the highest noise level the input is the noise, and a flow model puts out noise less
    image.
    """
    patcher, clip = family
    positive = app.run("CLIPTextEncode", clip=clip, text="a red hat")[0]
    step = first_step(app)
    shape = step.latent_shape(patcher, 64, 96)
    noise = torch.randn((2, *shape), generator=torch.Generator().manual_seed(3))
    seen = {}
    network = patcher.model.diffusion_model
    before = network.register_forward_pre_hook(
        lambda _module, args, kwargs: seen.update(x=args[0].clone()), with_kwargs=True
    )
    behind = network.register_forward_hook(
        lambda _module, _args, output: seen.update(out=output.clone())
    )
    try:
        found = step.at_first_step(
            patcher, positive, shape, 961, lambda predict: predict(noise), rows=2
        )
    finally:
        before.remove()
        behind.remove()
    assert torch.equal(seen["x"], noise) and found.shape == noise.shape
    assert torch.allclose(found, seen["out"].float(), atol=1e-5)


def test_a_prompt_is_scored_with_what_the_text_adds(app, family):
    """The text norm by hand: of two predictions in the same noise."""
    patcher, clip = family
    outputs = app.run(
        "GBX_MemorizationScore",
        model=patcher,
        clip=clip,
        prompts="a red hat",
        prompts_file="",
        threshold=0.0,
        text_norm=True,
        sharpness=True,
        filename_prefix="",
        **SMALL,
    )
    (row,) = csv.DictReader(
        io.StringIO(next(text for text in outputs if str(text).startswith("prompt,score")))
    )
    step = first_step(app)
    shape = step.latent_shape(patcher, 64, 96)
    noise = app.module("nodes.neurons.memorization_score").seeded_noise(shape, 2, 1)
    predicted = []
    for text in ("a red hat", ""):
        positive = app.run("CLIPTextEncode", clip=clip, text=text)[0]
        with torch.inference_mode():
            predicted.append(
                step.at_first_step(patcher, positive, shape, 961, lambda predict: predict(noise), 2)
            )
    norm = (predicted[0] - predicted[1]).flatten(1).norm(dim=1).mean()
    assert float(norm) > 1e-3 and float(row["text_norm"]) == pytest.approx(float(norm), rel=1e-3)
    assert float(row["sharpness"]) > 0


def test_images_of_one_frame_are_decoded_as_images(app, family):
    """A VAE of latents with frames puts out frames."""
    evaluate = app.module("nodes.host.evaluate")
    patcher, clip = family
    positive = app.run("CLIPTextEncode", clip=clip, text="a red hat")[0]

    class Vae:
        def decode(self, latent):
            assert latent.shape[2:] == (1, 8, 8)
            return latent[:, :3].movedim(1, -1)

    shape = first_step(app).latent_shape(patcher, 64, 64)
    images = evaluate.sample_images(
        patcher, Vae(), positive, positive, shape, count=2, seed=0, steps=1, cfg=1.0
    )
    assert images.shape == (2, 8, 8, 3)


def test_frames_count_as_channels_of_a_difference(app):
    """Without frames it is what it was."""
    score = app.module("nodes.neurons.memorization_score")
    predicted, noise = torch.randn(2, 3, 4, 8, 9, 9)
    merged = [tensor.flatten(1, 2) for tensor in (predicted, noise)]
    assert torch.equal(score.noise_difference(predicted, noise), score.noise_difference(*merged))


def test_the_local_norm_weighs_every_frame(app):
    """By hand: one attention map for all channels and frames."""
    detectors = app.module("nodes.neurons.detectors")
    differences = torch.randn(2, 3, 4, 1, 5, 6)
    attention = torch.rand(3, 5, 6)
    found = detectors.local_norm(differences, attention)
    expected = torch.stack(
        [
            torch.stack([(d[row, :, 0] * attention[row]).norm() for d in differences]).mean()
            / attention[row].mean()
            for row in range(3)
        ]
    )
    assert torch.allclose(found, expected)
