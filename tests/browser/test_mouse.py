"""The first ten templates with mouse and keyboard, in each renderer, as a person tries them."""

import io
import json
from collections import Counter

import canvas_page
import pytest
import repository
from PIL import Image, PngImagePlugin
from playwright.sync_api import expect

from tools.launcher import workflow

pytestmark = [canvas_page.EACH_RENDERER, pytest.mark.slow]

#: Each with the node that one plays with.
_TEN = {
    "demo_weights_edit": "GBX_W2WEdit",
    "demo_weights_sample": "GBX_W2WSample",
    "demo_weights_edit_photo": "GBX_W2WEdit",
    "demo_neurons_find_and_mask": "GBX_NemoNeuronMask",
    "demo_activations_token_heat_map": "GBX_TokenHeatMap",
    "demo_activations_correspondence": "GBX_ActivationCorrespondence",
    "demo_noise_composition": "GBX_CompositionNoise",
    "demo_conditioning_higher_resolution": "GBX_PositionalResample",
    "demo_noise_seed_scout": "GBX_SeedScout",
    "demo_activations_edit_image_by_words": "GBX_EditByWords",
}
#: Two a test: a canvas shows one of them, the other canvas the other.
_PAIRS = list(zip(list(_TEN)[::2], list(_TEN)[1::2], strict=True))
#: Those that run in seconds, of a panel and without.
_RUN = ("demo_weights_edit", "demo_activations_token_heat_map", "demo_noise_composition")
_BESIDE = (1000, 940)  # a place of the page where a copy is pasted
_BYPASSED = 4
# The middle of a node's title on the page.
_TITLE = """type => {
    const { ds, canvas } = app.canvas
    const { pos: [x, y] } = app.graph.nodes.find(node => node.type === type)
    const { left, top } = canvas.getBoundingClientRect()
    const up = LiteGraph.NODE_TITLE_HEIGHT / 2
    return [left + (x + 70 + ds.offset[0]) * ds.scale, top + (y - up + ds.offset[1]) * ds.scale]
}"""
_STATE = """type => {
    const nodes = app.graph.nodes.filter(node => node.type === type)
    return [nodes.length, nodes[0]?.mode, nodes[0] && [...nodes[0].pos].map(Math.round)]
}"""
_DROP = """bytes => {
    const data = new DataTransfer()
    data.items.add(new File([new Uint8Array(bytes)], "output.png", { type: "image/png" }))
    app.canvas.canvas.dispatchEvent(
        new DragEvent("drop", { dataTransfer: data, bubbles: true, cancelable: true }))
}"""

# Of each node that shows an image: how wide it is on the page, 0 for none, and how far it reaches
# beyond the page.
_SHOWN = """() => app.graph.nodes.filter(
    ({ type }) => ["SaveImage", "PreviewImage"].includes(type)).map(node => {
    const { scale, offset } = app.canvas.ds
    const { left, top } = app.canvas.canvas.getBoundingClientRect()
    const element = LiteGraph.vueNodesMode && document.querySelector(`[data-node-id="${node.id}"]`)
    const image = element
        ? [...element.querySelectorAll("img")].find(one => one.naturalWidth) : node.imgs?.[0]
    const box = element ? image?.getBoundingClientRect() : {
        width: node.size[0] * scale,
        right: left + (node.pos[0] + node.size[0] + offset[0]) * scale,
        bottom: top + (node.pos[1] + node.size[1] + offset[1]) * scale
    }
    const beyond = Math.max(box?.right - innerWidth, box?.bottom - innerHeight, 0)
    return [image?.naturalWidth ? box.width : 0, beyond]
})"""
_COUNT_STEPS = """async () => {
    const { api } = await import("/scripts/api.js")
    window.steps = 0
    api.addEventListener("progress", () => { window.steps++ })
}"""
_LAST = """async () => {
    const runs = await (await fetch("/history")).json()
    return Object.values(runs).at(-1)?.status.messages.map(([kind]) => kind)
}"""
_RUN_SECONDS = 600


@pytest.mark.parametrize("two", _PAIRS, ids="-".join)
def test_bypass_copy_move_subgraph_and_undo(canvas, two):
    """What is undone leaves the prompt as it was, and no key reaches what it should not."""
    name = two[canvas.vue]
    type_ = _TEN[name]
    canvas.load(workflow.load(repository.named(name)))
    canvas.pause()
    canvas.look_at(type_)
    prompt, start = canvas.prompt(), canvas.page.evaluate(_STATE, type_)

    def press(keys: str) -> list:
        canvas.page.keyboard.press(keys)
        canvas.pause()
        return canvas.page.evaluate(_STATE, type_)

    def undone() -> list:
        """The state after Ctrl+Z, for which a busy machine takes longer than a pause."""
        state = press("Control+z")
        for _ in range(20):
            if state == start:
                break
            canvas.pause()
            state = canvas.page.evaluate(_STATE, type_)
        return state

    _click_title(canvas, type_)
    assert press("Control+b") == [1, _BYPASSED, start[2]]
    assert press("Control+b") == start
    press("Control+c")
    canvas.page.mouse.move(*_BESIDE)
    assert press("Control+v")[0] == 2
    assert undone() == start
    x, y = canvas.page.evaluate(_TITLE, type_)
    canvas.page.mouse.move(x, y)
    canvas.page.mouse.down()
    canvas.page.mouse.move(x + 40, y + 30, steps=5)
    canvas.page.mouse.up()
    canvas.pause()
    assert canvas.page.evaluate(_STATE, type_)[2] != start[2]
    assert undone() == start
    _click_title(canvas, type_)
    press("Control+Shift+e")
    canvas.pause()  # until the canvas has noted it for its undo
    assert canvas.page.evaluate(_STATE, type_)[0] == 0
    assert Counter(map(_class, canvas.prompt().values())) == Counter(map(_class, prompt.values()))
    assert undone() == start
    assert canvas.prompt() == prompt
    assert canvas.errors == []


