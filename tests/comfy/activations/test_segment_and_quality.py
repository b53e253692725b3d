"""Activation Clusters, the Few-Shot Segmenter and the quality of activations on the canvas."""

import pytest
import torch
from tapping import World


@pytest.fixture(scope="module")
def demo(app):
    return World(app, *app.run("GBX_LoadDemoModel", weights="avatars-v2"))


@pytest.fixture(scope="module")
def faces(demo):
    """Four images of the demo world, the masks of hair and skin, and their activations."""
    image, hair, _ = demo.app.run("GBX_DemoPicture", image_index=0, count=4, part="hair")
    skin = demo.app.run("GBX_DemoPicture", image_index=0, count=4, part="skin")[1]
    tapped = demo.tap("up-level2-repeat0-vit-out", latent=None, image=image, vae=demo.vae)
    return image, hair, skin, tapped


def test_clusters_split_every_image(demo, faces):
    image, _, _, tapped = faces
    given = {"activations": tapped, "image": image, "clusters": 5, "opacity": 0.5}
    figure, masks = demo.app.run("GBX_ActivationClusters", **given, seed=1)
    assert figure.shape == (4, 512, 512, 3) and masks.shape == (20, 128, 128)
    by_image = masks.unflatten(0, (4, 5))
    assert torch.equal(by_image.sum(1), torch.ones(4, 128, 128))
    assert by_image.sum((0, 2, 3)).tolist() == sorted(
        by_image.sum((0, 2, 3)).tolist(), reverse=True
    )
    assert torch.equal(demo.app.run("GBX_ActivationClusters", **given, seed=1)[1], masks)


def train(demo, tapped, **changes):
    given = {
        "activations": tapped,
        "part_names": "",
        "resolution": 32,
        "epochs": 3,
        "seed": 0,
        **changes,
    }
    return demo.app.run("GBX_TrainFewShotSegmenter", **given)


def test_a_part_without_a_pixel_has_no_score(demo, faces):
    """Masks that cover the image leave no background, and one smaller than a cell is nowhere."""
    left, dot = torch.zeros(2, 128, 128), torch.zeros(2, 128, 128)
    left[..., :64], dot[:, 0, 1] = 1, 1
    given = {"part_1": left, "part_2": dot, "part_3": 1 - left, "resolution": 16}
    _, report = train(demo, faces[3].select_rows([0, 1]), **given)
    nowhere = ["no pixel at this resolution" in line for line in report.splitlines()[1:]]
    assert nowhere == [True, False, True, False]


def test_a_segmenter_is_trained_and_applied(demo, faces):
    image, hair, skin, tapped = faces
    few = tapped.select_rows([0, 1])
    segmenter, report = train(demo, few, part_1=hair[:2], part_3=skin[:2], part_names="hair")
    assert [line.split(":")[0] for line in report.splitlines()[1:]] == [
        "background",
        "hair",
        "part 2",
    ]
    given = {"segmenter": segmenter, "image": image, "opacity": 0.5}
    figure, masks, uncertainty, report = demo.app.run(
        "GBX_FewShotSegmenter", activations=tapped, **given
    )
    assert figure.shape == (4, 512, 512, 3) and masks.shape == (8, 128, 128)
    assert (
        uncertainty.shape == (4, 128, 128) and uncertainty.amin() >= 0 and uncertainty.amax() <= 1
    )
    assert len(report.splitlines()) == 4 and "hair" in report
    pairs = masks[:, ::2], masks[:, 1::2], masks[:, :, ::2], masks[:, :, 1::2]
    assert all(
        (one != other).any() for one, other in (pairs[:2], pairs[2:])
    )  # every pixel by itself, learned from 32
    truth = torch.stack([hair, skin], 1).flatten(0, 1) > 0.5
    found = masks > 0.5
    assert (found & truth).sum() / (
        found | truth
    ).sum() > 0.25  # chance is about a fifth; the training is minute
    with pytest.raises(ValueError, match="these activations are different"):
        demo.app.run("GBX_FewShotSegmenter", activations=demo.tap("unet-out"), **given)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"part_2": torch.zeros(2, 8, 8)}, "Part 2 has 2 masks and the first part 4"),
        ({"part_names": "a, b, c"}, "There are 3 part names for 1 parts"),
        ({"part_1": torch.zeros(3, 8, 8)}, "at least 4 images, and each part has 3 masks"),
        ({"part_1": torch.zeros(4, 128, 128)}, "only one label"),
    ],
)
def test_masks_that_do_not_fit_are_refused(demo, faces, changes, reason):
    _, hair, _, tapped = faces
    with pytest.raises(ValueError, match=reason):
        train(demo, tapped, **{"part_1": hair, **changes})


