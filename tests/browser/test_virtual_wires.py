"""Panels whose source comes without a wire: by Set and Get nodes, or by a pack that connects inputs
only when it " "queues.
"""

import canvas_page
import pytest
from playwright.sync_api import expect

from tools.workflows.canvas import make

pytestmark = canvas_page.EACH_RENDERER

# As other packs make them: nodes that live on the canvas only, of which one says itself which link
# it hands on.
_BY_SET_AND_GET = """([type, name]) => {
    const virtual = { isVirtualNode: true }
    class Set extends LiteGraph.LGraphNode {
        constructor() { super("Set"); this.addInput("value", "*"); Object.assign(this, virtual) }
    }
    class Get extends LiteGraph.LGraphNode {
        constructor() { super("Get"); this.addOutput("value", "*"); Object.assign(this, virtual) }
        getInputLink() {
            const set = this.graph.nodes.find(({ type }) => type === "other/Set")
            return super.getInputLink.call(set, 0)
        }
    }
    LiteGraph.registerNodeType("other/Set", Set)
    LiteGraph.registerNodeType("other/Get", Get)
    const node = app.graph.nodes.find(node => node.type === type)
    const slot = node.findInputSlot(name)
    const { origin_id, origin_slot } = node.getInputLink(slot)
    const [set, get] = ["other/Set", "other/Get"].map(
        type => app.graph.add(LiteGraph.createNode(type)))
    app.graph.getNodeById(origin_id).connect(origin_slot, set, 0)
    node.disconnectInput(slot)
    get.connect(0, node, slot)
}"""
_CUT = """([type, name]) => {
    const node = app.graph.nodes.find(node => node.type === type)
    node.disconnectInput(node.findInputSlot(name))
}"""


def _edits(w):
    w.note("Edits", "One.", "Two.", "Three.")
    w.group("Edits")
    space, _ = w.add("GBX_W2WLoadSpace", space_name="avatars-v2-w2w.safetensors")
    point, _, _ = w.add("GBX_W2WSample", space=space)
    _, name = w.add("GBX_W2WEdit", point=point, edits="PC 1: 0.5")
    w.add("PreviewAny", source=name)


def _network(w):
    w.note("Map", "One.", "Two.", "Three.")
    w.group("Map")
    model, _, _ = w.add("GBX_LoadDemoModel")
    _, table, _ = w.add("GBX_ActivationCatalog", model=model)
    w.add("PreviewAny", source=table)


_PANELS = {
    "sliders": (
        _edits,
        "GBX_W2WEdit",
        "point",
        ".glassbox-sliders",
        "avatars-v2-w2w",
        "connect a loader, or run once",
    ),
    "map": (
        _network,
        "GBX_ActivationCatalog",
        "model",
        ".glassbox-map",
        "the demo model",
        "Until the first run",
    ),
}


@pytest.mark.parametrize("panel", _PANELS)
def test_a_source_is_found_behind_nodes_that_live_on_the_canvas_only(canvas, object_info, panel):
    """The panel shows what the queued prompt gives the node."""
    describe, node, name, shown, found, _ = _PANELS[panel]
    canvas.load(make("wires", describe, object_info))
    wired = canvas.prompt()
    canvas.page.evaluate(_BY_SET_AND_GET, [node, name])
    assert _inputs(canvas.prompt(), node)[name] == _inputs(wired, node)[name]
    canvas.look_at(node)
    canvas.page.locator(shown).hover()
    expect(canvas.page.locator(shown)).to_contain_text(found)
    assert canvas.errors == []


@pytest.mark.parametrize("panel", _PANELS)
def test_without_any_wire_the_panel_says_what_it_waits_for(canvas, object_info, panel):
    describe, node, name, shown, found, waits = _PANELS[panel]
    canvas.load(make("wires", describe, object_info))
    canvas.look_at(node)
    expect(canvas.page.locator(shown)).to_contain_text(found)
    canvas.page.evaluate(_CUT, [node, name])
    canvas.page.mouse.move(5, 5)
    canvas.page.locator(shown).hover()
    expect(canvas.page.locator(shown)).to_contain_text(waits)


def _inputs(prompt: dict, node_type: str) -> dict:
    return next(entry["inputs"] for entry in prompt.values() if entry["class_type"] == node_type)
