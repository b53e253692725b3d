"""The network map of Layer Activation Tap and Activation Catalog on a real canvas, used as a person
would.
"""

import itertools

import canvas_page
import pytest
from playwright.sync_api import expect

from tools.workflows.canvas import make

pytestmark = canvas_page.EACH_RENDERER

_NODE, _LIST = "GBX_ActivationCatalog", "custom_ids"
_MANY = 1000
_WIDTHS = itertools.count(256, 8)
_EXECUTED = """([type, output]) => {
    const node = String(app.graph.nodes.find(node => node.type === type).id)
    const detail = { node, display_node: node, output, prompt_id: "a run" }
    window.comfyAPI.api.api.dispatchEvent(new CustomEvent("executed", { detail }))
}"""

# Counts from here on how often the text of IDs is written, and how often a box is.
_COUNT = """type => {
    window.counted = [0, 0]
    const { widgets } = app.graph.nodes.find(node => node.type === type)
    const widget = widgets.find(({ name }) => name === "ids")
    const { callback } = widget
    widget.callback = function () {
        window.counted[0]++
        return callback?.apply(this, arguments)
    }
    new MutationObserver(changes => { window.counted[1] += changes.length }).observe(
        document.querySelector(".glassbox-net"),
        { subtree: true, attributeFilter: ["aria-selected"] })
}"""


def _describe(w):
    w.note("Map", "One.", "Two.", "Three.")
    w.group("Map")
    model, _, _ = w.add("GBX_LoadDemoModel")
    _, table, _ = w.add(_NODE, model=model)
    w.add("PreviewAny", source=table)


@pytest.fixture
def network(canvas, object_info):
    """The map of a fresh node, drawn."""
    canvas.load(make("map", _describe, object_info))
    canvas.look_at(_NODE)
    shown = canvas.page.locator(".glassbox-map")
    expect(_chosen(shown)).to_have_count(2)
    return shown


def _box(network, id_: str):
    return network.locator(f'.glassbox-box[data-id="{id_}"]')


def _chosen(network):
    return network.locator('.glassbox-box[aria-selected="true"]')


def _ids(network) -> list[str]:
    return [box.get_attribute("data-id") for box in _chosen(network).all()]


def _queued(canvas) -> tuple[str, list[str]]:
    inputs = next(
        entry["inputs"] for entry in canvas.prompt().values() if entry["class_type"] == _NODE
    )
    return inputs["preset"], inputs["ids"].split()


def test_presets_and_lists_light_up(canvas, network):
    expect(network.get_by_role("status")).to_contain_text("2 of")
    canvas.set(_NODE, "preset", "cross_attention_mean")
    expect(_chosen(network)).to_have_count(1)
    canvas.set(_NODE, "preset", "ours_xl")
    expect(network.get_by_role("status")).to_contain_text("is a set for SDXL")
    canvas.set(_NODE, "preset", _LIST)
    canvas.set(_NODE, "ids", "up-level1-*-cross-q, mid-repeat0-res-out # both")
    expect(_chosen(network)).to_have_count(4)
    canvas.set(_NODE, "ids", "up-level9-*")
    expect(network.get_by_role("status")).to_have_text("No activation matches 'up-level9-*'.")


def test_mouse_selects_blocks(canvas, network):
    preset = sorted(_ids(network))
    _box(network, "down-level0-repeat0-res-out").click()
    assert _queued(canvas) == (_LIST, [*preset, "down-level0-repeat0-res-out"])
    _box(network, preset[0]).click()
    assert _queued(canvas) == (_LIST, [*preset[1:], "down-level0-repeat0-res-out"])
    canvas.set(_NODE, "ids", "")
    _box(network, "up-level0-repeat0-res-increment").click()
    _box(network, "up-level0-repeat0-vit-out").click(modifiers=["Shift"])
    whole = _queued(canvas)[1]
    assert len(whole) == 11 and all(id_.startswith("up-level0-repeat0-") for id_ in whole)
    network.get_by_text("0.0").last.click()
    assert _queued(canvas) == (_LIST, [])
    assert canvas.errors == []


def test_a_rectangle_selects_the_blocks_that_it_touches(canvas, network):
    canvas.set(_NODE, "preset", _LIST)
    first = _box(network, "up-level0-repeat1-res-increment")
    start, cells = first.bounding_box(), first.locator("..").bounding_box()
    corner = cells["x"] + cells["width"] - 1, cells["y"] + cells["height"] - 1
    canvas.page.mouse.move(start["x"] + 4, start["y"] + 4)
    canvas.page.mouse.down()
    canvas.page.mouse.move(*corner)  # fast: no box on the way sees the mouse
    expect(_chosen(network)).to_have_count(11)
    canvas.page.mouse.move(start["x"] + 5, start["y"] + 4)
    expect(_chosen(network)).to_have_count(1)
    canvas.page.mouse.move(*corner)
    canvas.page.mouse.up()
    canvas.page.mouse.move(start["x"] + 4, start["y"] + 60)
    assert len(_queued(canvas)[1]) == len(_ids(network)) == 11


