"""The demo world: what is drawn is what the caption says, and truth follows the image."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

pytest.importorskip("python_avatars")
pytest.importorskip("resvg_py")

from studies.world import captions, dataset, decoder, faces, scenes


def some_scene(seed: int = 5, **metadata) -> scenes.Scene:
    return scenes.random_scene(np.random.default_rng(seed), scenes.Metadata(**metadata))


def test_a_seed_makes_the_same_images():
    first, second = (dataset.make_shard(9, 3, sharp=False) for _ in range(2))
    assert (first.images == second.images).all() and first.captions == second.captions
    assert (first.labels == second.labels).all() and (first.metadata == second.metadata).all()
    assert (dataset.make_shard(10, 3, sharp=False).images != first.images).any()


def test_a_part_mask_covers_just_the_pixels_that_change_with_the_part():
    scene = some_scene()
    scene = replace(scene, face=replace(scene.face, clothing="shirt", clothing_color="red"))
    recolored = replace(scene, face=replace(scene.face, clothing_color="white"))
    changed = np.abs(scenes.render(scene).astype(int) - scenes.render(recolored)).max(-1) > 8
    mask = scenes.masks(scene)["clothing"]
    assert changed.sum() > 200
    assert (mask[changed] > 0.02).all() and not changed[mask < 0.001].any()


def test_masks_are_carried_through_crop_and_mirror():
    plain = some_scene(crop_top=10, crop_left=20)
    mirrored = replace(plain, metadata=replace(plain.metadata, mirror=True))
    for part, mask in scenes.masks(plain).items():
        assert np.array_equal(mask[:, ::-1], scenes.masks(mirrored)[part]), part
    assert np.array_equal(scenes.render(plain)[:, ::-1], scenes.render(mirrored))


def test_key_points_lie_on_the_eyes():
    scene = some_scene(crop_left=12, crop_top=4, mirror=True)
    face = replace(
        scene.face, skin="pale", eyes="open", accessory="none", hair="bald", facial_hair="none"
    )
    scene = replace(scene, face=face)
    shut = replace(scene, face=replace(face, eyes="surprised"))
    changed = np.abs(scenes.render(scene).astype(int) - scenes.render(shut)).max(-1) > 30
    columns, rows = np.nonzero(changed.T)
    points = scenes.keypoints(scene)
    middle = np.mean([points["left eye"], points["right eye"]], axis=0)
    assert abs(columns.mean() - middle[0]) < 2 and abs(rows.mean() - middle[1]) < 4
    assert points["left eye"][0] > points["right eye"][0], (
        "mirroring exchanges the places of the eyes"
    )


def test_a_small_original_is_blurred():
    def edges(original: int) -> float:
        return float(
            np.abs(
                np.diff(scenes.render(some_scene(original=original)).astype(float), axis=1)
            ).max()
        )

    assert edges(32) < 0.7 * edges(128)


def test_captions_say_what_is_there():
    rng = np.random.default_rng(0)
    for _ in range(200):
        scene = scenes.random_scene(rng)
        words = captions.caption(scene, rng).split(", ")
        true = [*captions.phrases(scene.face).values(), captions.background_phrase(scene)]
        assert words[0] == "portrait" and set(words[1:]) <= set(true)
        assert len(" ".join(words).replace(",", "").split()) <= 26


def test_hidden_attributes_have_no_label():
    scene = some_scene()
    hidden = replace(
        scene,
        pattern="plain",
        face=replace(scene.face, accessory="sunglasses", hair="bald", facial_hair="none"),
    )
    found = dict(zip(dataset.LABELS, dataset.labels(hidden), strict=True))
    assert found["eyes"] == found["hair_color"] == found["mirror"] == -1
    assert all(
        value >= 0 for name, value in found.items() if name not in ("eyes", "hair_color", "mirror")
    )


def test_half_of_the_faces_go_without():
    rng = np.random.default_rng(3)
    drawn = [faces.random_face(rng) for _ in range(2000)]
    for name in ("facial_hair", "accessory"):
        assert (
            abs(np.mean([getattr(face, name) == "none" for face in drawn]) - 0.5) < 0.035
        )  # 3 standard errors


def test_shards_that_are_there_are_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(dataset, "SHARD", 2)
    dataset.build(tmp_path, 2, seed=1, workers=1)
    first = (tmp_path / "0000.npz").stat().st_mtime_ns
    dataset.build(tmp_path, 4, seed=1, workers=1)
    assert (tmp_path / "0000.npz").stat().st_mtime_ns == first
    assert len(dataset.load(tmp_path).captions) == 4
    with pytest.raises(
        FileNotFoundError, match=r"run `python run\.py study world train data` first"
    ):
        dataset.load(tmp_path / "none")


def test_the_reports_reader_understands_every_caption():
    """What the pack's reader of captions finds in one is what the scene shows."""
    from glassbox.nodes.demo.judge import read_caption

    rng, labels = np.random.default_rng(0), dataset.LABELS
    for _ in range(300):
        scene = scenes.random_scene(rng)
        words = captions.full_caption(scene)
        found = read_caption(words, labels)
        truth = zip(labels, dataset.labels(scene), strict=True)
        wanted = {name: labels[name][value] for name, value in truth if value >= 0}
        color = {"hair_color"} if str(wanted.get("hair_color")) not in words else set()
        eyes = {"eyes"} if "eyes" not in words else set()
        assert found == {
            name: value for name, value in wanted.items() if name not in {"mirror"} | color | eyes
        }, words


