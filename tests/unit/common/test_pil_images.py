"""Images of every kind as three colors."""

import numpy as np
import pytest
from glassbox.nodes.common import pil_images
from PIL import Image, JpegImagePlugin

_RAMP = np.linspace(0, 255, 48).round().astype(np.uint8).reshape(6, 8)


@pytest.mark.parametrize("mode", ["I;16", "I", "L", "LA", "RGBA", "P", "RGB"])
def test_a_file_of_every_mode_keeps_its_shades(tmp_path, mode):
    """Against the same image in 8 bits; 16 bits are 257 times as much."""
    path = tmp_path / f"ramp.{'tif' if mode == 'I' else 'png'}"
    wide = {"I;16": np.uint16, "I": np.int32}.get(mode)
    image = (
        Image.fromarray(_RAMP.astype(wide) * 257) if wide else Image.fromarray(_RAMP).convert(mode)
    )
    image.save(path)
    with Image.open(path) as opened:
        found = np.asarray(pil_images.in_8_bits(opened))
    assert found.shape == (6, 8, 3) and (found == _RAMP[..., None]).all()


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "L", "P", "I;16"])
def test_a_large_image_is_reduced_before_it_is_converted(tmp_path, mode):
    """To no less than what is needed; the mean of the shades stays within half a level of 8
    bits.
    """
    shades = np.tile(np.arange(0, 240, dtype=np.uint8), (200, 3))
    image = (
        Image.fromarray(shades.astype(np.uint16) * 257)
        if mode == "I;16"
        else Image.fromarray(shades).convert(mode)
    )
    image.save(tmp_path / "large.png")
    opened = pil_images.open_image(tmp_path / "large.png", (40, 60))
    assert opened.size == (144, 40)  # by the whole factor 5
    mean = float(pil_images.from_pil(pil_images.in_8_bits(opened)).mean())
    assert mean == pytest.approx(float(shades.mean()) / 255, abs=0.5 / 255)
    assert pil_images.open_image(tmp_path / "large.png").size == (720, 200)


def test_a_photograph_is_decoded_small(tmp_path, monkeypatch):
    """A JPEG is requested at a smaller size before its pixels are decoded."""
    Image.new("RGB", (1600, 1200), (200, 10, 30)).save(tmp_path / "large.jpg")
    decoded = []
    load = JpegImagePlugin.JpegImageFile.load
    monkeypatch.setattr(
        JpegImagePlugin.JpegImageFile,
        "load",
        lambda self: (decoded.append(self.size), load(self))[1],
    )
    opened = pil_images.open_image(tmp_path / "large.jpg", (200, 200))
    assert decoded and max(decoded) <= (400, 300)
    assert 200 <= opened.height < 400


_DDS = b"DDS " + (124).to_bytes(4, "little") + bytes(72) + bytes([32, 0, 0, 0, 64]) + bytes(60)


@pytest.mark.parametrize("content", [b"", _DDS], ids=["empty", "DDS of an unknown kind"])
def test_a_damaged_image_is_one_reason(tmp_path, content):
    (tmp_path / "a.png").write_bytes(content)
    with pytest.raises(
        ValueError,
        match=r"^cannot be read \((UnidentifiedImageError|NotImplementedError|OSError)\)$",
    ):
        pil_images.open_image(tmp_path / "a.png")
