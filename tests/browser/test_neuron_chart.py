"""The neuron chart of Neuron Mask Edit on a real canvas, used as a person would."""

import json

import canvas_page
import pytest
from playwright.sync_api import expect

from tools.workflows.canvas import make

pytestmark = canvas_page.EACH_RENDERER

_NODE, _FILE = "GBX_NeuronMaskEdit", "chart_test_mask.json"
_FIRST, _SECOND = (
    f"{place}.transformer_blocks.0.attn2.to_v" for place in ("input_blocks.1.1", "middle_block.1")
)
_Z = {_FIRST: {"3": 6.5, "5": -2.0, "20": 4.0}, _SECOND: {"1": 3.0, "7": 5.0}}
_FILE_TEXT = {
    "format": "glassbox_neuron_mask",
    "format_version": 1,
    "layers": {path: dict.fromkeys(of, 0.0) for path, of in _Z.items()},
    "searches": [
        {
            "prompt": "p",
            "converged": True,
            "neurons": {path: [*map(int, of)] for path, of in _Z.items()},
            "z": _Z,
        }
    ],
    "history": [],
    "fingerprint": {},
}


def _describe(w):
    w.note("Mask", "One.", "Two.", "Three.")
    w.group("Mask")
    model, _, _ = w.add("GBX_LoadDemoModel")
    mask, _, _ = w.add("GBX_LoadNeuronMask", file=_FILE, model=model)
    edited, report = w.add(_NODE, mask=mask, operation="largest_z", count=100)
    w.add("GBX_NemoNeuronMask", model=model, mask=edited)
    w.add("PreviewAny", source=report)


@pytest.fixture
def chart(canvas, object_info):
    """The chart of a node that has run."""
    file = {
        "name": _FILE,
        "mimeType": "application/json",
        "buffer": json.dumps(_FILE_TEXT).encode(),
    }
    canvas.page.request.post(
        f"{canvas.url}/upload/image", multipart={"image": file, "overwrite": "true"}
    )
    canvas.load(make("mask", _describe, object_info))
    canvas.run()
    canvas.look_at(_NODE)
    shown = canvas.page.locator(".glassbox-chart", has=canvas.page.locator(".glassbox-bar"))
    expect(shown.locator(".glassbox-bar")).to_have_count(5)
    return shown


def _bar(chart, number: int):
    return chart.get_by_role("option", name=f"neuron {number} ")


def _queued(canvas) -> tuple[str, str]:
    inputs = next(
        entry["inputs"] for entry in canvas.prompt().values() if entry["class_type"] == _NODE
    )
    return inputs["operation"], inputs["neurons"]


def test_chart_shows_the_mask(canvas, chart):
    assert chart.locator(".glassbox-layer").all_inner_texts() == [
        "input_blocks.1.1 · 3",
        "middle_block.1 · 2",
    ]
    _bar(chart, 3).hover()
    expect(chart.get_by_role("status")).to_have_text("input_blocks.1.1, neuron 3 · z 6.50")
    heights = [bar.bounding_box()["height"] for bar in chart.locator(".glassbox-bar-fill").all()]
    assert sorted(range(5), key=lambda place: heights[place]) == [1, 3, 2, 4, 0]


def test_after_a_run_it_shows_which_neurons_stay(canvas, chart):
    canvas.page.mouse.move(0, 0)
    canvas.set(_NODE, "count", 2)
    expect(chart.get_by_role("status")).to_have_text(
        "5 neurons come in; click one to leave it out."
    )
    canvas.run()
    expect(chart.get_by_role("status")).to_have_text("2 of 5 stay in the mask.")
    on = [
        number
        for number in (3, 5, 20, 1, 7)
        if _bar(chart, number).get_attribute("aria-selected") == "true"
    ]
    assert on == [3, 7]
    _bar(chart, 20).click()
    assert _queued(canvas) == ("keep_named", "input_blocks.1.1 3, 20\nmiddle_block.1 7")


def test_mouse_and_keyboard_select_neurons(canvas, chart):
    _bar(chart, 5).click()
    assert _queued(canvas) == ("drop_named", "input_blocks.1.1 5")
    _bar(chart, 20).click()
    _bar(chart, 7).click()
    assert _queued(canvas) == ("drop_named", "input_blocks.1.1 5, 20\nmiddle_block.1 7")
    _bar(chart, 5).click()
    assert _queued(canvas) == ("drop_named", "input_blocks.1.1 20\nmiddle_block.1 7")
    _bar(chart, 3).focus()
    for key in ("ArrowDown", "Enter"):
        canvas.page.keyboard.press(key)
    assert _queued(canvas)[1] == "input_blocks.1.1 20\nmiddle_block.1 1, 7"
    expect(chart.get_by_role("status")).to_contain_text("neuron 1")
    canvas.set(_NODE, "operation", "keep_named")
    expect(_bar(chart, 3)).to_have_attribute("aria-selected", "false")
    expect(_bar(chart, 20)).to_have_attribute("aria-selected", "true")
    canvas.set(_NODE, "neurons", "nose")
    expect(chart.get_by_role("status")).to_have_text("'nose' names no neuron of this mask.")
    assert canvas.errors == []


def test_saved_loaded_copied_undone_and_run(canvas, chart, object_info):
    fresh = next(
        node for node in make("mask", _describe, object_info)["nodes"] if node["type"] == _NODE
    )
    _bar(chart, 5).click()
    saved = canvas.saved()
    values = next(node["widgets_values"] for node in saved["nodes"] if node["type"] == _NODE)
    assert values == ["drop_named", 100, "input_blocks.1.1 5", *fresh["widgets_values"][3:]]
    assert canvas.copied(_NODE) == values
    canvas.load(saved)
    canvas.look_at(_NODE)
    expect(_bar(chart, 5)).to_have_attribute("aria-selected", "false")
    canvas.pause()
    _bar(chart, 3).click()
    expect(_bar(chart, 3)).to_have_attribute("aria-selected", "false")
    canvas.undo()
    expect(_bar(chart, 3)).to_have_attribute("aria-selected", "true")
    _bar(chart, 5).click()
    assert _queued(canvas) == ("drop_named", "")
    canvas.page.mouse.move(0, 0)
    canvas.run()
    expect(chart.get_by_role("status")).to_have_text("5 of 5 stay in the mask.")
    assert canvas.errors == []


def test_live_queues_a_switched_neuron(canvas, chart):
    with canvas.queued(_NODE, "neurons") as queued:
        with canvas.page.expect_response(canvas_page.PROMPT):
            chart.get_by_label("Live").check()
        with canvas.page.expect_response(canvas_page.PROMPT):
            _bar(chart, 5).click()
    assert queued == ["", "input_blocks.1.1 5"]
    assert canvas.errors == []
