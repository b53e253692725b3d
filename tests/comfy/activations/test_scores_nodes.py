"""Score Activations on the demo model: a LoRA is located, and labels rank the activations."""

import pytest
import torch
from tapping import World

UNUSED = {
    "points": "",
    "threshold": 0.1,
    "train_images": 2,
    "resolution": 16,
    "seed": 0,
    "noise_samples": 2,
    "id_filter": "measured",
    "max_noise_fraction": 0.5,
    "max_locality": 0.2,
    "filename_prefix": "",
}
IDS = "up-level1-repeat0-res-out\nup-level2-repeat2-vit-out"


@pytest.fixture(scope="module")
def demo(app):
    return World(app, *app.run("GBX_LoadDemoModel", weights="avatars-v2"))


def test_the_same_model_does_not_differ_and_a_changed_one_does(demo):
    with_patch, weight = demo.model.clone(), "diffusion_model.output_blocks.8.1.proj_in.weight"
    shape = demo.model.model.state_dict()[weight].shape
    with_patch.add_patches(
        {weight: (0.1 * torch.randn(shape, generator=torch.Generator().manual_seed(0)),)}
    )
    taps = [demo.tap(IDS, model=model) for model in (demo.model, demo.model, with_patch)]
    given = {"measure": "difference", "model": demo.model, "reference": taps[0], "keep": 1}
    given |= UNUSED
    figure, report, _, file, network = demo.app.run(
        "GBX_ScoreActivations", activations=taps[1], **given
    )
    assert file == ""
    assert [line.split()[1:] for line in report.splitlines()[1:]] == [["0.000", "1.000"]] * 2
    assert figure.shape[0] == network.shape[0] == 1
    _, report, ids, *_ = demo.app.run("GBX_ScoreActivations", activations=taps[2], **given)
    lines = dict(line.split()[:2] for line in report.splitlines()[1:])
    before, after = IDS.splitlines()
    assert lines[before] == "0.000" and float(lines[after]) > 0 and ids == after
    _, joined, ids, _, maps = demo.app.run(
        "GBX_ScoreActivations", activations=taps[1], activations_2=taps[2], **given
    )
    rows = [line.split() for line in joined.splitlines()]
    assert rows[0] == ["ID", "difference", "CKA", "difference_2", "CKA_2"] and ids == after
    assert {row[0]: row[3] for row in rows[1:]} == lines and {row[1] for row in rows[1:]} == {
        "0.000"
    }
    # One scale: the color of no difference is that of the model which does not differ, and another
    # is seen.
    assert maps.shape[0] == 2 and not torch.equal(maps[0], maps[1])
    with pytest.raises(ValueError, match="Connect reference"):
        demo.app.run("GBX_ScoreActivations", activations=taps[1], **(given | {"reference": None}))


def test_labels_rank_activations_and_the_best_are_saved(demo, app):
    images, hair, _ = app.run("GBX_DemoPicture", image_index=0, count=3, part="hair")
    tapped = demo.tap(IDS, image=images, vae=demo.vae, latent=None)
    given = {
        **UNUSED,
        "keep": 1,
        "activations": tapped,
        "image": images,
        "filename_prefix": "glassbox/scored_ids",
    }
    points = "54, 62\n66, 82\n\n48, 57\n60, 77\n\n53, 68\n62, 84"
    for labels, name in (
        ({"measure": "points", "points": points}, "PCK@0.1"),
        ({"measure": "parts", "part_1": hair, "model": demo.model}, "mean IoU"),
    ):
        figure, report, ids, file, network = app.run("GBX_ScoreActivations", **given | labels)
        assert isinstance(network, torch.Tensor) == ("model" in labels)
        assert figure.shape[0] == 1 and report.startswith(
            f"{name}. The same place, without a model: "
        )
        scores = {line.split()[0]: float(line.split()[1]) for line in report.splitlines()[2:]}
        assert set(scores) == set(IDS.splitlines()) and ids == max(scores, key=scores.get)
        import folder_paths

        with open(f"{folder_paths.get_output_directory()}/{file}", encoding="utf-8") as saved:
            text = saved.read()
        assert name in text
        assert demo.tap(text).tensors.keys() == {ids}  # the file's text is an input of a tap
    for wrong, message in (
        ({"measure": "points"}, "Enter points"),
        ({"measure": "parts"}, "Connect part_1"),
        ({"measure": "points", "points": "1, 2\n\n3, 4"}, "for 3 images"),
        ({"measure": "points", "points": points, "image": None}, "image has no images"),
        ({"measure": "parts", "train_images": 3, "part_1": hair}, "train_images is 3 of 3 images"),
    ):
        with pytest.raises(ValueError, match=message):
            app.run("GBX_ScoreActivations", **given | wrong)
