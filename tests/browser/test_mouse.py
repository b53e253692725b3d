"""The first ten templates with mouse and keyboard, in each renderer, as a person tries them."""

import io
import json
from collections import Counter

import canvas_page
import pytest
import repository
from PIL import Image, PngImagePlugin

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
    app.canvas.canvas.dispatchEvent(new DragEvent("drop", { dataTransfer: data, bubbles: true, cancelable: true }))
}"""


@pytest.mark.parametrize("name", _TEN)
def test_bypass_copy_move_subgraph_and_undo(canvas, name):
    """What is undone leaves the prompt as it was, and no key reaches what it should not."""
    type_ = _TEN[name]
    canvas.load(workflow.load(repository.named(name)))
    canvas.pause()
    canvas.look_at(type_)
    prompt, start = canvas.prompt(), canvas.page.evaluate(_STATE, type_)

    def press(keys: str) -> list:
        canvas.page.keyboard.press(keys)
        canvas.pause()
        return canvas.page.evaluate(_STATE, type_)

    _click_title(canvas, type_)
    assert press("Control+b") == [1, _BYPASSED, start[2]]
    assert press("Control+b") == start
    press("Control+c")
    canvas.page.mouse.move(*_BESIDE)
    assert press("Control+v")[0] == 2
    assert press("Control+z") == start
    x, y = canvas.page.evaluate(_TITLE, type_)
    canvas.page.mouse.move(x, y)
    canvas.page.mouse.down()
    canvas.page.mouse.move(x + 40, y + 30, steps=5)
    canvas.page.mouse.up()
    canvas.pause()
    assert canvas.page.evaluate(_STATE, type_)[2] != start[2]
    assert press("Control+z") == start
    _click_title(canvas, type_)
    press("Control+Shift+e")
    assert canvas.page.evaluate(_STATE, type_)[0] == 0
    assert Counter(map(_class, canvas.prompt().values())) == Counter(map(_class, prompt.values()))
    assert press("Control+z") == start
    assert canvas.prompt() == prompt
    assert canvas.errors == []


@pytest.mark.parametrize("name", _TEN)
def test_saved_loaded_and_dropped_as_an_image(canvas, name):
    """The prompt stays, also where the workflow comes out of the image that it has made."""
    canvas.load(workflow.load(repository.named(name)))
    prompt, saved = canvas.prompt(), canvas.saved()
    canvas.load(saved)
    assert canvas.prompt() == prompt
    canvas.load(workflow.load(repository.named("demo_world_image_to_image")))
    canvas.page.evaluate(_DROP, list(_image_of(saved, prompt)))
    canvas.page.wait_for_function("type => app.graph.nodes.some(node => node.type === type)", arg=_TEN[name])
    canvas.pause()
    assert canvas.prompt() == prompt
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