SAMPLES = 2


def quality(demo, ids, latent=None, tapped=None, **changes):
    latent = latent or demo.latent(3)
    repeated = {"samples": latent["samples"].repeat(SAMPLES, 1, 1, 1)}
    tapped = {"seed": 0, "noise_unit": "paper_t", "level": 50.0} | (tapped or {})
    given = {
        "measure": "quality",
        "activations": demo.tap(ids, latent=repeated, **tapped),
        "model": demo.model,
        "latent": latent,
        "points": "",
        "threshold": 0.1,
        "train_images": 2,
        "resolution": 64,
        "seed": 0,
        "noise_samples": SAMPLES,
        "max_noise_fraction": 0.5,
        "max_locality": 0.2,
        "id_filter": "general_filter",
        "keep": 1,
        "filename_prefix": "",
        **changes,
    }
    return demo.app.run("GBX_ScoreActivations", **given)


def test_quality_is_measured_drawn_and_filtered(demo):
    figure, table, ids, _, network = quality(demo, "up-level1-*\nunet-in\nunet-out")
    assert figure.ndim == 4 and figure.shape[1] == 700 and network.shape[1] > 1
    lines = table.splitlines()
    assert (
        lines[1].startswith("unet-in") and len(lines) == 1 + 2 + 3 * 9 + 1
    )  # 9 a repeat and the upsampler
    assert "up-level1-repeat0-vit-block0-cross-q" in ids.splitlines() and "unet-in" not in ids
    measured = {"id_filter": "measured", "max_locality": 2.0, "model": None}
    everything = quality(demo, "up-level1-*-out", max_noise_fraction=1.0, **measured)[2]
    nothing = quality(demo, "up-level1-*-out", max_noise_fraction=0.0, **measured)[2]
    assert len(everything.splitlines()) == 10 and nothing == ""


def test_quality_of_a_repeated_batch_is_that_of_its_repetitions(demo):
    """The repetitions of a tapped batch are the noise samples, whatever the order of images."""
    latent = demo.latent(3)
    repeated = {"samples": latent["samples"].repeat(SAMPLES, 1, 1, 1)}
    level = {"seed": 0, "noise_unit": "sigma", "level": 0.5}
    tensors = demo.tap("unet-in", latent=repeated, **level).tensors
    module = demo.app.module("nodes.activations.quality")
    samples = [
        {id_: value[start : start + 3] for id_, value in tensors.items()} for start in (0, 3)
    ]
    assert not torch.equal(samples[0]["unet-in"], samples[1]["unet-in"])
    numbers = module.measure_samples(samples, latent["samples"])["unet-in"]
    report = quality(demo, "unet-in", latent=latent, tapped=level)[1]
    shown = [float(number) for number in report.splitlines()[1].split()[1:4]]
    assert shown == pytest.approx(
        [numbers.noise, numbers.granularity, numbers.locality], abs=5.1e-4
    )
    assert 0.01 < numbers.noise < 0.99


def test_more_noise_is_measured_where_there_is_more(demo):
    def noise(level):
        report = quality(demo, "unet-in", tapped={"noise_unit": "sigma", "level": level})[1]
        return float(report.splitlines()[1].split()[1])

    assert noise(0.05) < 0.02 < 0.4 < noise(2.0)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"ids": "up-level1-*-self-map"}, "attention maps only"),
        ({"count": 1}, "At least two images"),
        ({"noise_samples": 3}, "3 noise samples of 3 images are 9"),
        ({"model": None}, "Connect model for id_filter general_filter"),
    ],
)
def test_quality_refuses_what_it_cannot_measure(demo, changes, reason):
    given = {name: changes[name] for name in ("noise_samples", "model") if name in changes}
    if "count" in changes:
        given["latent"] = demo.latent(changes["count"])
    with pytest.raises(ValueError, match=reason):
        quality(demo, changes.get("ids", "unet-in"), **given)
