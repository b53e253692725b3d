"""W2W Train Space inside a real ComfyUI: folders in, a space out, on every architecture, and
exactly resumed.
"""

import shutil
from pathlib import Path

import pytest
import reduced
import torch
from PIL import Image

CHOICES = {
    "prompt": "portrait",
    "rank": 2,
    "components": 64,
    "steps": 4,
    "learning_rate": 0.01,
    "members_per_step": 2,
    "images_per_member": 2,
    "batch_size": 8,
    "resolution": 128,
    "seed": 3,
    "layers": "",
    "end_percent": 0.85,
    "caption_dropout": 0.0,
    "precision": "fp32",
    "gradient_checkpointing": False,
    "preview_interval": 2,
    "checkpoint_name": "",
    "checkpoint_interval": 2,
}


@pytest.fixture(scope="module")
def demo(app):
    return app.run("GBX_LoadDemoModel", weights="avatars-v2")


@pytest.fixture
def people(app):
    """Three people: one of one image, one with a caption less; in the input folder."""
    import folder_paths

    from tools.launcher import paths

    source = paths.ROOT / "assets" / "avatars-v2-people"
    root = Path(folder_paths.get_input_directory()) / "some people"
    shutil.rmtree(root, ignore_errors=True)
    for number, count in enumerate((3, 1, 2)):
        name = f"person_{number:02}"
        shutil.copytree(source / name, root / name)
        for path in (root / name).iterdir():
            if int(path.stem) >= count:
                path.unlink()
    (root / "person_02" / "1.txt").unlink()
    yield root
    shutil.rmtree(root, ignore_errors=True)


def train(app, demo, **changed):
    model, clip, vae = demo
    given = {
        "model": model,
        "clip": clip,
        "vae": vae,
        "folder": "some people",
        **CHOICES,
        **changed,
    }
    return app.run("GBX_W2WTrainSpace", **given)


def test_a_run_and_what_it_leaves(app, demo, people):
    before = {name: value.clone() for name, value in demo[0].model.state_dict().items()}
    space, images, figure, losses, report = train(app, demo)
    assert space.members == ("person_00", "person_01", "person_02") and space.name == "some people"
    assert (space.form, space.components, space.layout.rank) == ("as_trained", 2, 2)
    assert images.shape == (3, 128, 128, 3) and figure.ndim == 4 and len(losses["loss"]) == 4
    assert "3 members of 1 to 3 images" in report and "a code of 3 for each" in report
    after = demo[0].model.state_dict()
    assert all(torch.equal(after[name], value) for name, value in before.items())
    assert not any(module._forward_hooks for module in demo[0].model.modules())
    drawn = {
        "seed": 0,
        "count": 1,
        "components": 9,
        "spread": 1.0,
        "source": "random",
        "member_name": "",
    }
    (point,) = app.run("GBX_W2WSample", space=space, **drawn)[0]
    assert {factors.rank for factors in point.layers().values()} == {2}


def test_a_network_may_prepare_its_text_by_layers_that_are_trained(app, demo, people, monkeypatch):
    """As LTX-2 does by its connectors, one row at a time: without any member's change."""
    model = demo[0].model
    layer = next(
        module
        for name, module in model.diffusion_model.named_modules()
        if name.endswith("attn1.to_q")
    )
    prepare = model.extra_conds
    prepared = []

    def preparing(**given):
        prepared.append(layer(torch.zeros(1, 3, layer.in_features)))
        return prepare(**given)

    space = train(app, demo)[0]
    monkeypatch.setattr(model, "extra_conds", preparing)
    again = train(app, demo)[0]
    assert prepared and all(torch.equal(one, prepared[0]) for one in prepared)
    assert torch.equal(again.mean, space.mean) and torch.equal(again.basis, space.basis)


def test_the_same_again_and_a_resumed_run_are_bit_equal(app, demo, people, monkeypatch):
    whole = train(app, demo, caption_dropout=0.5)
    nodes = app.module("nodes.weights.monitored_run_comfy")
    from comfy.model_management import InterruptProcessingException

    calls = []

    def check(self):
        calls.append(None)
        if len(calls) == 3:
            raise InterruptProcessingException

    with monkeypatch.context() as patched:
        patched.setattr(nodes.FinishNow, "check", check)
        with pytest.raises(InterruptProcessingException):
            train(app, demo, caption_dropout=0.5, checkpoint_name="train-space/some")
    steps = []
    with monkeypatch.context() as patched:
        patched.setattr(nodes.FinishNow, "check", lambda self: steps.append(None))
        resumed = train(app, demo, caption_dropout=0.5, checkpoint_name="train-space/some")
    assert len(steps) == 1
    assert resumed[3] == whole[3]
    for name in ("mean", "basis", "coefficients"):
        assert torch.equal(getattr(resumed[0], name), getattr(whole[0], name)), name
    with pytest.raises(ValueError, match="another caption_dropout:"):
        train(app, demo, caption_dropout=0.4, checkpoint_name="train-space/some")
    Image.new("RGB", (128, 128), "red").save(people / "person_01" / "1.png")
    with pytest.raises(ValueError, match="another images, members:"):
        train(app, demo, caption_dropout=0.5, checkpoint_name="train-space/some")


