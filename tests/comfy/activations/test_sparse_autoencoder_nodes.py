"""Nodes of sparse autoencoders on the demo model: training resumes, features are located, strength
0 is bit-equal.
"""

import pytest
import torch
from tapping import World, hooks_left

ID = "up-level1-repeat0-vit-out"
TRAINING = {
    "activation_id": ID,
    "image_folder": "",
    "features": 32,
    "k": 4,
    "batch_size": 64,
    "learning_rate": 1e-3,
    "seed": 3,
    "steps": 2,
    "cfg": 3.0,
}
PROMPTS = "\n".join(
    f"portrait, {hair} hair" for hair in ("red", "black", "short brown", "big pink")
)


@pytest.fixture(scope="module")
def demo(app):
    return World(app, *app.run("GBX_LoadDemoModel", weights="avatars-v2"))


def train(demo, name, training_steps, **changes):
    (latent,) = demo.app.run("EmptyLatentImage", width=128, height=128, batch_size=1)
    given = {
        "model": demo.model,
        "clip": demo.clip,
        "latent": latent,
        "prompts": PROMPTS,
        **TRAINING,
    }
    return demo.app.run(
        "GBX_TrainSparseAutoencoder",
        name=f"glassbox/{name}",
        training_steps=training_steps,
        **{**given, **changes},
    )


@pytest.fixture(scope="module")
def autoencoder(demo):
    return train(demo, "autoencoder_fixture", 6)[0]


def steer(demo, autoencoder, **changes):
    given = {
        "strengths": "1 = 2",
        "mode": "add",
        "start_percent": 0.0,
        "end_percent": 1.0,
        "rows": "conditional",
    }
    return demo.app.run(
        "GBX_SparseFeatureSteering",
        model=demo.model,
        autoencoder=autoencoder,
        **{**given, **changes},
    )[0]


def tensors_of(autoencoder):
    return [value for value in vars(autoencoder).values() if isinstance(value, torch.Tensor)]


def test_a_training_is_saved_and_resumed(demo):
    """Six batches of a chunk (three runs of two steps at 8 x 8 positions) are all it has, so chunks
    end at 6 and 12.
    """
    whole, file, figure, report = train(demo, "autoencoder_whole", 12)
    train(demo, "autoencoder_resumed", 6)
    resumed = train(demo, "autoencoder_resumed", 12)[0]
    assert all(
        torch.equal(a, b) for a, b in zip(tensors_of(whole), tensors_of(resumed), strict=True)
    )
    loaded, ids, loaded_report = demo.app.run("GBX_LoadSparseAutoencoder", file=file)
    assert all(
        torch.equal(a, b) for a, b in zip(tensors_of(whole), tensors_of(loaded), strict=True)
    )
    assert (ids, loaded_report) == (ID, report) and "held-out explained variance" in report
    assert figure.shape[0] == 1 and "batches: 12" in report
    with pytest.raises(ValueError, match="another features"):
        train(demo, "autoencoder_resumed", 12, features=16)
    with pytest.raises(ValueError, match="another model"):
        train(demo, "autoencoder_resumed", 18, model=steer(demo, whole, strengths="1 = 0.1"))


def test_a_folder_of_images_is_trained_on(demo, app):
    from pathlib import Path

    import folder_paths
    from PIL import Image

    folder = Path(folder_paths.get_input_directory()) / "autoencoder_images"
    folder.mkdir(exist_ok=True)
    for number in range(3):
        Image.new("RGB", (100 + number, 90), (80 * number, 20, 60)).save(folder / f"{number}.png")
    given = {"image_folder": "autoencoder_images", "prompts": "portrait", "vae": demo.vae}
    report = train(demo, "autoencoder_folder", 3, **given)[3]
    assert "batches: 3" in report
    Image.new("RGB", (100, 90), (1, 2, 200)).save(folder / "0.png")
    with pytest.raises(ValueError, match="another images"):
        train(demo, "autoencoder_folder", 3, **given)
    with pytest.raises(ValueError, match="needs vae, and one line"):
        train(demo, "autoencoder_folder", 3, **{**given, "vae": None})
    with pytest.raises(ValueError, match="at least two"):
        train(demo, "autoencoder_folder", 3, prompts="portrait")


