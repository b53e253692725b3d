"""The panel of Sliders on a real canvas: a LoRA is added, moved, undone, saved and opened again."""

import json

import canvas_page
import pytest
import torch
from playwright.sync_api import expect
from safetensors.torch import save_file

from tools.workflows.canvas import make

pytestmark = canvas_page.EACH_RENDERER

_NODE = "GBX_Sliders"
_LABELS = {"glassbox_slider": json.dumps({"increase": "very old", "decrease": "young"})}


def _describe(w):
    w.note("Sliders", "One.", "Two.", "Three.")
    w.group("Sliders")
    model, _, _ = w.add("GBX_LoadDemoModel")
    _, _, label = w.add(_NODE, model=model, edits="browser/OLD: 0.5")
    w.add("PreviewAny", source=label)


@pytest.fixture
def sliders(canvas, request, object_info):
    """The panel of a fresh node, with two LoRAs to choose from."""
    server = request.getfixturevalue(request.node.callspec.params["canvas"][0])
    folder = server.base / "models" / "loras" / "browser"
    folder.mkdir(parents=True, exist_ok=True)
    save_file({"nothing": torch.zeros(1)}, folder / "old.safetensors", _LABELS)
    save_file({"nothing": torch.zeros(1)}, folder / "film.safetensors")
    canvas.load(make("sliders", _describe, object_info))
    canvas.page.locator("body").press("r")  # earlier answers are forgotten
    canvas.look_at(_NODE)
    panel = canvas.page.locator(".glassbox-sliders")
    expect(panel.locator(".glassbox-ends").first).to_have_text("youngvery old")
    return panel


def _number(panel, name: str):
    return panel.get_by_label(f"Strength of {name}, as a number")


def test_from_adding_a_lora_to_opening_the_file_again(canvas, sliders):
    expect(_number(sliders, "browser/old")).to_have_value("0.5")
    expect(sliders.locator(".glassbox-strange")).to_have_count(0)
    canvas.pause()
    sliders.get_by_label("Add a LoRA").select_option("browser/film")
    expect(_number(sliders, "browser/film")).to_have_value("1")
    expect(sliders.get_by_role("status")).to_contain_text("2 of 2 in use")
    canvas.pause()
    with canvas.queued(_NODE, "edits") as queued:
        with canvas.page.expect_response(canvas_page.PROMPT):
            sliders.get_by_label("Live").check()
        with canvas.page.expect_response(canvas_page.PROMPT):
            _number(sliders, "browser/film").fill("-0.25")
            _number(sliders, "browser/film").press("Tab")
    before = "browser/OLD: 0.5, browser/film: "
    assert queued == [f"{before}1", f"{before}-0.25"]
    canvas.pause()
    _number(sliders, "browser/film").blur()
    canvas.undo()
    expect(_number(sliders, "browser/film")).to_have_value("1")
    canvas.pause()
    sliders.get_by_role("button", name="Reset", exact=True).click()
    text = "browser/old: 0, browser/film: 0"
    assert canvas.value(_NODE, "edits") == text
    canvas.load(canvas.saved())
    canvas.look_at(_NODE)
    expect(_number(sliders, "browser/film")).to_have_value("0")
    assert canvas.value(_NODE, "edits") == text
    sliders.get_by_label("Remove browser/film").click()
    assert canvas.value(_NODE, "edits") == "browser/old: 0"
    canvas.set(_NODE, "edits", "nobody: 1")
    expect(sliders.get_by_role("status")).to_have_text("There is no LoRA 'nobody' in models/loras.")
    assert canvas.errors == []