def test_finish_now_takes_the_space_trained_so_far(app, demo, people, monkeypatch):
    nodes = app.module("nodes.weights.monitored_run_comfy")
    real, steps = nodes.FinishNow.check, []

    def check(self):
        steps.append(None)
        if len(steps) == 2:
            self._pressed.set()
        real(self)

    monkeypatch.setattr(nodes.FinishNow, "check", check)
    space, images, _, losses, report = train(app, demo, steps=50)
    assert (
        len(losses["loss"]) == 2
        and "2 steps (finished early)" in report
        and len(space.members) == 3
    )
    assert len(images) == 3


def test_what_cannot_be_read_is_left_out_and_named(app, demo, people):
    (people / "person_00" / "0.webp").write_bytes(b"no image")
    Image.new("RGBA", (40, 60), (0, 0, 0, 0)).save(people / "person_01" / "clear.png")
    (people / "nobody").mkdir()
    report = train(app, demo, steps=1)[4]
    assert "Skipped: person_00/0.webp: cannot be read" in report
    assert "Skipped: person_01/clear.png: is transparent everywhere" in report
    assert "Skipped: nobody: holds no image" in report


def test_images_of_several_sizes_and_transparent_parts(app, demo, people):
    wide = Image.new("RGBA", (200, 100), "green")
    wide.putalpha(
        Image.linear_gradient("L").resize((200, 100)).point(lambda value: 255 * (value > 100))
    )
    wide.save(people / "person_01" / "wide.png")
    space, _, _, losses, report = train(app, demo)
    assert "160 x 96: 1 images" in report and "128 x 128: 6 images" in report
    assert len(losses["loss"]) == 4 and len(space.members) == 3


@pytest.mark.parametrize("left", [0, 1])
def test_fewer_than_two_people_get_a_sentence(app, demo, people, left):
    for number in range(left, 3):
        shutil.rmtree(people / f"person_{number:02}")
    with pytest.raises(ValueError, match=f"holds {left} folders with images"):
        train(app, demo)
    if left:
        shutil.copytree(people / "person_00", people / "person_01")
        for path in (people / "person_01").glob("*.webp"):
            path.write_bytes(b"no image")
        with pytest.raises(
            ValueError, match=r"Images of 1 people are left.*person_01/0.webp cannot be read"
        ):
            train(app, demo)


def test_a_folder_that_is_not_there_and_layers_that_are_not(app, demo, people):
    with pytest.raises(ValueError, match="There is no folder of folders of images"):
        train(app, demo, folder="elsewhere")
    with pytest.raises(ValueError, match="is a file"):
        train(app, demo, folder="some people/person_00/0.webp")
    with pytest.raises(ValueError, match="No linear layer of this MODEL"):
        train(app, demo, layers="no_such_layer")


def test_two_people_of_one_image_and_the_layers_that_words_name(app, demo, people):
    shutil.rmtree(people / "person_00")
    (people / "person_02" / "1.webp").unlink()
    space = train(app, demo, layers="attn2.to_k, ff.net.2")[0]
    assert len(space.members) == 2 and space.components == 1
    assert {name.rsplit(".", 1)[-1] for name in space.layout.sizes} == {"to_k", "2"}


@pytest.mark.parametrize("architecture", reduced.ARCHITECTURES)
@torch.inference_mode()
def test_every_architecture(app, people, architecture):
    """A point as a LoRA on the MODEL changes a sample, and every layer's weight is found by the
    file's name.
    """
    model, clip, vae = reduced.checkpoint(architecture)
    kinds = {"precision": "bf16", "gradient_checkpointing": True}
    space, images, _, losses, _ = train(
        app, (model, clip, vae), steps=1, components=2, resolution=64, **kinds
    )
    assert all(torch.isfinite(torch.tensor(losses["loss"]))) and len(images) == 3
    drawn = {
        "seed": 0,
        "count": 1,
        "components": 9,
        "spread": 1.0,
        "source": "member",
        "member_name": "person_01",
    }
    (point,) = app.run("GBX_W2WSample", space=space, **drawn)[0]
    whole = {"strength": 1.0, "start_percent": 0.0, "end_percent": 1.0}
    patched = app.run("GBX_W2WApply", model=model, point=point, **whole)[0]
    assert len(patched.patches) == len(space.layout.slots)