@pytest.mark.parametrize(
    "changes", [{"strengths": "1 = 0\n5 = 0"}, {"strengths": ""}, {"mask": torch.zeros(1, 8, 8)}]
)
def test_strength_0_and_an_empty_mask_are_bit_equal(demo, autoencoder, changes):
    steered = steer(demo, autoencoder, **changes)
    assert torch.equal(demo.sample(steered)["samples"], demo.sample(demo.model)["samples"])


@pytest.mark.parametrize("mode", ["add", "scale"])
def test_a_steered_activation_is_the_formula(demo, autoencoder, mode):
    model, recording = demo.record("0", "conditional", ID)
    before = demo.read(recording, demo.sample(model, demo.latent(1)))[0].tensors[ID]
    maps = autoencoder.encode(before.movedim(1, -1).flatten(0, -2))
    number = int(maps.sum(0).argmax())
    steered = steer(demo, autoencoder, strengths=f"{number} = 2", mode=mode)
    model, recording = demo.record("0", "conditional", ID, model=steered)
    after = demo.read(recording, demo.sample(model, demo.latent(1)))[0].tensors[ID]
    values = autoencoder.usual[number].expand(len(maps)) if mode == "add" else maps[:, number]
    delta = (
        (2 * values[:, None] * autoencoder.decoder[number])
        .view(1, *before.shape[2:], -1)
        .movedim(-1, 1)
    )
    assert (after - before - delta).abs().max() < 1e-4 * after.abs().max()
    assert hooks_left(demo.model) == 0


def test_an_autoencoder_of_an_update_steers_what_a_transformer_adds(demo, autoencoder):
    """As published ones are: of the output less the input."""
    from dataclasses import replace

    update = replace(autoencoder, input_id=ID.replace("vit-out", "res-out"))
    ids = "\n".join(update.ids)
    recorder, recording = demo.record("0", "conditional", ids)
    before = demo.read(recording, demo.sample(recorder, demo.latent(1)))[0]
    maps = update.maps(before)
    number = int(maps.sum((0, 2, 3)).argmax())
    steered = steer(demo, update, strengths=f"{number} = -1", mode="scale")
    recorder, recording = demo.record("0", "conditional", ids, model=steered)
    after = demo.read(recording, demo.sample(recorder, demo.latent(1)))[0]
    delta = -maps[:, number, None] * update.decoder[number][:, None, None]
    assert torch.equal(after.tensors[update.input_id], before.tensors[update.input_id])
    assert (after.tensors[ID] - before.tensors[ID] - delta).abs().max() < 1e-4 * after.tensors[
        ID
    ].abs().max()


def test_features_of_an_image_and_of_a_part(demo, autoencoder):
    images, hair, _ = demo.app.run("GBX_DemoPicture", image_index=0, count=3, part="hair")
    tapped = demo.tap(ID, image=images, vae=demo.vae, latent=None)
    given = {
        "autoencoder": autoencoder,
        "activations": tapped,
        "image": images,
        "image_index": 1,
        "count": 3,
    }
    given |= {"top_images": 2, "opacity": 0.6}
    figure, features, maps, report = demo.app.run("GBX_SparseFeatures", **given)
    found = autoencoder.maps(tapped)
    numbers = [int(line.split(" = ")[0]) for line in features.splitlines()]
    assert numbers == found[1].mean((1, 2)).argsort(descending=True, stable=True)[:3].tolist()
    assert maps.shape == (3, 128, 128) and figure.shape[0] == 1 and len(report.splitlines()) == 4
    part = (
        demo.app.run("GBX_SparseFeatures", **given, mask=hair[1:2])[1]
        .splitlines()[0]
        .split(" = ")[0]
    )
    cells = torch.nn.functional.interpolate(hair[1:2, None], size=found.shape[2:], mode="area")[
        0, 0
    ]
    score = [
        float((one * cells).sum() / cells.sum() - (one * (1 - cells)).sum() / (1 - cells).sum())
        for one in found[1]
    ]
    assert score[int(part)] == pytest.approx(max(score))
    with pytest.raises(ValueError, match="image_index is 3"):
        demo.app.run("GBX_SparseFeatures", **{**given, "image_index": 3})
    with pytest.raises(ValueError, match="which the activations do not hold"):
        demo.app.run("GBX_SparseFeatures", **{**given, "activations": demo.tap("unet-out")})
