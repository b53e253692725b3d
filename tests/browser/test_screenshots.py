"""The screenshots of `run.py demo --screenshots`: the whole workflow, in each renderer."""

import pytest
import repository
from PIL import Image

from tools.launcher import screenshots

_NAME = "sd15_noise_immiscible_stock_ksampler"


@pytest.mark.usefixtures("browser")
def test_both_renderers(server, tmp_path):
    path = next(path for path in repository.CHECKPOINT_WORKFLOWS if path.stem == _NAME)
    with screenshots.Camera(tmp_path) as camera:
        camera.take(server.url, path, run=False)
    ((name, files),) = camera.taken
    assert name == _NAME and [file.name for file in files] == [f"{_NAME}_classic.jpg", f"{_NAME}_nodes2.jpg"]
    for file in files:
        with Image.open(file) as image:
            assert 1000 < image.width <= 2600 and 300 < image.height <= 1500
            assert len(image.quantize(64).getcolors()) > 40  # neither blank nor without its nodes


def test_close_ups_are_of_nodes_with_panels():
    panels = (repository.ROOT / "web" / "glassbox.js").read_text("utf-8")
    for close_up in screenshots.CLOSE_UPS:
        assert f"{close_up.node}:" in panels
        assert f'"{close_up.node}"' in (repository.ROOT / "workflows" / f"{close_up.workflow}.json").read_text("utf-8")
