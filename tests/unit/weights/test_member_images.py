"""People's folders as people have them: every kind of image is read as it looks, or left with one
reason.
"""

import os
import sys

import numpy as np
import pytest
import torch
from glassbox.nodes.weights import member_folders
from PIL import Image

SIZE = (6, 4)  # width, height
RED, TEAL = (200, 30, 40), (20, 140, 150)


def half_and_half():
    """The left half red and the right half teal."""
    image = Image.new("RGB", SIZE, TEAL)
    image.paste(RED, (0, 0, 3, 4))
    return image


def read(path):
    return member_folders.MemberImage(path, "").read()


def assert_half_and_half(pixels, tolerance):
    assert pixels.shape == (4, 6, 3) and pixels.dtype == torch.float32
    for column, color in ((1, RED), (4, TEAL)):
        assert (pixels[1:3, column] - torch.tensor(color) / 255).abs().max() <= tolerance


@pytest.mark.parametrize(
    ("mode", "ending", "tolerance"),
    [
        ("RGB", "png", 1e-6),
        ("P", "png", 1e-6),
        ("RGBA", "png", 1e-6),
        ("RGB", "bmp", 1e-6),
        ("CMYK", "jpg", 0.1),
    ],
)
def test_colors_of_each_mode(tmp_path, mode, ending, tolerance):
    path = tmp_path / f"a.{ending}"
    image = half_and_half().resize((6, 4))
    if ending == "jpg":  # whose blocks must not mix the halves
        image = half_and_half().resize((96, 64), Image.Resampling.NEAREST)
    image.convert(mode, **({"palette": Image.Palette.ADAPTIVE} if mode == "P" else {})).save(path)
    pixels, opaque = read(path)
    assert opaque is None
    if ending == "jpg":
        pixels = pixels[8::16, 8::16]
    assert_half_and_half(pixels, tolerance)


def test_gray_images_of_8_and_16_bits_and_of_one(tmp_path):
    ramp = np.arange(0, 24, dtype=np.uint8).reshape(4, 6) * 10
    Image.fromarray(ramp).save(tmp_path / "a.png")
    Image.fromarray(ramp.astype(np.uint16) * 257).save(tmp_path / "b.png")
    Image.fromarray(ramp > 100).save(tmp_path / "c.png")
    expected = torch.from_numpy(ramp).float()[:, :, None].expand(4, 6, 3) / 255
    assert torch.allclose(read(tmp_path / "a.png")[0], expected)
    assert torch.allclose(read(tmp_path / "b.png")[0], expected, atol=1.01 / 255)
    assert torch.equal(read(tmp_path / "c.png")[0], (expected > 100 / 255).float())


@pytest.mark.parametrize("orientation", [1, 2, 3, 4, 5, 6, 7, 8])
def test_images_are_upright(tmp_path, orientation):
    """Of a photo that its camera says to turn, the turned one is read: by the definition of each of
    eight values.
    """
    turns = {
        1: lambda a: a, 2: lambda a: a[:, ::-1], 3: lambda a: a[::-1, ::-1], 4: lambda a: a[::-1],
        5: lambda a: a.swapaxes(0, 1), 6: lambda a: np.rot90(a, -1),
        7: lambda a: a[::-1, ::-1].swapaxes(0, 1),
        8: lambda a: np.rot90(a, 1),
    }  # fmt: skip
    stored = np.random.default_rng(3).integers(0, 256, (4, 6, 3), dtype=np.uint8)
    exif = Image.Exif()
    exif[0x0112] = orientation
    Image.fromarray(stored).save(tmp_path / "a.png", exif=exif)
    expected = torch.from_numpy(turns[orientation](stored).copy()).float() / 255
    assert torch.allclose(read(tmp_path / "a.png")[0], expected)


def test_transparent_pixels_do_not_count(tmp_path):
    image = half_and_half().convert("RGBA")
    image.putpixel((5, 1), (*TEAL, 0))
    image.putpixel((0, 3), (*RED, 51))
    image.save(tmp_path / "a.png")
    _, opaque = read(tmp_path / "a.png")
    expected = torch.ones(4, 6)
    expected[1, 5], expected[3, 0] = 0.0, 0.2
    assert torch.allclose(opaque, expected)
    Image.new("RGBA", SIZE, (*RED, 0)).save(tmp_path / "b.png")
    with pytest.raises(ValueError, match="is transparent everywhere"):
        read(tmp_path / "b.png")


