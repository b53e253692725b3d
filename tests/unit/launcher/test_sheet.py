"""The contact sheet."""

from __future__ import annotations

import pytest
from PIL import Image

from tools.launcher import sheet


@pytest.mark.parametrize("count", [1, 3, 5])
def test_every_image_is_on_the_sheet(tmp_path, count):
    colors = [(200, 10 * index, 30) for index in range(count)]
    files = []
    for index, color in enumerate(colors):
        files.append(tmp_path / f"{index}.png")
        Image.new("RGB", (128, 64 + index), color).save(files[-1])
    sheet.write(
        [("demo_a_long_name_that_does_not_fit_below_the_image", files[:1]), ("demo_b", files[1:])],
        tmp_path / "s.png",
    )
    with Image.open(tmp_path / "s.png") as page:
        found = {color for _, color in page.getcolors(page.width * page.height)}
        assert page.width <= 2000
    assert set(colors) <= found


def test_a_transparent_image_is_fine(tmp_path):
    Image.new("RGBA", (16, 16), (0, 0, 0, 0)).save(tmp_path / "a.png")
    sheet.write([("demo_a", [tmp_path / "a.png"])], tmp_path / "s.png")
    assert (tmp_path / "s.png").is_file()


def test_a_name_is_written_as_it_is(tmp_path):
    Image.new("RGB", (128, 128)).save(tmp_path / "a.png")
    for number, name in enumerate(("person_0013", "person 0013")):
        sheet.write([(name, [tmp_path / "a.png"])], tmp_path / f"sheet_{number}.png")
    assert (tmp_path / "sheet_0.png").read_bytes() != (tmp_path / "sheet_1.png").read_bytes()


def test_small_images_of_one_size_that_follow_each_other_share_a_tile(tmp_path):
    files = [tmp_path / f"{index}.png" for index in range(9)]
    for file in files:
        Image.new("RGB", (64, 64), (10, 20, 30)).save(file)
    sheet.write([("demo_batch", files)], tmp_path / "batch.png")
    sheet.write([("demo_single", files[:1])], tmp_path / "single.png")
    with Image.open(tmp_path / "batch.png") as batch, Image.open(tmp_path / "single.png") as single:
        assert batch.size == single.size


def test_a_batch_has_a_tile_of_its_own(tmp_path):
    files = [tmp_path / f"{index}.png" for index in range(8)]
    for file in files:
        Image.new("RGB", (64, 64), (10, 20, 30)).save(file)
    sheet.write(
        [("demo_batches", [sheet.Batch(files[:4]), sheet.Batch(files[4:])])], tmp_path / "two.png"
    )
    sheet.write([("demo_batch", [sheet.Batch(files)])], tmp_path / "one.png")
    sheet.write(
        [("demo_singles", [sheet.Batch(files[:1]), sheet.Batch(files[1:2]), files[2], files[3]])],
        tmp_path / "singles.png",
    )
    with (
        Image.open(tmp_path / "two.png") as two,
        Image.open(tmp_path / "one.png") as one,
        Image.open(tmp_path / "singles.png") as singles,
    ):
        assert two.width > one.width == singles.width


def test_titles_stand_below_their_images(tmp_path):
    files = [tmp_path / f"{index}.png" for index in range(2)]
    for file in files:
        Image.new("RGB", (64, 64), (10, 20, 30)).save(file)

    def written(*titles: str) -> tuple[tuple[int, int], bytes]:
        sheet.write(
            [
                (
                    "demo",
                    [sheet.Batch([file], title) for file, title in zip(files, titles, strict=True)],
                )
            ],
            tmp_path / "s.png",
        )
        with Image.open(tmp_path / "s.png") as page:
            return page.size, page.tobytes()

    without, titled, others = (
        written("", ""),
        written("before", "after"),
        written("before", "later"),
    )
    assert titled[0][0] > without[0][0], "images with titles share no tile"
    assert titled[0] == others[0] and titled[1] != others[1]
