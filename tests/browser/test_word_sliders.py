"""The sliders of Edit by Words on a real canvas: one for each edit that its text names."""

import canvas_page
from playwright.sync_api import expect

from tools.workflows.canvas import make

pytestmark = canvas_page.EACH_RENDERER

_NODE = "GBX_EditByWords"


def _describe(w):
    w.note("Words", "One.", "Two.", "Three.")
    w.group("Words")
    model, clip, _ = w.add("GBX_LoadDemoModel")
    _, report = w.add(_NODE, model=model, clip=clip, edits="")
    w.add("PreviewAny", source=report)


def test_each_edit_of_the_text_has_a_slider(canvas, object_info):
    canvas.load(make("words", _describe, object_info))
    canvas.look_at(_NODE)
    panel = canvas.page.locator(".glassbox-sliders")
    expect(panel.get_by_role("status")).to_contain_text("Write words and a strength")
    canvas.set(_NODE, "edits", "brown hair -> red hair: 2, beard: -1")
    expect(panel.locator(".glassbox-row")).to_have_count(2)
    hair = panel.get_by_label("Strength of brown hair -> red hair, as a number")
    expect(hair).to_have_value("2")
    hair.fill("1.5")
    hair.press("Enter")
    entry = next(one for one in canvas.prompt().values() if one["class_type"] == _NODE)
    assert entry["inputs"]["edits"] == "brown hair -> red hair: 1.5, beard: -1"
    expect(panel.get_by_role("status")).to_have_text(
        "Words: 2 of 2 in use; 1 is the changed prompt"
    )
    canvas.run()
    assert canvas.errors == []