def test_keyboard_selects_blocks(canvas, network):
    canvas.set(_NODE, "preset", _LIST)
    first = network.locator('.glassbox-box[tabindex="0"]')
    first.focus()
    press = canvas.page.keyboard.press
    for key in ("ArrowDown", "ArrowRight", " ", "Shift+ArrowRight", "End", "Enter"):
        press(key)
    assert _queued(canvas)[1][:2] == [
        "down-level0-repeat0-res-out",
        "down-level0-repeat0-vit-block0-self-q",
    ]
    assert _queued(canvas)[1][-1] == "attn-mean"
    press("Delete")
    assert _NODE in [node["type"] for node in canvas.saved()["nodes"]]


def test_saved_loaded_copied_undone(canvas, network, object_info):
    fresh = next(
        node for node in make("map", _describe, object_info)["nodes"] if node["type"] == _NODE
    )
    canvas.set(_NODE, "preset", _LIST)
    _box(network, "mid-repeat0-res-out").click()
    saved = canvas.saved()
    values = next(node["widgets_values"] for node in saved["nodes"] if node["type"] == _NODE)
    assert values == [_LIST, "mid-repeat0-res-out", *fresh["widgets_values"][2:]]
    assert canvas.copied(_NODE) == values
    canvas.load(saved)
    canvas.look_at(_NODE)
    expect(_chosen(network)).to_have_count(1)
    canvas.pause()
    _box(network, "mid-repeat1-res-out").click()
    expect(_chosen(network)).to_have_count(2)
    canvas.undo()
    expect(_chosen(network)).to_have_count(1)
    assert _queued(canvas) == (_LIST, ["mid-repeat0-res-out"])


def test_the_model_of_the_last_run_is_drawn(canvas, network):
    canvas.set(_NODE, "width", next(_WIDTHS))  # a cached node sends nothing
    canvas.run()
    expect(network).to_contain_text("The MODEL on the wire")
    expect(_chosen(network)).to_have_count(2)


def test_a_transformer_is_drawn_as_its_blocks(canvas, network):
    """As a run reports it: a row of blocks that can be clicked like those of a U-Net."""
    ids = ("vit-block0-q", "vit-block0-out", "vit-block1-out")
    outline = {
        "architecture": None,
        "activations": [[id_, 128, 2, ""] for id_ in ids],
        "groups": [
            {"place": "vit-block0", "members": [0, 1]},
            {"place": "vit-block1", "members": [2]},
        ],
        "presets": {"recommended": [2], "paper_pool": "The paper has no pool for this network."},
    }
    canvas.page.evaluate(_EXECUTED, [_NODE, {"glassbox_network": [outline]}])
    expect(network.locator(".glassbox-blocks .glassbox-box")).to_have_count(3)
    assert _ids(network) == ["vit-block1-out"]
    network.get_by_text("0", exact=True).click()
    assert _queued(canvas) == (_LIST, ["vit-block1-out", "vit-block0-q", "vit-block0-out"])
    canvas.set(_NODE, "preset", "paper_pool")
    expect(network.get_by_role("status")).to_have_text("The paper has no pool for this network.")
    assert canvas.errors == []


def test_a_thousand_boxes_are_written_once_each(canvas, network):
    """And their text as often as that of one: counted while they are selected and taken back."""
    ids = [f"vit-block0-{number}" for number in range(_MANY)]
    outline = {
        "architecture": None,
        "activations": [[id_, 128, 2, ""] for id_ in ids],
        "groups": [{"place": "vit-block0", "members": list(range(_MANY))}],
        "presets": {"recommended": [0]},
    }
    canvas.page.evaluate(_EXECUTED, [_NODE, {"glassbox_network": [outline]}])
    expect(network.locator(".glassbox-box[data-id]")).to_have_count(_MANY)
    canvas.set(_NODE, "preset", _LIST)
    canvas.set(_NODE, "ids", "")
    canvas.page.evaluate(_COUNT, _NODE)
    counts = []
    one, all_ = _box(network, ids[7]), network.get_by_text("0", exact=True)
    for clicked, chosen in ((one, 1), (all_, _MANY), (all_, 0)):
        clicked.click()
        expect(_chosen(network)).to_have_count(chosen)
        counts.append(canvas.page.evaluate("() => window.counted.splice(0, 2, 0, 0)"))
    assert counts == [
        [2, 1],
        [2, _MANY - 1],
        [2, _MANY],
    ]  # the front end calls back twice for a text
    assert _queued(canvas) == (_LIST, [])


def test_in_a_subgraph_the_model_comes_from_outside(canvas, network):
    canvas.into_subgraph(_NODE)
    expect(_chosen(network)).to_have_count(2)
    _box(network, "down-level0-repeat0-res-out").click()
    preset, ids = _queued(canvas)
    assert preset == _LIST and len(ids) == 3


def test_a_file_that_is_not_there_is_drawn_as_a_known_architecture(canvas, object_info):
    def describe(w):
        w.note("Map", "One.", "Two.", "Three.")
        w.group("Map")
        model, _, _ = w.add("CheckpointLoaderSimple", ckpt_name="absent_xl.safetensors")
        w.add(_NODE, model=model, preset="paper_filter")

    canvas.load(make("map", describe, object_info))
    canvas.look_at(_NODE)
    shown = canvas.page.locator(".glassbox-map")
    expect(shown).to_contain_text("Until the first run drawn as")
    expect(shown.locator(".glassbox-box[data-id]")).to_have_count(614)
    shown.locator("select").select_option("sd15")
    expect(shown.locator(".glassbox-box[data-id]")).to_have_count(199)
    canvas.load(canvas.saved())
    expect(shown.locator(".glassbox-box[data-id]")).to_have_count(199)
