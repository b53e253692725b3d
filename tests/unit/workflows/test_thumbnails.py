"""Thumbnails come from the images of the demo run."""

import json

import numpy as np
import pytest
from PIL import Image

from tools.launcher.errors import LaunchError
from tools.launcher.paths import WORKFLOWS
from tools.workflows import thumbnails
from tools.workflows.titles import path_of


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(thumbnails, "path_of", lambda name: tmp_path / f"{name}.json")
    return tmp_path


@pytest.mark.parametrize(
    ("count", "size"), [(1, (400, 400)), (2, (400, 200)), (4, (400, 400)), (12, (400, 400))]
)
def test_the_first_images_are_tiled(folder, count, size):
    for number in range(1, count + 1):
        Image.new("RGB", (128, 128), (20 * number, 0, 0)).save(folder / f"demo_a_{number}.png")
    target = thumbnails.write("demo_a", folder)
    with Image.open(target) as image:
        assert (target.name, image.format, image.size) == ("demo_a.jpg", "JPEG", size)
        assert abs(image.getpixel((10, 10))[0] - 20) < 4
        if count > 1:
            assert abs(image.getpixel((size[0] - 10, 10))[0] - 40) < 4


def test_chosen_images_stand_in_rows_of_three(folder, monkeypatch):
    monkeypatch.setattr(thumbnails, "_CHOSEN", {"demo_a": (5, 1, 2, 3, 4, 6)})
    for number in range(1, 8):
        Image.new("RGB", (128, 128), (30 * number, 0, 0)).save(folder / f"demo_a_{number}.png")
    with Image.open(thumbnails.write("demo_a", folder)) as image:
        assert image.size == (400, 266)
        read = [
            image.getpixel((60 + 133 * column, 60 + 133 * row))[0]
            for row in (0, 1)
            for column in (0, 1, 2)
        ]
    assert read == pytest.approx([150, 30, 60, 90, 120, 180], abs=4)


def test_images_are_chosen_for_workflows_that_are_there():
    assert all(
        path_of(name).exists()
        for name in (*thumbnails._CHOSEN, *thumbnails._TWINS, *thumbnails._TWINS.values())
    )


def test_a_workflow_without_an_image_is_reported(folder):
    Image.new("RGB", (8, 8)).save(folder / "demo_ab_1.png")
    with pytest.raises(
        LaunchError, match=r"no image of demo_a: make it with python run\.py demo --all"
    ):
        thumbnails.write("demo_a", folder)


def test_a_wide_image_keeps_its_shape(folder):
    Image.new("RGB", (200, 50), "black").save(folder / "demo_a_1.png")
    with Image.open(thumbnails.write("demo_a", folder)) as image:
        assert image.size == (400, 200)
        assert image.getpixel((200, 100))[0] < 10
        assert image.getpixel((200, 20))[0] > 245


def test_images_of_several_nodes_stand_below_their_titles(folder):
    for number in range(1, 5):
        Image.new("RGB", (128, 128), "red").save(folder / f"demo_a_{number}.png")
    plain = Image.open(thumbnails.write("demo_a", folder)).convert("RGB")
    titles = {
        f"demo_a_{number}.png": ("Before", "After a very long title, which is cut")[number > 2]
        for number in range(1, 5)
    }
    (folder / "demo_a_titles.json").write_text(json.dumps(titles))
    titled = Image.open(thumbnails.write("demo_a", folder)).convert("RGB")
    assert plain.size == titled.size == (400, 400)
    strips = [titled.crop((0, top, 400, top + 20)) for top in (0, 200)]
    assert all(
        strip.getpixel((390, 2))[1] > 240 and np.asarray(strip).min() < 90 for strip in strips
    )
    assert strips[0].tobytes() != strips[1].tobytes() and plain.getpixel((100, 4))[1] < 20
    one = dict.fromkeys(titles, "Before")
    (folder / "demo_a_titles.json").write_text(json.dumps(one))
    with Image.open(thumbnails.write("demo_a", folder)) as same:
        assert same.convert("RGB").tobytes() == plain.tobytes(), "one title says nothing"


def test_every_workflow_has_a_thumbnail():
    for path in WORKFLOWS.glob("*.json"):
        with Image.open(path.with_suffix(".jpg")) as shown:
            assert shown.width == 400 and 200 <= shown.height <= 434, path.stem


def test_a_workflow_for_a_checkpoint_shows_the_demo_s_images_and_says_so(folder):
    for number in range(1, 3):
        Image.new("RGB", (128, 128), "red").save(folder / f"demo_a_{number}.png")
    target = thumbnails.write("sdxl_a", folder)
    with Image.open(target) as image:
        assert (target.name, image.size) == ("sdxl_a.jpg", (400, 234))
        assert image.getpixel((200, 100))[0] > 200
        band = image.crop((0, 200, 400, 234))
        assert band.getpixel((395, 30))[0] < 40 and len(band.quantize(16).getcolors()) > 4
