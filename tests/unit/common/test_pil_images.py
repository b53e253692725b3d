"""Images of every kind as three colors."""

import numpy as np
import pytest
from glassbox.nodes.common import pil_images
from PIL import Image

_RAMP = np.linspace(0, 255, 48).round().astype(np.uint8).reshape(6, 8)


@pytest.mark.parametrize("mode", ["I;16", "I", "L", "LA", "RGBA", "P", "RGB"])
def test_a_file_of_every_mode_keeps_its_shades(tmp_path, mode):
    """Against the same image in 8 bits; 16 bits are 257 times as much."""
    path = tmp_path / f"ramp.{'tif' if mode == 'I' else 'png'}"
    wide = {"I;16": np.uint16, "I": np.int32}.get(mode)
    image = Image.fromarray(_RAMP.astype(wide) * 257) if wide else Image.fromarray(_RAMP).convert(mode)
    image.save(path)
    with Image.open(path) as opened:
        found = np.asarray(pil_images.in_8_bits(opened))
    assert found.shape == (6, 8, 3) and (found == _RAMP[..., None]).all()
