"""The sliders of Mix Steering Directions on a real canvas: the panel of W2W Edit, with the names of
the directions.
"""

import canvas_page
import pytest
from playwright.sync_api import expect

from tools.workflows.canvas import make

pytestmark = canvas_page.EACH_RENDERER

_NODE, _PROMPTS = "GBX_MixSteeringDirections", "GBX_PromptSteeringDirection"
_SETTINGS = {
    "toward_prompts": "portrait, smiling",
    "away_prompts": "portrait",
    "preset": "custom_ids",
    "ids": "mid-vit-out",
    "steps": 1,
}


def _describe(w):
    w.note("Directions", "One.", "Two.", "Three.")
    w.group("Directions")
    model, clip, _ = w.add("GBX_LoadDemoModel")
    latent = w.add("EmptyLatentImage", width=128, height=128)
    given = {"model": model, "clip": clip, "latent": latent}
    skin, _ = w.add(_PROMPTS, **given, **_SETTINGS, name="black skin")

    def inside(w, **given):
        return w.add(_PROMPTS, **given, **_SETTINGS)[0]

    hair, smile = (w.subgraph(name, inside, **given, name=name) for name in ("pink hair", "smile"))
    file, _ = w.add(
        "GBX_LoadSteeringDirection", file=w.add("GBX_SaveSteeringDirection", direction=smile)
    )
    directions = {"direction_1": skin, "direction_2": hair, "direction_3": file}
    _, report = w.add(_NODE, edits="black skin: 0.5", **directions)
    w.add("PreviewAny", source=report)


@pytest.fixture
def sliders(canvas, object_info):
    canvas.load(make("directions", _describe, object_info))
    canvas.look_at(_NODE)
    panel = canvas.page.locator(".glassbox-sliders")
    expect(panel.locator(".glassbox-row")).to_have_count(2)
    return panel


def _number(panel, name: str):
    return panel.get_by_label(f"Strength of {name}, as a number")


def test_names_come_from_the_nodes_before(canvas, sliders):
    """Of a node, of one inside a subgraph, and not yet of a file."""
    expect(_number(sliders, "black skin")).to_have_value("0.5")
    expect(_number(sliders, "pink hair")).to_have_value("0")
    expect(sliders.get_by_role("status")).to_have_text(
        "The names of the directions show after a run."
    )
    canvas.set(_PROMPTS, "name", "")
    sliders.hover()
    expect(_number(sliders, "direction_1")).to_have_value("0")


def test_a_number_is_written_to_the_text(canvas, sliders):
    _number(sliders, "pink hair").fill("-0.25")
    _number(sliders, "pink hair").press("Tab")
    edits = "black skin: 0.5, pink hair: -0.25"
    assert (
        next(
            one["inputs"]["edits"] for one in canvas.prompt().values() if one["class_type"] == _NODE
        )
        == edits
    )
    sliders.get_by_role("button", name="Reset", exact=True).click()
    assert canvas.value(_NODE, "edits") == ""


def test_live_queues_a_moved_slider(canvas, sliders):
    with canvas.queued(_NODE, "edits") as queued:
        with canvas.page.expect_response(canvas_page.PROMPT):
            sliders.get_by_label("Live").check()
        with canvas.page.expect_response(canvas_page.PROMPT):
            _number(sliders, "black skin").fill("0.25")
            _number(sliders, "black skin").press("Tab")
    assert queued == ["black skin: 0.5", "black skin: 0.25"]


def test_the_name_of_a_file_shows_after_a_run(canvas, sliders):
    canvas.run()
    expect(_number(sliders, "smile")).to_be_enabled()
    expect(sliders.get_by_role("status")).to_contain_text(
        "1 of 3 in use; 1 is the direction as it was computed"
    )
    canvas.set(_NODE, "edits", "smiles: 1")
    expect(sliders.get_by_role("status")).to_have_text("No direction is named 'smiles'.")
    assert canvas.errors == []
