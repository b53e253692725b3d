"""Size Sheet inside a real ComfyUI: each image is a stock KSampler's with that metadata."""

import pytest
import torch


@pytest.fixture(scope="module")
def demo(app):
    model, clip, vae = app.run("GBX_LoadDemoModel", weights="avatars-v2")
    return (
        model,
        *(app.run("CLIPTextEncode", clip=clip, text=text)[0] for text in ("blue hoodie", "")),
        vae,
    )


def sheet(app, demo, **changed):
    model, positive, negative, vae = demo
    given = {
        "field": "original_size",
        "values": "0.25, 1",
        "gate_exponent": 0.0,
        "apply_to": "both",
    }
    given |= {"seed": 3, "steps": 1, "cfg": 2.0}
    return app.run(
        "GBX_SizeSheet",
        model=model,
        positive=positive,
        negative=negative,
        vae=vae,
        latent={"samples": torch.zeros(1, 24, 16, 16)},
        **{**given, **changed},
    )


def test_images_are_those_of_a_stock_ksampler(app, demo):
    model, positive, negative, vae = demo
    figure, images, report = sheet(app, demo, values="0.25")
    sized = [
        app.run(
            "GBX_MetadataConditioning",
            model=model,
            conditioning=prompt,
            original_width=32,
            original_height=32,
            crop_left=0,
            crop_top=0,
            target_width=0,
            target_height=0,
            mirror=False,
        )[0]
        for prompt in (positive, negative)
    ]
    samples = app.run(
        "KSampler",
        model=model,
        seed=3,
        steps=1,
        cfg=2.0,
        sampler_name="euler",
        scheduler="normal",
        positive=sized[0],
        negative=sized[1],
        latent_image={"samples": torch.zeros(1, 24, 16, 16)},
        denoise=1.0,
    )[0]
    assert torch.equal(images, app.run("VAEDecode", samples=samples, vae=vae)[0])
    assert "0.25 x: original 32 x 32" in report and figure.shape[0] == 1


def test_a_gated_row_follows_the_stock_row(app, demo):
    _, images, _ = sheet(app, demo, gate_exponent=64.0)
    assert images.shape == (4, 128, 128, 3)
    assert not torch.equal(images[0], images[2])
    assert torch.equal(
        images[1], images[3]
    )  # at the size of the image itself the gate moves nothing


def test_metadata_on_one_prompt_only(app, demo):
    """At CFG 1 the negative prompt takes no part: positive is as both, negative as neither (the
    image's own size).
    """
    images = {
        role: sheet(app, demo, apply_to=role, cfg=1.0)[1]
        for role in ("both", "positive", "negative")
    }
    assert torch.equal(images["positive"], images["both"])
    assert torch.allclose(images["negative"][0], images["negative"][1], atol=1e-5)
    stronger = sheet(app, demo, apply_to="positive")[1]
    assert not torch.equal(stronger, sheet(app, demo)[1])


def test_fields_that_the_model_lacks_are_refused(app, demo):
    with pytest.raises(ValueError, match="no input for a target size"):
        sheet(app, demo, field="target_size")
