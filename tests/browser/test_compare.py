"""The compare panel of Labeled Sheet on a real canvas, used as a person would."""

import canvas_page
import pytest
from playwright.sync_api import expect

from tools.workflows.canvas import make

pytestmark = canvas_page.EACH_RENDERER

_NODE, _SIDE = "GBX_W2WSheet", 128
_SEEN = "image => [image.naturalWidth, image.naturalHeight, getComputedStyle(image).imageRendering]"


def _describe(w):
    w.note("Sheet", "One.", "Two.", "Three.")
    w.group("Sheet")
    space, _ = w.add("GBX_W2WLoadSpace", space_name="avatars-v2-w2w.safetensors")
    _, _, labels = w.add("GBX_W2WSample", space=space, seed=3, count=3)
    images, _, _ = w.add("GBX_DemoPicture", image_index=0, count=3)
    figure, _ = w.add(_NODE, images=images, labels=labels)
    w.add("PreviewImage", images=figure)


@pytest.fixture
def panel(canvas, object_info):
    """The panel of a node that has run."""
    canvas.load(make("compare", _describe, object_info))
    canvas.run()
    canvas.look_at(_NODE)
    shown = canvas.page.locator(".glassbox-compare")
    expect(shown.get_by_role("slider")).to_be_visible()
    return shown


def test_first_and_last_image_are_compared_pixel_by_pixel(panel):
    selects = panel.get_by_role("combobox")
    assert [select.input_value() for select in selects.all()] == ["0", "2"]
    expect(selects.first.get_by_role("option")).to_have_count(3)
    images = panel.get_by_role("img")
    expect(images).to_have_count(2)
    assert images.first.get_attribute("src") != images.last.get_attribute("src")
    for image in images.all():
        image.evaluate("image => image.decode()")
        assert image.evaluate(_SEEN) == [_SIDE, _SIDE, "pixelated"]


def test_the_divider_follows_the_pointer_and_the_keys(panel):
    divider, left = panel.get_by_role("slider"), panel.get_by_role("img").first
    box = divider.bounding_box()
    divider.click(position={"x": box["width"] / 4, "y": box["height"] / 2})
    assert abs(int(divider.input_value()) - 25) <= 2
    divider.press("Home")
    expect(left).to_have_css("clip-path", "inset(0px 100% 0px 0px)")
    divider.press("ArrowRight")
    expect(left).to_have_css("clip-path", "inset(0px 99% 0px 0px)")


def test_another_image_is_chosen(panel):
    second = panel.get_by_role("img").last
    before = second.get_attribute("src")
    panel.get_by_role("combobox").last.select_option("1")
    expect(second).not_to_have_attribute("src", before)