@pytest.mark.parametrize("two", _PAIRS, ids="-".join)
def test_saved_loaded_and_dropped_as_an_image(canvas, two):
    """The prompt stays, also where the workflow comes out of the image that it has made."""
    name = two[not canvas.vue]
    canvas.load(workflow.load(repository.named(name)))
    prompt, saved = canvas.prompt(), canvas.saved()
    canvas.load(saved)
    assert canvas.prompt() == prompt
    canvas.load(workflow.load(repository.named("demo_world_image_to_image")))
    canvas.page.evaluate(_DROP, list(_image_of(saved, prompt)))
    canvas.page.wait_for_function(
        "type => app.graph.nodes.some(node => node.type === type)", arg=_TEN[name]
    )
    canvas.pause()
    assert canvas.prompt() == prompt
    assert canvas.errors == []


@pytest.mark.parametrize("name", _RUN)
def test_after_a_run_the_image_is_in_sight(canvas, name):
    """And no node covers another or has grown out of its group."""
    canvas.load(workflow.load(repository.named(name)))
    canvas.run()
    canvas.page.wait_for_function(f"() => ({_SHOWN})().every(([width]) => width)")
    canvas.pause()
    ((width, beyond),) = canvas.page.evaluate(_SHOWN)
    assert width >= 400 and beyond == 0
    assert canvas.overlaps() == canvas.outgrown() == canvas.errors == []


def test_canceled_by_its_button_and_run_again(canvas):
    canvas.load(workflow.load(repository.named("demo_weights_edit")))
    canvas.set("GBX_W2WEdit", "edits", "beard: 0.77")  # what was made before is not made again
    canvas.page.evaluate(_COUNT_STEPS)
    run, cancel = (
        canvas.page.get_by_role("button", name="Run", exact=True),
        canvas.page.get_by_label("Cancel current run"),
    )
    run.first.click()
    canvas.page.wait_for_function("() => window.steps > 1", timeout=1000 * _RUN_SECONDS)
    cancel.click()
    expect(cancel).to_be_disabled()
    assert "execution_interrupted" in canvas.page.evaluate(_LAST)
    run.first.click()
    canvas.page.wait_for_function(
        f"() => ({_SHOWN})().every(([width]) => width)", timeout=1000 * _RUN_SECONDS
    )
    assert "execution_success" in canvas.page.evaluate(_LAST)
    assert canvas.errors == []


def test_activations_and_points_are_chosen_in_their_templates(canvas):
    canvas.load(workflow.load(repository.named("demo_activations_clusters")))
    canvas.look_at("GBX_LayerActivationTap")
    canvas.page.locator('.glassbox-box[data-id="down-level0-repeat0-res-out"]').click()
    assert canvas.value("GBX_LayerActivationTap", "preset") == "custom_ids"
    assert "down-level0-repeat0-res-out" in canvas.value("GBX_LayerActivationTap", "ids").split()
    canvas.load(workflow.load(repository.named("demo_activations_correspondence")))
    canvas.run()
    canvas.look_at("GBX_ActivationCorrespondence")
    before = canvas.value("GBX_ActivationCorrespondence", "points")
    box = canvas.page.locator(".glassbox-picker image").bounding_box()
    canvas.page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 4)
    points = canvas.value("GBX_ActivationCorrespondence", "points")
    assert points.startswith(before) and len(points.splitlines()) == len(before.splitlines()) + 1
    canvas.run()
    assert "execution_success" in canvas.page.evaluate(_LAST)
    assert canvas.errors == []


def _click_title(canvas, type_: str) -> None:
    canvas.page.mouse.click(*canvas.page.evaluate(_TITLE, type_))
    canvas.pause()


def _class(entry: dict) -> str:
    return entry["class_type"]


def _image_of(saved: dict, prompt: dict) -> bytes:
    """A PNG as Save Image writes it."""
    written = PngImagePlugin.PngInfo()
    written.add_text("prompt", json.dumps(prompt))
    written.add_text("workflow", json.dumps(saved))
    content = io.BytesIO()
    Image.new("RGB", (8, 8)).save(content, "PNG", pnginfo=written)
    return content.getvalue()
