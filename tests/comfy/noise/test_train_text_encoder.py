"""Train LoRA (Exact Resume) with the text encoder inside a real ComfyUI."""

import pytest
import torch
from trainer_inputs import TEXTS


def test_the_text_encoder_is_trained_too(app, parts, captions, trained, tmp_path):
    """At rate 0 the run is that without it; else a stock LoRA loader gives the MODEL and the CLIP
    of the outputs.
    """
    import folder_paths
    from safetensors.torch import save_file

    clip = parts[1]
    plain = trained()
    still = trained(clip=clip, captions=list(TEXTS), text_encoder_rate=0.0)
    assert still["loss_map"] == plain["loss_map"]
    outputs = trained(clip=clip, captions=list(TEXTS), learning_rate=0.01)
    text = {
        name: value
        for name, value in outputs["lora"].items()
        if name.startswith("text_encoders.clip_l.")
    }
    assert text and all("lora_" in name or name.endswith(".alpha") for name in text)
    assert any(value.any() for name, value in text.items() if "lora_up" in name)

    def encoded_by(clip):
        return app.run("CLIPTextEncode", clip=clip, text=TEXTS[0])[0][0][0]

    assert torch.equal(encoded_by(clip), captions[0][0][0])
    assert not torch.allclose(encoded_by(outputs["clip"]), captions[0][0][0], atol=1e-3)
    save_file(outputs["lora"], tmp_path / "with_text.safetensors")
    folder_paths.add_model_folder_path("loras", str(tmp_path))
    folder_paths.filename_list_cache.clear()
    loaded = app.run(
        "LoraLoader",
        model=parts[0],
        clip=clip,
        lora_name="with_text.safetensors",
        strength_model=1.0,
        strength_clip=1.0,
    )
    assert torch.equal(encoded_by(loaded[1]), encoded_by(outputs["clip"]))
    on = trained(clip=clip, captions=list(TEXTS), existing_lora="with_text.safetensors", steps=1)[
        "report"
    ]
    count = len({name.rsplit(".", 2)[0] for name in text if "lora_up" in name})
    assert f"Existing LoRA: {count} text encoder weights go on from it, 0 are new." in on


def test_the_clip_of_the_output_is_that_of_the_last_step(app, parts, trained):
    """Another run's first held-out loss with the MODEL and the CLIP of the outputs is the last one
    of the training.
    """

    def run(encoder, **changed):
        positive = [app.run("CLIPTextEncode", clip=encoder, text=TEXTS[1])[0]]
        return trained(positive=positive, learning_rate=0.02, held_out=1, **changed)

    outputs = run(parts[1], clip=parts[1], captions=TEXTS[1])
    first, last = (outputs["loss_map"]["validation"][place][1] for place in (0, -1))
    again = run(outputs["clip"], model=[outputs["model"]], steps=1)["loss_map"]["validation"][0][1]
    assert again == pytest.approx(last, rel=1e-4) and abs(first / last - 1) > 1e-3


def test_resume_with_the_text_encoder_is_the_uninterrupted_run(parts, trained):
    options = {
        "clip": parts[1],
        "captions": list(TEXTS),
        "text_encoder_rate": 0.5,
        "lr_schedule": "constant",
    }
    whole = trained(**options)
    trained(**options, checkpoint_name="glassbox/text_parts", steps=2)
    resumed = trained(**options, checkpoint_name="glassbox/text_parts")
    assert resumed["loss_map"] == whole["loss_map"]
    assert all(torch.equal(resumed["lora"][name], whole["lora"][name]) for name in whole["lora"])
    with pytest.raises(ValueError, match="made with another"):
        trained(**options | {"captions": ["portrait"]}, checkpoint_name="glassbox/text_parts")


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"captions": None}, "clip and captions belong together"),
        ({"captions": list(TEXTS[:3])}, "4 images and 3 captions as text"),
        ({"optimizer": "Prodigy", "text_encoder_rate": 0.5}, "Prodigy takes one learning rate"),
    ],
)
def test_bad_input_of_the_text_encoder_is_one_sentence(parts, trained, changed, sentence):
    given = {"clip": parts[1], "captions": list(TEXTS), **changed}
    with pytest.raises(ValueError, match=sentence):
        trained(**{name: value for name, value in given.items() if value is not None})
