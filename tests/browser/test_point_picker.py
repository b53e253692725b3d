"""The point picker of Activation Similarity on a real canvas, used as a person would."""

import itertools

import canvas_page
import pytest
from playwright.sync_api import expect

from tools.workflows.canvas import make

pytestmark = canvas_page.EACH_RENDERER

_NODE, _SIDE = "GBX_ActivationSimilarity", 128
_OPACITIES = itertools.count(1)


def _describe(w):
    w.note("Points", "One.", "Two.", "Three.")
    w.group("Points")
    model, clip, vae = w.add("GBX_LoadDemoModel")
    image, *_ = w.add("GBX_DemoPicture", count=2)
    text = w.add("CLIPTextEncode", clip=clip, text="portrait")
    tapped, _ = w.add("GBX_LayerActivationTap", model=model, positive=text, image=image, vae=vae)
    shown, _ = w.add(_NODE, activations=tapped, image=image, points="50%, 25%\n(100, 32)")
    w.add("PreviewImage", images=shown)


@pytest.fixture
def picker(canvas, object_info):
    """The picker of a node that has run, with its image loaded."""
    saved = make("points", _describe, object_info)
    canvas.load(saved)
    canvas.set(_NODE, "opacity", next(_OPACITIES) / 1000)  # a cached node sends nothing
    canvas.run()
    canvas.look_at(_NODE)
    shown = canvas.page.locator(".glassbox-picker")
    expect(shown.locator(".glassbox-dot")).to_have_count(2)
    return shown


@pytest.fixture
def at(canvas, picker):
    """Where a point of the image is on the page."""

    def place(x: float, y: float) -> tuple[float, float]:
        box = picker.locator("image").bounding_box()
        return box["x"] + x / _SIDE * box["width"], box["y"] + y / _SIDE * box["height"]

    return place


def _queued(canvas) -> str:
    return next(
        entry["inputs"]["points"]
        for entry in canvas.prompt().values()
        if entry["class_type"] == _NODE
    )


def _points(canvas) -> list[tuple[float, float]]:
    return [tuple(float(part) for part in line.split(",")) for line in _queued(canvas).splitlines()]


def test_mouse_adds_and_moves_points(canvas, picker, at):
    canvas.page.mouse.click(*at(20, 100))
    before, after = _queued(canvas).rsplit("\n", 1)
    assert before == "50%, 25%\n(100, 32)", "what was not touched has changed"
    assert [float(part) for part in after.split(",")] == pytest.approx([20, 100], abs=1)
    canvas.page.mouse.move(*at(64, 32))
    canvas.page.mouse.down()
    canvas.page.mouse.move(*at(40, 60), steps=5)
    canvas.page.mouse.up()
    first = [float(part) for part in _queued(canvas).splitlines()[0].split(",")]
    assert first == pytest.approx([40, 60], abs=1)
    expect(picker.locator(".glassbox-dot")).to_have_count(3)
    canvas.page.mouse.dblclick(*at(100, 32))
    expect(picker.locator(".glassbox-dot")).to_have_count(2)
    assert len(_points(canvas)) == 2
    assert canvas.errors == []


def test_the_hint_fits_the_node(picker):
    status = picker.locator(".glassbox-status")
    expect(status).to_contain_text("double-click to remove.")
    fits = (
        "element => element.scrollHeight <= element.clientHeight && element.scrollWidth <= "
        "element.clientWidth"
    )
    assert status.evaluate(fits)


def test_keyboard_moves_points(canvas, picker):
    picker.locator(".glassbox-dot").nth(1).focus()
    for key in ("ArrowRight", "Shift+ArrowDown"):
        canvas.page.keyboard.press(key)
    assert _queued(canvas) == "50%, 25%\n101, 42"
    canvas.page.keyboard.press("Delete")
    assert _queued(canvas) == "50%, 25%"
    assert _NODE in [node["type"] for node in canvas.saved()["nodes"]]
    picker.get_by_role("button", name="Clear").click()
    assert _queued(canvas) == ""


def test_saved_loaded_copied_undone(canvas, picker, at):
    canvas.set(_NODE, "points", "")
    canvas.page.mouse.click(*at(30, 30))
    saved = canvas.saved()
    values = next(node["widgets_values"] for node in saved["nodes"] if node["type"] == _NODE)
    assert values[:2] == [0, _queued(canvas)] and len(values) == 5
    assert canvas.copied(_NODE) == values
    canvas.load(saved)
    canvas.look_at(_NODE)
    expect(picker.locator(".glassbox-dot")).to_have_count(1)
    canvas.pause()
    canvas.page.mouse.click(*at(90, 90))
    expect(picker.locator(".glassbox-dot")).to_have_count(2)
    canvas.undo()
    expect(picker.locator(".glassbox-dot")).to_have_count(1)
    assert len(_points(canvas)) == 1


def test_a_missing_image_is_named(canvas, object_info):
    def describe(w):
        w.note("Points", "One.", "Two.", "Three.")
        w.group("Points")
        model, clip, vae = w.add("GBX_LoadDemoModel")
        image, _ = w.add("LoadImage", image="absent.png")
        text = w.add("CLIPTextEncode", clip=clip, text="portrait")
        tapped, _ = w.add(
            "GBX_LayerActivationTap", model=model, positive=text, image=image, vae=vae
        )
        w.add("PreviewImage", images=w.add(_NODE, activations=tapped, image=image)[0])

    canvas.load(make("points", describe, object_info))
    canvas.look_at(_NODE)
    expect(canvas.page.locator(".glassbox-picker")).to_contain_text(
        "There is no image 'absent.png'."
    )


def test_in_a_subgraph_the_new_point_is_dragged(canvas, picker, at):
    """The text belongs to the subgraph's node, which notifies the panel inside later."""
    canvas.set(_NODE, "opacity", 0.3)  # a cached node does not send its new place
    canvas.into_subgraph(_NODE, promoted="points")
    canvas.run()
    expect(picker.locator(".glassbox-dot")).to_have_count(2)
    canvas.page.mouse.move(*at(20, 100))
    canvas.page.mouse.down()
    canvas.page.mouse.move(*at(60, 60), steps=4)
    canvas.page.mouse.up()
    *before, after = _queued(canvas).splitlines()
    assert before == ["50%, 25%", "(100, 32)"], "an older point has been dragged"
    assert [float(part) for part in after.split(",")] == pytest.approx([60, 60], abs=1)
    assert canvas.errors == []


def test_the_text_and_the_batch_lead(canvas, picker):
    first = picker.locator("image").get_attribute("href")
    canvas.set(_NODE, "points", "10, 10; 20, 20\n30%, 30%")
    expect(picker.locator(".glassbox-dot")).to_have_count(3)
    canvas.set(_NODE, "points", "[[10, 10], [500, 10]]")
    expect(picker.get_by_role("status")).to_contain_text("outside of the image")
    canvas.set(_NODE, "points", "ten, ten")
    expect(picker.get_by_role("status")).to_have_text("'ten, ten' is not a point.")
    canvas.set(_NODE, "image_index", 1)
    expect(picker.locator("image")).not_to_have_attribute("href", first)
    assert canvas.errors == []
