"""Thumbnails come from the pictures of the demo run."""

import pytest
from PIL import Image

from launch.errors import LaunchError
from workflows import FOLDER, thumbnails


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(thumbnails, "FOLDER", tmp_path)
    return tmp_path


@pytest.mark.parametrize(("count", "size"), [(1, (400, 400)), (2, (400, 200)), (4, (400, 400)), (12, (400, 400))])
def test_the_first_pictures_are_tiled(folder, count, size):
    for number in range(1, count + 1):
        Image.new("RGB", (128, 128), (20 * number, 0, 0)).save(folder / f"demo_a_{number}.png")
    target = thumbnails.write("demo_a", folder)
    with Image.open(target) as picture:
        assert (target.name, picture.format, picture.size) == ("demo_a.jpg", "JPEG", size)
        assert abs(picture.getpixel((10, 10))[0] - 20) < 4
        if count > 1:
            assert abs(picture.getpixel((size[0] - 10, 10))[0] - 40) < 4


def test_chosen_pictures_stand_in_rows_of_three(folder, monkeypatch):
    monkeypatch.setattr(thumbnails, "_CHOSEN", {"demo_a": (5, 1, 2, 3, 4, 6)})
    for number in range(1, 8):
        Image.new("RGB", (128, 128), (30 * number, 0, 0)).save(folder / f"demo_a_{number}.png")
    with Image.open(thumbnails.write("demo_a", folder)) as picture:
        assert picture.size == (400, 266)
        read = [picture.getpixel((60 + 133 * column, 60 + 133 * row))[0] for row in (0, 1) for column in (0, 1, 2)]
    assert read == pytest.approx([150, 30, 60, 90, 120, 180], abs=4)


def test_pictures_are_chosen_for_workflows_that_are_there():
    assert all((FOLDER / f"{name}.json").exists() for name in thumbnails._CHOSEN)


def test_a_workflow_without_a_picture_is_said(folder):
    Image.new("RGB", (8, 8)).save(folder / "demo_ab_1.png")
    with pytest.raises(LaunchError, match=r"no picture of demo_a: make it with python run\.py demo"):
        thumbnails.write("demo_a", folder)


def test_a_wide_picture_keeps_its_shape(folder):
    Image.new("RGB", (200, 50), "black").save(folder / "demo_a_1.png")
    with Image.open(thumbnails.write("demo_a", folder)) as picture:
        assert picture.getpixel((200, 200))[0] < 10
        assert picture.getpixel((200, 20))[0] > 245
