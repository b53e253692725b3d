"""The screenshots of `run.py demo --screenshots`: the whole workflow, in each renderer."""

import pytest
import repository
from PIL import Image

from tools.launcher import screenshots


# The second one's photo is the user's own: no server has it.
@pytest.mark.parametrize("workflow", ["sdxl_weights_edit_photo"])
@pytest.mark.usefixtures("browser")
def test_both_renderers(server, workflow, tmp_path):
    with screenshots.Camera(tmp_path) as camera:
        camera.take(server.url, workflow, repository.named(workflow), run=False)
    ((name, files),) = camera.taken
    assert name == workflow
    assert [file.name for file in files] == [f"{workflow}_classic.jpg", f"{workflow}_nodes2.jpg"]
    for file in files:
        with Image.open(file) as image:
            assert 1000 < image.width <= 2600 and 300 < image.height <= 1500
            assert len(image.quantize(64).getcolors()) > 40  # neither blank nor without its nodes


# What a server says reaches this page late, as it does on a machine that is busy with the run.
_LATE = """() => {
    const listen = WebSocket.prototype.addEventListener
    WebSocket.prototype.addEventListener = function (type, act, ...options) {
        const wait = event => /"execut/.test(event.data) ? 3000 : 0
        const late = event => setTimeout(() => act.call(this, event), wait(event))
        listen.call(this, type, type === "message" ? late : act, ...options)
    }
}"""


@pytest.mark.parametrize("renderer", screenshots.RENDERERS)
def test_a_run_of_a_moment_is_shown_with_its_images(browser, server, renderer, tmp_path):
    opened = screenshots.open_bare(browser, server.url, screenshots.RENDERERS[renderer])
    opened.page.add_init_script(f"({_LATE})()")
    opened.open()
    opened.load(_red_square())
    opened.run()
    with Image.open(screenshots.whole(opened, tmp_path / "red.jpg")) as image:
        colors = image.convert("RGB").resize((64, 64), Image.Resampling.NEAREST).getcolors(4096)
    assert (
        sum(count for count, (red, green, blue) in colors if red > 200 and max(green, blue) < 60)
        > 64
    )


def _red_square() -> dict:
    """A workflow that is done in an instant."""
    sizes = {"size": [260, 330], "flags": {}, "mode": 0, "properties": {}}
    made = {"inputs": [], "outputs": [{"name": "IMAGE", "type": "IMAGE", "links": [1]}]}
    shown = {"inputs": [{"name": "images", "type": "IMAGE", "link": 1}], "outputs": []}
    square, preview = {"widgets_values": [512, 512, 1, 0xFF0000]}, {"widgets_values": []}
    return {
        "nodes": [
            {"id": 1, "type": "EmptyImage", "pos": [0, 0], "order": 0, **made, **square, **sizes},
            {
                "id": 2,
                "type": "PreviewImage",
                "pos": [320, 0],
                "order": 1,
                **shown,
                **preview,
                **sizes,
            },
        ],
        "links": [[1, 1, 0, 2, 0, "IMAGE"]],
        "groups": [],
        "last_node_id": 2,
        "last_link_id": 1,
        "version": 0.4,
    }


def test_close_ups_are_of_nodes_with_panels():
    panels = (repository.ROOT / "web" / "glassbox.js").read_text("utf-8")
    for close_up in screenshots.CLOSE_UPS:
        assert f"{close_up.node}:" in panels
        assert f'"{close_up.node}"' in repository.named(close_up.workflow).read_text("utf-8")