def test_of_a_moving_image_the_first_frame(tmp_path):
    later = Image.new("RGB", SIZE, (255, 255, 255))
    half_and_half().save(tmp_path / "a.webp", save_all=True, append_images=[later], lossless=True)
    half_and_half().save(tmp_path / "b.png", save_all=True, append_images=[later])
    half_and_half().save(tmp_path / "c.gif", save_all=True, append_images=[later])
    for name in ("a.webp", "b.png", "c.gif"):
        assert_half_and_half(read(tmp_path / name)[0], 1e-6)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"no image",
        b"\x89PNG\r\n\x1a\n" + bytes(40),
        b"\xff\xd8\xff\xe0" + bytes(9),
        b"GIF89a\xff\xff\xff\xff" + bytes(9),
        b"RIFF\xff\xff\xff\xffWEBPVP8 " + bytes(9),
        b"BM" + bytes(60),
        b"II*\x00\xff\xff\xff\xff",
        b"\x00\x00\x01\x00\xff\xff" + bytes(20),
        b"P6 99999999 99999999 255 ",
        b"\x0a\x05\x01\x08" + bytes(130),
        b"\x01\xda\x01\x01" + bytes(520),
    ],
)
def test_what_is_no_image_is_one_reason(tmp_path, content):
    (tmp_path / "a.png").write_bytes(content)
    with pytest.raises(ValueError, match=r"^cannot be read \(\w+\)$"):
        read(tmp_path / "a.png")


def test_a_cut_image_is_one_reason(tmp_path):
    noise = np.random.default_rng(1).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    for ending in ("png", "jpg", "webp", "bmp"):
        path = tmp_path / f"a.{ending}"
        Image.fromarray(noise).save(path)
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
        with pytest.raises(ValueError, match="cannot be read"):
            read(path)


def test_an_image_of_absurd_size_is_one_reason(tmp_path, monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10)  # it is an error from twice as many on
    half_and_half().save(tmp_path / "a.png")
    with pytest.raises(ValueError, match="cannot be read"):
        read(tmp_path / "a.png")


@pytest.mark.skipif(
    sys.platform == "win32", reason="has no pipes in folders, and links need a right"
)
def test_pipes_and_dangling_links_are_not_opened(tmp_path):
    for name in ("ann", "<img onerror=x>", "Zoë 雪"):
        (tmp_path / name).mkdir()
        half_and_half().save(tmp_path / name / "a.png")
    (tmp_path / "ann" / "a.txt").write_bytes(b"a \x00photo\n of \x1b[31mann")
    os.mkfifo(tmp_path / "ann" / "b.png")
    (tmp_path / "ann" / "c.png").symlink_to(tmp_path / "nothing.png")
    (tmp_path / "ann" / "d.png").mkdir()
    (tmp_path / "empty").mkdir()
    found = member_folders.find_members(tmp_path, "someone")
    assert {
        name: [image.path.name for image in images] for name, images in found.members.items()
    } == {
        "ann": ["a.png"],
        "<img onerror=x>": ["a.png"],
        "Zoë 雪": ["a.png"],
    }
    assert found.skipped == {"empty": "holds no image"}
    assert (
        found.members["ann"][0].caption.startswith("a ")
        and "\n" not in found.members["ann"][0].caption
    )
    assert found.members["Zoë 雪"][0].caption == "someone"


@pytest.mark.skipif(sys.platform == "win32", reason="links need a right")
def test_a_linked_folder_is_a_person_and_one_without_images_is_named(tmp_path):
    """Also a link that leads out, to a folder of anything but images."""
    elsewhere, people = tmp_path / "elsewhere", tmp_path / "people"
    for folder in (elsewhere / "ann", elsewhere / "system", people / "bert"):
        folder.mkdir(parents=True)
    for folder in (elsewhere / "ann", people / "bert"):
        half_and_half().save(folder / "a.png")
    (elsewhere / "system" / "passwd").write_text("root:x:0:0")
    (people / "ann").symlink_to(elsewhere / "ann", target_is_directory=True)
    (people / "system").symlink_to(elsewhere / "system", target_is_directory=True)
    (people / "gone").symlink_to(elsewhere / "nothing", target_is_directory=True)
    found = member_folders.find_members(people, "someone")
    assert set(found.members) == {"ann", "bert"} and found.skipped == {"system": "holds no image"}
    assert_half_and_half(found.members["ann"][0].read()[0], 1e-6)


@pytest.mark.skipif(sys.platform == "win32", reason="links need a right")
def test_a_link_to_a_file_that_is_no_image_is_one_reason(tmp_path):
    secret = tmp_path / "passwd"
    secret.write_text("root:x:0:0")
    for name in ("ann", "bert"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.png").symlink_to(secret)
    (image,) = member_folders.find_members(tmp_path, "someone").members["ann"]
    with pytest.raises(ValueError, match=r"^cannot be read \(\w+\)$"):
        image.read()


@pytest.mark.parametrize("size", [(1, 4000), (4000, 1), (1, 1)])
def test_lines_and_points_are_images(tmp_path, size):
    Image.new("RGB", size, TEAL).save(tmp_path / "a.png")
    pixels, opaque = read(tmp_path / "a.png")
    assert pixels.shape == (size[1], size[0], 3) and opaque is None
    assert (pixels - torch.tensor(TEAL) / 255).abs().max() < 1e-6


def test_gray_with_transparency_and_every_first_frame(tmp_path):
    gray = Image.new("LA", SIZE, (120, 255))
    gray.putpixel((0, 0), (120, 0))
    gray.save(tmp_path / "a.png")
    pixels, opaque = read(tmp_path / "a.png")
    assert pixels.shape == (4, 6, 3) and (pixels[1:] - 120 / 255).abs().max() < 1e-6
    assert float(opaque[0, 0]) == 0 and float(opaque.sum()) == 23
