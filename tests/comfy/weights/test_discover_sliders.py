"""Discover Sliders inside a real ComfyUI: pairs of the demo model's own images for Train Slider."""

import pytest
import reduced
import torch

WORDS = "sunglasses\nno glasses\nmajestic beard\nshaven\nnothing that a judge knows"


@pytest.fixture(scope="module")
def demo(app):
    return app.run("GBX_LoadDemoModel", weights="avatars-v2")


@pytest.fixture(scope="module")
def faces(app):
    """Faces of the demo's training images."""
    return app.run("GBX_DemoPicture", image_index=0, count=24, part="face")[0]


def found(app, images, **given):
    given = {"sliders": 2, "words": WORDS, **given}
    return app.run("GBX_DiscoverSliders", images=images, **given)


def test_each_direction_has_pairs_and_names(app, demo, faces):
    before, after, high, low, figure, report = found(app, faces, clip=demo[1])
    assert len(before) == len(after) == len(high) == len(low) == 2
    assert all(batch.shape == (3, *faces.shape[1:]) for batch in before + after)
    assert figure.shape[0] == 1 and "24 images, 3 pairs each" in report
    shown = {image.numpy().tobytes() for image in faces}
    for lower, upper in zip(before, after, strict=True):
        ends = [image.numpy().tobytes() for image in torch.cat([lower, upper])]
        assert len(set(ends)) == 6 and set(ends) <= shown


def test_words_do_not_change_the_directions(app, demo, faces):
    named = found(app, faces, clip=demo[1])
    unnamed = found(app, faces, clip=demo[1], words="")
    assert unnamed[2] == ["direction 1", "direction 2"] and unnamed[3] == ["", ""]
    for first, second in zip(named[0] + named[1], unnamed[0] + unnamed[1], strict=True):
        assert torch.equal(first, second)


def test_a_fourth_channel_of_the_images_is_left_out(app, demo, faces):
    transparent = torch.cat([faces, torch.rand(*faces.shape[:3], 1)], dim=-1)
    for first, second in zip(
        found(app, transparent, clip=demo[1])[0], found(app, faces, clip=demo[1])[0], strict=True
    ):
        assert torch.equal(first, second)


class Encoder:
    """A CLIP_VISION whose embeddings are the images' mean colors."""

    def encode_image(self, images):
        return {"image_embeds": images.mean(dim=(1, 2))}


def test_any_image_encoder_will_do_without_names(app, faces):
    *_, high, low, _, report = found(app, faces, clip_vision=Encoder())
    assert high == ["direction 1", "direction 2"] and low == ["", ""]
    assert report.endswith("No names: connect clip.")


@torch.inference_mode()
def test_a_clip_of_another_image_encoder_leaves_the_directions_unnamed(app, faces):
    *_, high, _, _, report = found(
        app, faces, clip=reduced.checkpoint("sdxl")[1], clip_vision=Encoder()
    )
    assert high == ["direction 1", "direction 2"]
    assert "No names: the CLIP_VISION's embeddings have 3 channels" in report


def test_words_that_no_judge_knows_leave_the_directions_unnamed(app, demo, faces):
    *_, high, _, _, report = found(app, faces, clip=demo[1], words="nothing that a judge knows")
    assert high == ["direction 1", "direction 2"]
    assert report.endswith("No names: the judge of this CLIP knows none of the words.")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "connect one from Load CLIP Vision"),
        ({"clip_vision": Encoder(), "sliders": 4}, "than the 3 directions"),
    ],
)
def test_wrong_inputs_are_one_sentence(app, faces, given, words):
    with pytest.raises(ValueError, match=words):
        found(app, faces, **given)


def test_train_slider_takes_the_pairs(app, demo, faces):
    before, after, high, low, *_ = found(app, faces, clip=demo[1], sliders=1)
    model, clip, vae = demo
    _, loras, files, *_ = app.run(
        "GBX_TrainSlider",
        model=model,
        clip=clip,
        vae=vae,
        increase=high[0],
        decrease=low[0],
        base_prompt="portrait",
        keep="",
        rank=1,
        steps=1,
        learning_rate=0.01,
        guidance_scale=2.0,
        batch_size=1,
        images=1,
        sampling_steps=1,
        cfg=1.0,
        end_percent=1.0,
        seed=0,
        layers="",
        precision="fp32",
        gradient_checkpointing=False,
        preview_interval=0,
        filename_prefix="",
        checkpoint_name="",
        checkpoint_interval=50,
        before=before[0],
        after=after[0],
    )
    assert len(loras) == 1 and files == [""]
    assert any(bool(tensor.any()) for name, tensor in loras[0].items() if "lora_up" in name)