def test_crop_offset_moves_the_image_by_as_many_pixels():
    plain, cropped = some_scene(), some_scene(crop_top=12, crop_left=20)
    assert np.array_equal(scenes.render(plain)[12:, 20:], scenes.render(cropped)[:-12, :-20])
    for before, after in zip(
        scenes.keypoints(plain).values(), scenes.keypoints(cropped).values(), strict=True
    ):
        assert before[0] - after[0] == pytest.approx(20) and before[1] - after[1] == pytest.approx(
            12
        )


def test_part_masks_equal_one_drawing_of_each_part_in_black_and_white():
    face = some_scene().face
    masks = faces.part_masks(face, 100)
    for part in ("skin", "hair", "facial_hair", "clothing"):
        dark, bright = (
            faces.draw(face, 100, **{part: color})[..., :3] for color in ("#000000", "#FFFFFF")
        )
        assert np.abs(np.abs(bright - dark).max(-1) - masks[part]).max() < 0.02, part


def test_truth_scenes_hold_as_many_faces_as_they_say():
    truth = dataset.make_truth(3, 24)
    assert set(truth.faces) == {0, 1, 2, 3}
    empty, single = truth.faces == 0, truth.faces == 1
    assert (truth.masks[empty, :-1] == 0).all() and (truth.masks[empty, -1] == 255).all()
    assert np.isfinite(truth.points[single]).all() and np.isnan(truth.points[~single]).all()
    assert (truth.labels[~single] == -1).all() and (truth.labels[single, 0] >= 0).all()
    assert (truth.masks[~empty, 0] > 127).any((1, 2)).all(), "every face shows skin"


def test_zero_terminal_schedule_is_that_of_comfyui():
    from studies.common import host
    from studies.world.denoiser import alphas_cumprod

    host.prepare()
    from comfy.model_sampling import ModelSamplingDiscrete

    alphas = alphas_cumprod(zero_terminal=True)
    ours = ((1 - alphas) / alphas).sqrt()
    theirs = ModelSamplingDiscrete(zsnr=True).sigmas.double()
    assert np.allclose(ours[:-1], theirs[:-1], rtol=2e-4) and float(theirs[-1]) == pytest.approx(
        float(ours[-1]), rel=1e-3
    )


def test_a_goal_is_judged_by_the_attribute_that_is_furthest_off(tmp_path, monkeypatch):
    from studies.world import measure

    values = {
        "followed eyes": 0.86,
        "followed skin": 0.99,
        "blur, generated": 0.43,
        "blur, renders": 0.17,
    }
    numbers = {
        name: {"value": value, "n": 20, "unit": "fraction"} for name, value in values.items()
    }
    (tmp_path / "world_made.json").write_text(json.dumps({"numbers": numbers}), "utf-8")
    monkeypatch.setattr(measure.results, "RESULTS", tmp_path)
    goals = (
        ("world_made", "followed *", 0.88, None),
        ("world_made", "blur, generated over renders", 0.5, 2.0),
    )
    monkeypatch.setattr(measure, "GATES", goals)
    found = measure.measure_gates(False)
    assert {name: row["what"] for name, row in found.items()} == {
        "followed eyes": "wanted: at least 0.88; missed",
        "blur, generated over renders": "wanted: at least 0.5 and at most 2; missed",
    }
    monkeypatch.setattr(
        measure,
        "GATES",
        (("world_made", "followed *", None, 0.99), ("world_made", "followed *", 0.8, None)),
    )
    found = measure.measure_gates(False)
    assert found["followed skin"]["what"].endswith("reached") and found["followed eyes"][
        "what"
    ].endswith("reached")


def test_the_decoder_is_trained_on_sharp_uncropped_images_only():
    plain = scenes.Metadata()
    rows = [
        plain,
        replace(plain, mirror=True),
        replace(plain, original=64),
        replace(plain, crop_top=10),
        plain,
    ]
    metadata = torch.tensor([row.numbers() for row in rows], dtype=torch.float32)
    assert decoder.clear_images(metadata).tolist() == [0, 1, 4]
